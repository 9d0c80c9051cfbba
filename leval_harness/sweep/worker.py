"""A worker: one process that loads a model once and evaluates runs of its group with lm-eval.

    python -m leval_harness.sweep.worker < REQUEST

It claims a run, computes it in a folder of its own and renames that folder into place, then takes
the next. Its log holds the output for the run that it computes, and is emptied with each claim.
"""

import json
import logging
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leval_harness.backends import CannotSwapError
from leval_harness.backends.vllm_start import engine_reason
from leval_harness.results.layout import LOG, RUN_FILE
from leval_harness.sweep.claims import Folder
from leval_harness.sweep.estimate import FLOPS
from leval_harness.sweep.heartbeat import GAVE_UP, Heartbeat, LostClaimError
from leval_harness.sweep.run_record import RunRecord
from resonance_vllm.common.errors import UserError
from resonance_vllm.common.files import write_json

if TYPE_CHECKING:
    from leval_harness.sweep.evaluation import LoadedModel

__all__ = ["GAVE_UP", "WorkerRequest", "main"]
log = logging.getLogger("leval_harness.sweep.worker")


@dataclass(frozen=True, kw_only=True)
class WorkerRequest:
    """What a worker reads from its standard input, as JSON.

    Attributes:
        folder: of the sweep.
        sweep: names one start of the sweep on one machine.
        command: what the user typed.
        time_limit: seconds that a run may take; None: any.
        stall_limit: seconds that a run may take without an answer; None: any.
        flops: id of a run -> its estimated floating-point operations, where they are known.
        records: the runs of the group, in the order in which they should start.
        parent: the process with which the worker ends.
        log: the file that takes its output.
    """

    folder: str
    sweep: str
    command: str
    time_limit: float | None = None
    stall_limit: float | None = None
    flops: Mapping[str, float] = field(default_factory=dict)
    records: Sequence[Mapping[str, Any]] = ()
    parent: int = 0
    log: str = ""


class ClaimedRuns:
    """The runs of a worker, claimed one after the other while it iterates over them."""

    def __init__(self, request: WorkerRequest) -> None:
        self.request = request
        self.log = Path(request.log)
        self.folder = Folder(Path(request.folder))
        self.records = [RunRecord.model_validate(record) for record in request.records]
        self.heartbeat = Heartbeat(self.folder, self.log, request.time_limit, request.stall_limit)

    def __iter__(self) -> Iterator[RunRecord]:
        """Yield each run that can be claimed; `records` may grow meanwhile."""
        for run in self.records:
            gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
            claim = self.folder.claim(run.run_id, sweep=self.request.sweep, gpus=gpus)
            if claim is None:
                continue
            os.truncate(self.log, 0)
            self.heartbeat.begin(claim)
            yield run
            self.heartbeat.end()

    def fail(self, run: RunRecord, error: Exception) -> None:
        """Record why a run has no results; for an engine that died, what its log says."""
        claim = self.heartbeat.claim
        if isinstance(error, LostClaimError) or claim is None or not self.folder.owns(claim):
            log.info("%s belongs to another worker now: %s", run.title, error)
            return
        reason = engine_reason(error, self.log.read_text(errors="replace"))
        if not isinstance(error, UserError):  # a message for users needs neither
            log.error("evaluation failed", exc_info=error)
            reason = f"{type(error).__name__}: {reason}"
        log.error("the run failed: %s", reason)
        self.folder.write_failure(run.run_id, reason, self.log.read_bytes())


def run_group(claimed: ClaimedRuns) -> None:
    """Evaluate the runs of a group until none is left.

    A run whose rotation turns out not to be swappable is appended to the runs, and gets a model
    instance of its own after the others.
    """
    from leval_harness.sweep.evaluation import LoadedModel

    model: LoadedModel | None = None
    isolated: set[str] = set()
    runs = iter(claimed)
    for run in runs:
        try:
            if run.run_id in isolated and model is not None:
                model.close()
                model = None
            if model is None:
                shared = [other for other in claimed.records if other.run_id not in isolated]
                model = LoadedModel([run] if run.run_id in isolated else shared)
            log.info("evaluating %s", run.title)
            compute(claimed, run, model)
        except CannotSwapError as error:
            log.info("%s gets a model instance of its own, after the others: %s", run.title, error)
            isolated.add(run.run_id)
            claimed.records.append(run)
        except Exception as error:  # noqa: BLE001 - whatever it is, it costs this run
            claimed.fail(run, error)
            if model is None and not isolated:
                # the model cannot be loaded, so that no other run can be computed either
                for other in runs:
                    claimed.fail(other, error)
            elif not isinstance(error, UserError):
                return  # the model may be broken: the next run gets a new process


def compute(claimed: ClaimedRuns, run: RunRecord, model: "LoadedModel") -> None:
    """Evaluate a run in a folder of its own, and move that into place."""
    from leval_harness.sweep.evaluation import FRESH, evaluate

    claim = claimed.heartbeat.claim
    assert claim is not None
    attempt = claimed.folder.work / claim.attempt
    attempt.mkdir()
    started = time.monotonic()
    telemetry = evaluate(model, run, attempt, claimed.heartbeat)
    fresh_share = telemetry.pop(FRESH)
    if run.run_id in claimed.request.flops:
        # what an earlier attempt has computed took none of these seconds
        telemetry[FLOPS] = fresh_share * claimed.request.flops[run.run_id]
    circumstances = {
        "host": describe_host(),
        "command": claimed.request.command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "seconds": round(time.monotonic() - started, 3),
        "telemetry": telemetry,
    }
    write_json(attempt / RUN_FILE, run.model_copy(update=circumstances).written())
    log.info("the run is computed")
    shutil.copyfile(claimed.log, attempt / LOG)
    claimed.folder.publish(run.run_id, attempt)


def describe_host() -> dict[str, Any]:
    """Return the name, cores, system and GPUs of this machine, as the results record them."""
    import torch

    host: dict[str, Any] = {
        "name": platform.node(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        host["gpus"] = [torch.cuda.get_device_name(number) for number in range(count)]
    return host


def main() -> None:
    """Read the request and compute the runs."""
    request = WorkerRequest(**json.load(sys.stdin))
    claimed = ClaimedRuns(request)
    claimed.heartbeat.start(request.parent)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    logging.captureWarnings(True)
    run_group(claimed)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    sys.stderr.flush()
    # the results are on disk: engines that hang or abort while they shut down must not cost them
    os._exit(0)
