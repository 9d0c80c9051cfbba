"""Workers as processes of this machine."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from leval_harness.sweep import SweepError
from leval_harness.sweep.claims import HERE, Folder, run_of
from leval_harness.sweep.executor import capacity_here
from leval_harness.sweep.worker import GAVE_UP, WorkerRequest
from resonance_vllm.common.errors import escape_control_characters
from resonance_vllm.common.files import unique_name

STOPPED_BY_USER = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that somebody sends to end a process, not because of its run: that is simply open again."""


MOST_EARLY_ENDS = 3
"""Workers in a row that may be killed before they claim a run: more are not an accident."""


class KilledEarlyError(SweepError):
    """A worker was ended by a signal before it had claimed a run, so that no run is to blame."""


class EarlyEnds:
    """Counts workers that were killed before they had claimed a run."""

    def __init__(self) -> None:
        self.in_a_row = 0

    def note(self, error: KilledEarlyError | None) -> None:
        """Note how a worker has ended; None if it was not killed early.

        Raises:
            SweepError: too many workers in a row were killed early.
        """
        if error is None:
            self.in_a_row = 0
            return
        self.in_a_row += 1
        if self.in_a_row > MOST_EARLY_ENDS:
            raise SweepError(f"{self.in_a_row} workers in a row: {error}") from error


class LocalWorker:
    """A running worker process, in a session of its own that all it starts belongs to."""

    def __init__(
        self, request: WorkerRequest, gpus: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self.gpus = gpus
        self.folder = Folder(Path(request.folder))
        self.log = self.folder.work / "logs" / f"{unique_name(request.sweep)}.txt"
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
        """Return whether the process is gone."""
        return self.process.poll() is not None

    def record_end(self) -> None:
        """Record what the end of the process means for its run, and free what it held.

        A run whose process was killed (out of memory, a signal) is open again the first time and
        has failed the second time; if other workers compute parts of it, they finish it. A process
        that fails by itself costs its run at once.

        Raises:
            KilledEarlyError: a signal ended it before it had claimed a run.
            SweepError: it failed before it had claimed a run.
        """
        code = self.process.returncode
        try:
            if code in (0, GAVE_UP) or -code in STOPPED_BY_USER:
                return
            claims = self._claims()
            printed = self.log.read_bytes()
            end = "failed"
            if code < 0:
                end = f"was ended by {signal.Signals(-code).name}"
            if not claims:
                kind = KilledEarlyError if code < 0 else SweepError
                raise kind(f"a worker {end}: {last_line(printed)}")
            if code == -signal.SIGKILL:
                end += " (out of memory?)"
            reason = f"its process {end}; last output: {last_line(printed)}"
            run = run_of(claims[0])
            if code >= 0:
                self.folder.write_failure(run, reason, printed)
            elif not self.folder.leave_to_others(run, reason):
                self.folder.retry_once(run, reason, printed)
        finally:
            self.stop()

    def stop(self) -> None:
        """End the process and all that it has started, and free the run that it had claimed."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for claim in self._claims():
            self.folder.release(claim)
        self.log.unlink(missing_ok=True)

    def _claims(self) -> list[Path]:
        """Return the claims that the process holds, or held when it ended.

        It is one, or for a moment two, while the worker goes from one part of a run to the next. A
        claim that another worker has taken over since is not its own any more.
        """
        return self.folder.claims_of({**HERE, "pid": self.process.pid})


class LocalExecutor:
    """Runs workers on this machine, each with GPUs of its own or on the CPU."""

    def __init__(self, cpu_workers: int) -> None:
        self.capacity = capacity_here("local", cpu_workers)
        self.early_ends = EarlyEnds()

    def start(
        self, request: WorkerRequest, gpus: Sequence[str], environment: Mapping[str, str]
    ) -> LocalWorker:
        """Start a worker process, see `Executor.start`."""
        return LocalWorker(request, gpus, environment)

    def poll(self, worker: LocalWorker) -> bool:
        """Return whether a worker has ended, see `Executor.poll`."""
        if not worker.has_ended():
            return False
        try:
            worker.record_end()
        except KilledEarlyError as error:
            self.early_ends.note(error)
        else:
            self.early_ends.note(None)
        return True

    def stop(self, worker: LocalWorker) -> None:
        """Stop a worker, see `Executor.stop`."""
        worker.stop()


def last_line(log: bytes) -> str:
    """Return the last line of a log, fit for a terminal; of a progress bar its last state."""
    text = log[-64 * 1024 :].decode("utf-8", errors="replace")
    lines = [line.strip() for line in text.replace("\r", "\n").split("\n") if line.strip()]
    if not lines:
        return "no output"
    return escape_control_characters(lines[-1][:500])
