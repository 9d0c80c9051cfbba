"""One cell: one lm-eval evaluation in a process of its own.

    python -m leval_harness.sweep.cell_main CELL_FOLDER [--parent PID]

The folder holds `cell.json`. What is printed goes to the cell's log. The exit code says what kind
of failure it was, the last line of the log why.
"""

import contextlib
import ctypes
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path

from leval_harness import secrets
from leval_harness.cell_record import CellRecord, DoneRecord, read_record
from leval_harness.layout import CELL, PARTIAL, SCHEMA_VERSION
from leval_harness.locks import lock
from leval_harness.sweep.cell_files import DISK_ERRORS, clear_attempt, publish
from leval_harness.sweep.cell_inputs import as_planned
from leval_harness.sweep.errors import CellError
from leval_harness.sweep.evaluation import evaluate
from leval_harness.sweep.remote_code import only_if_asked
from leval_harness.sweep.rope_features import write_features

log = logging.getLogger("leval_harness.sweep.cell")

# kind of failure -> exit code; a code that nothing else uses, so that it cannot be mistaken
EXIT_CODES = {"error": 1, "oom": 70, "disk": 74}
REASON_MARK = "leval-harness cell failed: "
OOM_TYPES = ("OutOfMemoryError", "MemoryError")
OOM_TEXTS = ("out of memory", "can't allocate memory", "cannot allocate memory")
_PR_SET_PDEATHSIG = 1
PATIENCE_SECONDS = 30.0
"""For a dying process of an earlier sweep to let go of the cell."""


def die_with_parent(parent: int) -> None:
    """End this process when the sweep that started it is gone: no orphan keeps computing."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)

    if sys.platform != "linux":
        threading.Thread(target=watch, daemon=True).start()
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we could ask to be told
        os.kill(os.getpid(), signal.SIGKILL)


def run(folder: Path) -> None:
    """Compute the cell in `folder` from nothing and publish it."""
    cell = read_record(CellRecord, folder / CELL)
    if cell is None:
        raise CellError(f"{folder / CELL} is missing or not whole")
    kept = secrets.from_environment()
    whole = CellRecord.model_validate(secrets.joined(cell.written(), kept))
    os.environ.pop(secrets.VARIABLE, None)  # what the cell starts has no need of them
    started = time.monotonic()
    with lock(folder / ".lock", patience=PATIENCE_SECONDS):
        clear_attempt(folder)
        partial = folder / f"{PARTIAL}-{os.getpid()}"
        partial.mkdir()
        with as_planned(cell), only_if_asked(whole.model_args):
            telemetry = evaluate(whole, partial, secrets.values(kept))
            write_features(cell, partial)
        done = DoneRecord(
            schema_version=SCHEMA_VERSION,
            cell_id=cell.cell_id,
            seconds=round(time.monotonic() - started, 3),
            telemetry=telemetry,
        )
        log.info("done")
        publish(folder, partial, done)


def kind_of(error: BaseException) -> str:
    """`oom`, `disk` or `error`, from the exception or what caused it."""
    text = str(error).lower()
    if type(error).__name__ in OOM_TYPES or any(each in text for each in OOM_TEXTS):
        return "oom"
    if isinstance(error, OSError) and error.errno in DISK_ERRORS:
        return "disk"
    cause = error.__cause__ or error.__context__
    return kind_of(cause) if cause else "error"


def main(arguments: list[str]) -> int:
    """Run one cell; the exit code tells the kind of failure."""
    folder = Path(arguments[0])
    if "--parent" in arguments:
        die_with_parent(int(arguments[arguments.index("--parent") + 1]))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    logging.captureWarnings(True)
    try:
        run(folder)
    except Exception as error:
        kind = kind_of(error)
        # a log on a full disk cannot take the reason; the exit code still can
        with contextlib.suppress(OSError):
            log.exception("the cell ended")
            sys.stderr.write(f"{REASON_MARK}{type(error).__name__}: {error}\n")
            sys.stderr.flush()
        return EXIT_CODES[kind]
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    # the results are on disk: engines that hang or abort while they shut down must not cost them
    os._exit(code)
