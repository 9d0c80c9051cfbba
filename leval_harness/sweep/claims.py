"""Claims on runs, by exclusive creation of files and nothing else.

Any number of machines may share a folder, also one without file locks. A claim is a file
`<run>.<turn>` in `.work/claims`; the highest turn counts. Its owner touches it every second. When
that stops, or the owner's process on this machine is gone, another worker creates the next turn,
which only one of several can.
"""

import json
import os
import platform
import shutil
import time
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from leval_harness.results.layout import FAILED, FAILED_RUNS, LOG, RUN_FILE, RUNS_FOLDER, WORK
from leval_harness.sweep.run_progress import RunProgress, read_progress
from resonance_vllm.common.files import fsync_folder, read_json_object, write_json

STALE_SECONDS = 180.0
"""Age of its last touch from which on the owner of a claim counts as dead."""
_SPACE = Path("/proc/self/ns/pid")
HERE = {"host": platform.node(), "space": str(_SPACE.readlink()) if _SPACE.is_symlink() else ""}
"""Where a process id means this process: containers on one host have process ids of their own."""


def unique_name(prefix: str) -> str:
    """Return a file name that no other process uses, on whatever machine."""
    return f"{prefix}.{platform.node()}.{os.getpid()}.{uuid.uuid4().hex[:8]}"


class RunState(NamedTuple):
    """What is known of a run: its results are there, it has failed, or somebody computes it.

    Attributes:
        done: its results are in place.
        failure: why it has no results.
        owner: what its claim says, and as `seen` when its owner last gave a sign of life.
    """

    done: bool
    failure: str | None = None
    owner: dict[str, Any] | None = None

    @property
    def is_over(self) -> bool:
        """Return whether nothing is left to compute."""
        return self.done or self.failure is not None

    @property
    def is_open(self) -> bool:
        """Return whether anybody may claim it."""
        return not self.is_over and self.owner is None


class Claim(NamedTuple):
    """A claim that this process has made.

    Attributes:
        run: id of the run.
        path: the claim's file; a later claim may have a file of the same name.
        token: tells this claim from a later one.
    """

    run: str
    path: Path
    token: str

    @property
    def attempt(self) -> str:
        """Return the name of the folder and of the answers of this attempt at the run."""
        return f"{self.path.name}.{self.token}"


