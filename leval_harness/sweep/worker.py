"""A worker: one process that loads a model once and evaluates cells of its group with lm-eval.

    python -m leval_harness.sweep.worker < REQUEST

It claims a cell, computes it in a folder of its own and renames that folder into place, then takes
the next. Its exit code is 0, also where a cell has failed, or `workers.DISK_FULL`.
"""

import contextlib
import errno
import json
import logging
import os
import platform
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from leval_harness.backends.registry import CannotExchange
from leval_harness.backends.vllm_start import engine_reason
from leval_harness.cell_record import CellRecord
from leval_harness.layout import CELL, LOG
from leval_harness.sweep.claims import beating
from leval_harness.sweep.workers import DISK_FULL, WorkerRequest, log_since
from resonance_vllm.errors import UserError
from resonance_vllm.files import read_object, write_json

log = logging.getLogger("leval_harness.sweep.worker")
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Group:
    """The cells of a worker, claimed one after the other."""

    def __init__(self, request: WorkerRequest) -> None:
        self.request, self.place = request, request.place
        self.records = [CellRecord.model_validate(record) for record in request.records]
        self.is_mixed = any(r.model_args != self.records[0].model_args for r in self.records)
        self.held = ""

    def __iter__(self) -> Iterator[tuple[CellRecord, Path]]:
        """Each cell that can be claimed, with its claim, until none is left."""
        while (found := self._next()) is not None:
            self.held = found[0].cell_id
            yield found

    def _next(self) -> tuple[CellRecord, Path] | None:
        apart = self.place.apart() if self.is_mixed else ()
        for cell in self.records:
            offset = Path(self.request.log).stat().st_size
            about = {"sweep": self.request.sweep, "offset": offset}
            if cell.cell_id not in apart and (claim := self.place.claim(cell.cell_id, **about)):
                return cell, claim
        return None

    def fail(self, cell: CellRecord, claim: Path, error: Exception) -> None:
        """Note why a cell has no results; of an engine, what its log says."""
        output = Path(self.request.log)
        reason = engine_reason(error, output.read_text(errors="replace"))
        if not isinstance(error, UserError):  # a message for users needs neither
            log.error("evaluation failed", exc_info=error)
            reason = f"{type(error).__name__}: {reason}"
        log.error("the cell failed: %s", reason)
        printed = log_since(output, read_object(claim) or {})
        self.place.write_failure(cell.cell_id, reason, printed)
        self.place.release(cell.cell_id)


def run(group: Group) -> int:
    """Evaluate the cells of a group until none is left; the exit code."""
    from leval_harness.sweep.evaluation import LoadedModel

    model: LoadedModel | None = None
    for cell, claim in group:
        try:
            with beating(claim):
                if model is None:
                    log.info("loading for %s", cell.title)
                    model = LoadedModel(group.records)
                log.info("evaluating %s", cell.title)
                compute(group, cell, claim, model)
        except CannotExchange as error:
            log.info("%s is computed by a worker of its own: %s", cell.title, error)
            (group.place.work / "apart" / cell.cell_id).touch()
        except Exception as error:  # noqa: BLE001 - whatever it is, it costs this cell
            if no_room(error):
                return DISK_FULL
            group.fail(cell, claim, error)
            if model is None:  # nor can the others be computed
                for other, its_claim in group:
                    group.fail(other, its_claim, error)
            elif not isinstance(error, UserError):
                return 0  # the model may be broken: the next cell gets a new process
        group.place.release(cell.cell_id)
    return 0


def compute(group: Group, cell: CellRecord, claim: Path, model: Any) -> None:
    """Evaluate a cell in a folder of its own and put that in place."""
    from leval_harness.sweep.evaluation import evaluate

    attempt = group.place.work / claim.name
    shutil.rmtree(attempt, ignore_errors=True)
    attempt.mkdir()
    started = time.monotonic()
    telemetry = evaluate(model, cell, attempt, group.place, claim.name)
    about = {
        "host": {"name": platform.node(), "cores": os.cpu_count()},
        "command": group.request.command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "seconds": round(time.monotonic() - started, 3),
        "telemetry": telemetry,
    }
    write_json(attempt / CELL, cell.model_copy(update=about).written())
    log.info("the cell is computed")
    printed = log_since(Path(group.request.log), read_object(claim) or {})
    (attempt / LOG).write_bytes(printed)
    group.place.publish(cell.cell_id, attempt)


def no_room(error: BaseException | None) -> bool:
    """Whether an exception, or what caused it, is a full disk."""
    if error is None:
        return False
    full = isinstance(error, OSError) and error.errno in NO_ROOM
    return full or no_room(error.__cause__ or error.__context__)


def end_with(parent: int, group: Group) -> None:
    """End this process and all that it has started within a second after its parent has ended."""
    while os.getppid() == parent:
        time.sleep(1)
    with contextlib.suppress(OSError):
        group.place.release(group.held)
    os.killpg(0, signal.SIGKILL)


def main() -> int:
    """Read the request, compute the cells, return the exit code."""
    request = WorkerRequest(**json.load(sys.stdin))
    group = Group(request)
    threading.Thread(target=end_with, args=(request.parent, group), daemon=True).start()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    logging.captureWarnings(True)
    try:
        return run(group)
    except OSError as error:
        if not no_room(error):
            raise
        return DISK_FULL


if __name__ == "__main__":
    code = main()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    # the results are on disk: engines that hang or abort while they shut down must not cost them
    os._exit(code)
