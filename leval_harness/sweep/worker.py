"""A worker: one process that loads a model once and evaluates runs of its group with lm-eval.

    python -m leval_harness.sweep.worker < REQUEST

It claims a part of a run and computes it, then the next part that is free. If its part was the last,
it writes the results into a folder of its own and renames that into place. Then it takes the next
run; when nobody has left one, it joins those that compute one, until no part is free. Its log holds
the output for the run that it computes, and is emptied with each run.
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
from leval_harness.sweep.claims import Folder, RunState
from leval_harness.sweep.estimate import FLOPS
from leval_harness.sweep.heartbeat import GAVE_UP, Heartbeat, LostClaimError
from leval_harness.sweep.parts_of_run import PartsOfOthersError
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
        stall_limit: seconds that a run may take without progress; None: any.
        flops: id of a run -> its estimated floating-point operations, where they are known.
        work: id of a run -> a measure of its work, to compare the runs with each other.
        expected_parts: id of a run -> about how many parts it will have, where it pays that further
            workers join it before this is known.
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
    work: Mapping[str, float] = field(default_factory=dict)
    expected_parts: Mapping[str, int] = field(default_factory=dict)
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
        gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
        self.heartbeat = Heartbeat(
            self.folder,
            self.log,
            request.time_limit,
            request.stall_limit,
            {"sweep": request.sweep, "gpus": gpus},
        )

    def __iter__(self) -> Iterator[RunRecord]:
        """Yield each run of which a part can be claimed; `records` may grow meanwhile."""
        while True:
            run = self._claim_next()
            if run is None:
                return
            yield run
            self.heartbeat.end()

    def _claim_next(self) -> RunRecord | None:
        """Claim a part of a run, and return the run; None if nothing is left to claim.

        Runs that nobody computes come first, in their order. Then the worker joins the run of which
        most is left for each of its workers.
        """
        states = self.folder.states([run.run_id for run in self.records])
        open_runs = [run for run in self.records if states[run.run_id].is_open]
        shared = [run for run in self.records if states[run.run_id].owners]
        shared.sort(key=lambda run: self._left(run, states[run.run_id]), reverse=True)
        for run in [*open_runs, *shared]:
            expected = self.request.expected_parts.get(run.run_id, 1)
            for part in states[run.run_id].free_parts(expected):
                claim = self.folder.claim(run.run_id, part, **self.heartbeat.details)
                if claim is not None:
                    if states[run.run_id].is_open:
                        # What an interrupted attempt computed without an answer is lost.
                        self.folder.forget_progress(run.run_id)
                    os.truncate(self.log, 0)
                    self.heartbeat.begin(claim)
                    return run
        return None

    def _left(self, run: RunRecord, state: RunState) -> float:
        """Return the work that is left of a run for each worker if this one joins."""
        work = self.request.work.get(run.run_id, 1.0)
        return work * state.share_left() / (len(state.owners) + 1)

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

    A run whose rotation turns out not to be swappable is moved behind the other runs, and gets a
    model instance of its own.
    """
    models = ModelOfGroup(claimed)
    for run in claimed:
        try:
            model = models.load(run)
        except Exception as error:  # noqa: BLE001 - whatever it is, it costs this run
            if not models.has_loaded:
                fail_all(claimed, run, error)
                return
            claimed.fail(run, error)
            continue
        try:
            log.info("evaluating %s", run.title)
            compute(claimed, run, model)
        except PartsOfOthersError as others:
            log.info("%s: %s", run.title, others)
        except CannotSwapError as error:
            log.info("%s gets a model instance of its own, after the others: %s", run.title, error)
            models.isolate(run)
        except Exception as error:  # noqa: BLE001 - whatever it is, it costs this run
            claimed.fail(run, error)
            if not isinstance(error, UserError):
                return  # the model may be broken: the next run gets a new process


class ModelOfGroup:
    """The loaded model of a group of runs, or of a run that cannot share it.

    Args:
        claimed: the runs of the group.
    """

    def __init__(self, claimed: ClaimedRuns) -> None:
        self.claimed = claimed
        self.model: LoadedModel | None = None
        self.loaded_for: str | None = None
        self.isolated: set[str] = set()
        self.has_loaded = False

    def load(self, run: RunRecord) -> "LoadedModel":
        """Return the model for a run, which is loaded if another one or none is there."""
        from leval_harness.sweep.evaluation import LoadedModel

        needed_for = run.run_id if run.run_id in self.isolated else None
        if self.model is not None and self.loaded_for != needed_for:
            self.model.close()
            self.model = None
        if self.model is None:
            runs = [other for other in self.claimed.records if other.run_id not in self.isolated]
            self.model = LoadedModel(runs if needed_for is None else [run])
            self.loaded_for = needed_for
            self.has_loaded = True
        return self.model

    def isolate(self, run: RunRecord) -> None:
        """Give a run a model instance of its own, after the others."""
        self.isolated.add(run.run_id)
        self.claimed.records.remove(run)
        self.claimed.records.append(run)


def fail_all(claimed: ClaimedRuns, run: RunRecord, error: Exception) -> None:
    """Record that the model cannot be loaded, for all runs of the group that nobody computes.

    Where other workers have the model loaded, there may only be no room for another copy.
    """
    if claimed.folder.leave_to_others(run.run_id, f"no further model instance: {error}"):
        return
    claimed.fail(run, error)
    claimed.heartbeat.end()
    for other in claimed:
        if claimed.folder.leave_to_others(other.run_id, f"no further model instance: {error}"):
            continue
        claimed.fail(other, error)


def compute(claimed: ClaimedRuns, run: RunRecord, model: "LoadedModel") -> None:
    """Compute parts of a run; after the last one write its results, and move them into place.

    Raises:
        PartsOfOthersError: other workers compute parts of the run.
    """
    from leval_harness.sweep.evaluation import evaluate

    claim = claimed.heartbeat.claim
    assert claim is not None
    attempt = claimed.folder.work / claim.attempt
    started = time.monotonic()
    evaluation = evaluate(model, run, attempt, claimed.heartbeat)
    telemetry = evaluation.telemetry
    if run.run_id in claimed.request.flops:
        # what an earlier attempt has computed took none of these seconds
        telemetry[FLOPS] = evaluation.fresh_share * claimed.request.flops[run.run_id]
    seconds = time.monotonic() - started + evaluation.seconds_of_others
    circumstances = {
        "host": describe_host(),
        "command": claimed.request.command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "seconds": round(seconds, 3),
        "telemetry": telemetry,
    }
    write_json(attempt / RUN_FILE, run.model_copy(update=circumstances).written())
    log.info("the run is computed")
    shutil.copyfile(claimed.log, attempt / LOG)
    claimed.folder.publish(run.run_id, attempt)
    if not run.keeps_answers:
        claimed.folder.forget_answers(run.run_id)


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
