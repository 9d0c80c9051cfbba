"""Which process computes a run: claims, by exclusive creation of files and nothing else.

Any number of machines may share a folder, also one without file locks. A claim is a file
`<run>.<turn>` below `.work/claims`; the highest turn counts. Its owner touches it every second.
Where that has stopped, or the owner's process on this machine is gone, another one creates the next
turn, which only one of several can.
"""

import json
import os
import platform
import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from leval_harness.results.layout import FAILED, FAILED_RUNS, LOG, RUN_FILE, RUNS_FOLDER, WORK
from resonance_vllm.common.files import fsync_folder, read_json_object, write_json

STALE_SECONDS = 180.0
_SPACE = Path("/proc/self/ns/pid")
HERE = {"host": platform.node(), "space": str(_SPACE.readlink()) if _SPACE.is_symlink() else ""}
"""Where a process id means this process: containers on one host have ids of their own."""


class RunState(NamedTuple):
    """What is known of a run: its results are there, it has failed, or somebody computes it.

    `owner` is what that process wrote, and when it was `seen` to live.
    """

    done: bool
    failure: str | None = None
    owner: dict[str, Any] | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to compute."""
        return self.done or self.failure is not None

    @property
    def is_open(self) -> bool:
        """Whether anybody may claim it."""
        return not self.is_over and self.owner is None


class Folder:
    """The results folder of a sweep, as those see it that compute its runs.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        for name in ("claims", "progress", "logs", "cache"):
            (path / WORK / name).mkdir(parents=True, exist_ok=True)
        (path / RUNS_FOLDER).mkdir(exist_ok=True)
        self.path = path.resolve()
        self.work = self.path / WORK

    def is_done(self, run: str) -> bool:
        """Whether the results of a run are there."""
        return (self.path / RUNS_FOLDER / run / RUN_FILE).exists()

    def failure(self, run: str) -> str | None:
        """Why a run has failed, which is not tried again before the next start."""
        found = read_json_object(self.path / FAILED_RUNS / run / FAILED)
        return None if found is None else str(found.get("reason", ""))

    def state(self, run: str) -> RunState:
        """What is known of a run."""
        turns = self.turns(run)  # before the results that it made are looked for
        owner = self._owner(turns[-1]) if turns else None
        done = self.is_done(run)
        failure = None if done else self.failure(run)
        return RunState(done, failure, None if done or failure is not None else owner)

    def write_failure(self, run: str, reason: str, log: bytes = b"") -> None:
        """Note why a run has no results."""
        folder = self.path / FAILED_RUNS / run
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOG).write_bytes(log)
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        write_json(folder / FAILED, {"reason": reason, "when": when})

    def forget_failure(self, run: str) -> None:
        """Let a run that has failed be tried again."""
        shutil.rmtree(self.path / FAILED_RUNS / run, ignore_errors=True)

    def publish(self, run: str, attempt: Path) -> None:
        """Put finished results in place by one rename; where they are already, nothing happens."""
        for path in attempt.iterdir():
            with path.open("rb") as handle:
                os.fsync(handle.fileno())
        try:
            attempt.rename(self.path / RUNS_FOLDER / run)
        except OSError:
            if not self.is_done(run):
                raise
        fsync_folder(self.path / RUNS_FOLDER)
        shutil.rmtree(attempt, ignore_errors=True)
        self.forget_failure(run)

    def share(self, run: str) -> float:
        """Share of the requests of a running run that are answered."""
        try:
            answered, asked = (self.work / "progress" / run).read_text().split()
            return min(1.0, int(answered) / max(1, int(asked)))
        except (OSError, ValueError):
            return 0.0

    def turns(self, run: str) -> list[Path]:
        """The claims on a run, the one that counts last."""
        found = (self.work / "claims").glob(f"{run}.*")
        return sorted(found, key=lambda path: int(path.suffix[1:]))

    def claim(self, run: str, **about: Any) -> Path | None:
        """The file of a new claim; None where the run is over or another process has it."""
        turns = self.turns(run)
        if turns and self._owner(turns[-1]) is not None:
            return None
        number = int(turns[-1].suffix[1:]) + 1 if turns else 1
        path = self.work / "claims" / f"{run}.{number}"
        about |= {**HERE, "pid": os.getpid()}
        try:
            with path.open("x", encoding="utf-8") as handle:
                json.dump(about, handle)
        except FileExistsError:
            return None
        if self.is_done(run) or self.failure(run) is not None:
            self.release(run)  # also where the owner finished between the look and the claim
            return None
        return path

    def release(self, run: str) -> None:
        """Remove the claims on a run that is over, or whose owner has ended."""
        for path in self.turns(run):
            path.unlink(missing_ok=True)

    def _owner(self, claim: Path) -> dict[str, Any] | None:
        """What the owner of a claim wrote, and when it was `seen` to live; None: it is dead."""
        try:
            seen = claim.stat().st_mtime
        except FileNotFoundError:
            return None  # released in this moment
        about = read_json_object(claim) or {}  # nothing is there yet while it is written
        gone = HERE.items() <= about.items() and not psutil.pid_exists(about["pid"])
        old = self.now() - seen > STALE_SECONDS
        return None if gone or old else {**about, "seen": seen}

    def now(self) -> float:
        """Seconds on the clock that dates the files of the folder, maybe another machine's."""
        probe = self.work / f"clock.{platform.node()}.{os.getpid()}"
        probe.touch()
        seconds = probe.stat().st_mtime
        probe.unlink(missing_ok=True)
        return seconds
