"""A worker: one process that loads a model once and evaluates runs of its group with lm-eval.

    python -m leval_harness.sweep.worker < REQUEST

It claims a run, computes it in a folder of its own and renames that folder into place, then takes
the next. Its log holds the output for the run that it computes, and is emptied with each claim.
`Worker` is the process as the sweep sees it: started, watched, judged by how it ended.
"""

import contextlib
import json
import logging
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from leval_harness.backends import CannotSwapError
from leval_harness.backends.vllm_start import engine_reason
from leval_harness.results.layout import LOG, RUN_FILE
from leval_harness.sweep import SweepError
from leval_harness.sweep.claims import HERE, Folder
from leval_harness.sweep.run_record import RunRecord
from resonance_vllm.common.errors import UserError, escape_control_characters
from resonance_vllm.common.files import read_json_object, write_json

log = logging.getLogger("leval_harness.sweep.worker")
ENDED_POLITELY = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Somebody ended the process, not the run: it is tried again."""


@dataclass(frozen=True, kw_only=True)
class WorkerRequest:
    """What a worker reads from its standard input, as JSON.

    `sweep` is one start of the sweep, `records` the runs of the group, `parent` the process with
    which it ends, `log` takes its output.
    """

    folder: str
    sweep: str
    command: str
    records: Sequence[Mapping[str, Any]] = ()
    parent: int = 0
    log: str = ""


class Worker:
    """A running worker, with a session of its own that all that it starts belongs to."""

    def __init__(
        self, request: WorkerRequest, gpus: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self.gpus, self.place = gpus, Folder(Path(request.folder))
        name = f"{request.sweep}-{os.getpid()}-{time.time_ns()}.txt"
        self.log = self.place.work / "logs" / name
        self.request = replace(request, parent=os.getpid(), log=str(self.log))
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-u", "-m", "leval_harness.sweep.worker"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, **environment},
            )
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self.process.stdin:
            self.process.stdin.write(json.dumps(asdict(self.request)).encode())

    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self.process.poll() is not None

    def judge(self) -> None:
        """After its end: note a run that it died of, and leave what it held to others.

        Raises:
            SweepError: it ended before it could do anything.
        """
        code, run, printed = self.process.returncode, self._held(), self.log.read_bytes()
        try:
            if code and -code not in ENDED_POLITELY:  # else another worker takes the run
                end = f"was ended by {signal.Signals(-code).name}" if code < 0 else "failed"
                if not run:
                    raise SweepError(f"a worker {end}: {last_line(printed)}")
                hint = " (out of memory?)" if code == -signal.SIGKILL else ""
                reason = f"its process {end}{hint}; last output: {last_line(printed)}"
                self.place.write_failure(run, reason, printed)
        finally:
            self.end()

    def end(self) -> None:
        """End the process and all that it has started, and leave what it held to others."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if run := self._held():
            self.place.release(run)
        self.log.unlink(missing_ok=True)

    def _held(self) -> str:
        """The run that it computes, or computed when it ended."""
        mine = {**HERE, "pid": self.process.pid}
        for run in (str(record["run_id"]) for record in self.request.records):
            if any(
                mine.items() <= (read_json_object(p) or {}).items() for p in self.place.turns(run)
            ):
                return run
        return ""


def last_line(log: bytes) -> str:
    """The last line of a log, fit for a terminal; a bar counts as its last state."""
    text = log[-64 * 1024 :].decode("utf-8", errors="replace")
    lines = [line.strip() for line in text.replace("\r", "\n").split("\n") if line.strip()]
    return escape_control_characters(lines[-1][:500]) if lines else "no output"


class Claimed:
    """The runs of a worker, claimed one after the other; `claim` is that of the present one."""

    def __init__(self, request: WorkerRequest) -> None:
        self.request, self.log = request, Path(request.log)
        self.place = Folder(Path(request.folder))
        self.records = [RunRecord.model_validate(record) for record in request.records]
        self.claim: Path | None = None

    def __iter__(self) -> Iterator[RunRecord]:
        """Each run that can be claimed."""
        for run in self.records:
            claim = self.place.claim(run.run_id, sweep=self.request.sweep)
            if claim is not None:
                os.truncate(self.log, 0)
                self.claim = claim
                yield run
                self.claim = None
                self.place.release(run.run_id)

    def fail(self, run: RunRecord, error: Exception) -> None:
        """Note why a run has no results; of an engine, what its log says."""
        reason = engine_reason(error, self.log.read_text(errors="replace"))
        if not isinstance(error, UserError):  # a message for users needs neither
            log.error("evaluation failed", exc_info=error)
            reason = f"{type(error).__name__}: {reason}"
        log.error("the run failed: %s", reason)
        self.place.write_failure(run.run_id, reason, self.log.read_bytes())


def run(claimed: Claimed) -> None:
    """Evaluate the runs of a group until none is left."""
    from leval_harness.sweep.evaluation import LoadedModel

    model: LoadedModel | None = None
    alone: set[str] = set()
    runs = iter(claimed)
    for run in runs:
        try:
            if run.run_id in alone and model is not None:
                model.close()
                model = None
            model = model or LoadedModel([run] if run.run_id in alone else claimed.records)
            log.info("evaluating %s", run.title)
            compute(claimed, run, model)
        except CannotSwapError as error:
            log.info("%s gets a load of its own, after the others: %s", run.title, error)
            alone.add(run.run_id)
            claimed.records.append(run)
        except Exception as error:  # noqa: BLE001 - whatever it is, it costs this run
            claimed.fail(run, error)
            if model is None and not alone:  # nor can the others be computed
                for other in runs:
                    claimed.fail(other, error)
            elif not isinstance(error, UserError):
                return  # the model may be broken: the next run gets a new process


def compute(claimed: Claimed, run: RunRecord, model: Any) -> None:
    """Evaluate a run in a folder of its own and put that in place."""
    from leval_harness.sweep.evaluation import evaluate

    assert claimed.claim is not None
    attempt = claimed.place.work / claimed.claim.name
    shutil.rmtree(attempt, ignore_errors=True)
    attempt.mkdir()
    started = time.monotonic()
    telemetry = evaluate(model, run, attempt, claimed.place)
    about = {
        "host": {"name": platform.node(), "cores": os.cpu_count()},
        "command": claimed.request.command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "seconds": round(time.monotonic() - started, 3),
        "telemetry": telemetry,
    }
    write_json(attempt / RUN_FILE, run.model_copy(update=about).written())
    log.info("the run is computed")
    shutil.copyfile(claimed.log, attempt / LOG)
    claimed.place.publish(run.run_id, attempt)


def live_with(parent: int, claimed: Claimed) -> None:
    """Keep the present claim alive; end this process and all it has started with its parent."""
    while os.getppid() == parent:
        with contextlib.suppress(OSError):
            if claimed.claim is not None:
                os.utime(claimed.claim)
        time.sleep(1)
    if claimed.claim is not None:
        claimed.claim.unlink(missing_ok=True)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Read the request and compute the runs."""
    request = WorkerRequest(**json.load(sys.stdin))
    claimed = Claimed(request)
    threading.Thread(target=live_with, args=(request.parent, claimed), daemon=True).start()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    logging.captureWarnings(True)
    run(claimed)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    sys.stderr.flush()
    # the results are on disk: engines that hang or abort while they shut down must not cost them
    os._exit(0)
