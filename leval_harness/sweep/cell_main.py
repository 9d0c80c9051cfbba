"""One cell: one lm-eval evaluation in a process of its own.

    python -m leval_harness.sweep.cell_main CELL_FOLDER [--parent PID]

The folder holds `cell.json`. What is printed goes to the cell's log. The exit code is the kind of
failure, the last line of the log the reason.
"""

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path

from leval_harness.cell_record import CellRecord, DoneRecord, read_record
from leval_harness.layout import CELL, LOG, PARTIAL, SCHEMA_VERSION
from leval_harness.locks import lock
from leval_harness.secrets import VARIABLE
from leval_harness.sweep import CellError
from leval_harness.sweep.cell_additions import write_features
from leval_harness.sweep.cell_files import DISK_ERRORS, clear_attempt, publish
from leval_harness.sweep.evaluation import evaluate, remote_code_as_configured
from leval_harness.sweep.identity import verified_identity
from resonance_vllm.errors import UserError

log = logging.getLogger("leval_harness.sweep.cell")

EXIT_CODES = {"error": 1, "oom": 70, "disk": 74}
"""Kind of failure -> exit code; 70 and 74 are used by nothing else that runs here."""
REASON_MARK = "leval-harness cell failed: "
OOM_TYPES = ("OutOfMemoryError", "MemoryError")
OOM_TEXTS = ("out of memory", "can't allocate memory", "cannot allocate memory")
LAST_LINE = "the cell is computed"
LOG_SECONDS = 1.0
"""For the last lines to reach the log: the supervisor takes credentials out of them first."""
PATIENCE_SECONDS = 30.0
"""For a dying process of an earlier sweep to release the cell."""


def run(folder: Path) -> None:
    """Compute the cell in `folder` from its beginning and publish it."""
    cell = read_record(CellRecord, folder / CELL)
    if cell is None:
        raise CellError(f"{folder / CELL} is missing or not valid")
    request = os.environ.pop(VARIABLE, None)  # processes that the cell starts do not need it
    whole = cell if request is None else CellRecord.model_validate_json(request)
    started = time.monotonic()
    with lock(folder / ".lock", patience=PATIENCE_SECONDS):
        clear_attempt(folder)
        partial = folder / f"{PARTIAL}-{os.getpid()}"
        partial.mkdir()
        with verified_identity(cell), remote_code_as_configured(whole.model_args):
            telemetry = evaluate(whole, partial)
            write_features(cell, partial)
        done = DoneRecord(
            schema_version=SCHEMA_VERSION,
            cell_id=cell.cell_id,
            seconds=round(time.monotonic() - started, 3),
            telemetry=telemetry,
        )
        log.info(LAST_LINE)
        wait_for_text(folder / LOG, LAST_LINE)
        publish(folder, partial, done)


def wait_for_text(path: Path, text: str, seconds: float = LOG_SECONDS) -> bool:
    """Wait until a file that exists ends with a text, give or take 4 kB; False if it does not."""
    end = time.monotonic() + seconds
    while path.is_file():
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            if text.encode() in file.read():
                return True
        if time.monotonic() > end:
            break
        time.sleep(0.02)
    return False


def kind_of(error: BaseException) -> str:
    """`oom`, `disk` or `error`, from the exception or what caused it."""
    text = str(error).lower()
    if type(error).__name__ in OOM_TYPES or any(each in text for each in OOM_TEXTS):
        return "oom"
    if isinstance(error, OSError) and error.errno in DISK_ERRORS:
        return "disk"
    cause = error.__cause__ or error.__context__
    return kind_of(cause) if cause else "error"


def die_with(parent: int) -> None:
    """Kill this process within a second after its parent has ended."""
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)


def main(arguments: list[str]) -> int:
    """Run one cell and return its exit code."""
    folder = Path(arguments[0])
    if "--parent" in arguments:
        parent = int(arguments[arguments.index("--parent") + 1])
        threading.Thread(target=die_with, args=(parent,), daemon=True).start()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    logging.captureWarnings(True)
    try:
        run(folder)
    except Exception as error:
        # a log on a full disk cannot take the reason; the exit code still can
        with contextlib.suppress(OSError):
            if not isinstance(error, UserError):  # a message for users needs no traceback
                log.exception("the cell failed")
            sys.stderr.write(f"{REASON_MARK}{type(error).__name__}: {error}\n")
            sys.stderr.flush()
        return EXIT_CODES[kind_of(error)]
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    # the results are on disk: engines that hang or abort while they shut down must not cost them
    os._exit(code)