class Folder:
    """The results folder of a sweep, as those see it that compute its runs.

    Raises:
        OSError: it cannot be created.
    """

    def __init__(self, path: Path) -> None:
        for name in ("claims", "progress", "logs", "cache", "retries"):
            (path / WORK / name).mkdir(parents=True, exist_ok=True)
        (path / RUNS_FOLDER).mkdir(exist_ok=True)
        self.path = path.resolve()
        self.work = self.path / WORK

    # What has become of a run.

    def is_done(self, run: str) -> bool:
        """Return whether the results of a run are there."""
        return (self.path / RUNS_FOLDER / run / RUN_FILE).exists()

    def failure(self, run: str) -> str | None:
        """Return why a run has failed; it is not tried again before the next start."""
        content = read_json_object(self.path / FAILED_RUNS / run / FAILED)
        if content is None:
            return None
        return str(content.get("reason", ""))

    def state(self, run: str) -> RunState:
        """Return what is known of a run."""
        # Claims are read first: a run that is published and released in between is then done.
        turns = self.turns(run)
        owner = self._owner(turns[-1]) if turns else None
        if self.is_done(run):
            return RunState(done=True)
        failure = self.failure(run)
        if failure is not None:
            return RunState(done=False, failure=failure)
        return RunState(done=False, owner=owner)

    def write_failure(self, run: str, reason: str, log: bytes = b"") -> None:
        """Record why a run has no results."""
        folder = self.path / FAILED_RUNS / run
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOG).write_bytes(log)
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        write_json(folder / FAILED, {"reason": reason, "when": when})

    def forget_failure(self, run: str) -> None:
        """Let a run that has failed be tried again."""
        shutil.rmtree(self.path / FAILED_RUNS / run, ignore_errors=True)
        (self.work / "retries" / run).unlink(missing_ok=True)

    def retry_once(self, run: str, reason: str, log: bytes = b"") -> None:
        """Leave a run whose worker died to another worker; the second time, record its failure."""
        try:
            with (self.work / "retries" / run).open("x", encoding="utf-8") as handle:
                handle.write(reason)
        except FileExistsError:
            self.write_failure(run, f"{reason} (the second time)", log)

    def retried(self) -> set[str]:
        """Return the runs whose first worker died, while they have no results."""
        return {path.name for path in (self.work / "retries").iterdir()}

    def reason_of_retry(self, run: str) -> str:
        """Return why the first worker of a run died; empty if none did."""
        try:
            return (self.work / "retries" / run).read_text(encoding="utf-8")
        except OSError:
            return ""

    def publish(self, run: str, attempt: Path) -> None:
        """Move finished results into place by one rename; results that are there already stay."""
        if self.is_done(run):
            shutil.rmtree(attempt, ignore_errors=True)
            return
        for path in attempt.iterdir():
            with path.open("rb") as handle:
                os.fsync(handle.fileno())
        try:
            attempt.rename(self.path / RUNS_FOLDER / run)
        except OSError:
            if not self.is_done(run):  # else another worker was faster, a moment ago
                raise
        fsync_folder(self.path / RUNS_FOLDER)
        for unfinished in self.work.glob(f"{run}.*"):  # of workers that were killed or too late
            shutil.rmtree(unfinished, ignore_errors=True)
        self.forget_failure(run)

    def progress(self, run: str) -> RunProgress | None:
        """Return how far a running run is; None if its worker has not written it."""
        return read_progress(self.work / "progress" / run)

    # Who computes it.

    def turns(self, run: str) -> list[Path]:
        """Return the claims on a run; the last one counts."""
        claims = (self.work / "claims").glob(f"{run}.*")
        return sorted(claims, key=lambda path: int(path.suffix[1:]))

    def claim(self, run: str, **details: Any) -> Claim | None:
        """Claim a run, and return the claim; None if it is over or another process has it.

        Args:
            run: its id.
            details: what the claim's file says beside the process and its host.
        """
        turns = self.turns(run)
        number = 1
        if turns:
            if self._owner(turns[-1]) is not None:
                return None
            number = int(turns[-1].suffix[1:]) + 1
        claim = Claim(run, self.work / "claims" / f"{run}.{number}", uuid.uuid4().hex[:8])
        content = {**details, **HERE, "pid": os.getpid(), "token": claim.token}
        try:
            with claim.path.open("x", encoding="utf-8") as handle:
                json.dump(content, handle)
        except FileExistsError:
            return None
        # Looked at only now: the former owner may have finished after our first look.
        if self.is_done(run) or self.failure(run) is not None:
            self.release(claim.path)
            return None
        return claim

    def owns(self, claim: Claim) -> bool:
        """Return whether a claim still counts: no other worker has taken the run over."""
        turns = self.turns(claim.run)
        if not turns or turns[-1] != claim.path:
            return False
        return (read_json_object(claim.path) or {}).get("token") == claim.token

    def release(self, claim: Path) -> None:
        """Remove a claim and the earlier ones on its run; a later one belongs to somebody else."""
        number = int(claim.suffix[1:])
        for path in self.turns(claim.stem):
            if int(path.suffix[1:]) <= number:
                path.unlink(missing_ok=True)

    def _owner(self, claim: Path) -> dict[str, Any] | None:
        """Return what the owner of a claim wrote, and when it was `seen`; None if it is dead."""
        try:
            seen = claim.stat().st_mtime
        except FileNotFoundError:
            return None  # released in this moment
        owner = read_json_object(claim) or {}  # nothing is there yet while it is written
        is_gone = HERE.items() <= owner.items() and not psutil.pid_exists(owner["pid"])
        is_old = self.now() - seen > STALE_SECONDS
        if is_gone or is_old:
            return None
        return {**owner, "seen": seen}

    def now(self) -> float:
        """Return the time in seconds by the clock that dates files here, maybe a file server's."""
        probe = self.work / unique_name("clock")
        probe.touch()
        seconds = probe.stat().st_mtime
        probe.unlink(missing_ok=True)
        return seconds
