"""Which process computes a cell: claims, by exclusive creation of files and nothing else.

Any number of machines may share a folder, also one without file locks. A claim is a file
`<cell>.<turn>` below `.work/claims`; the highest turn counts. Its owner touches it every
`BEAT_SECONDS`. Where that has stopped, or the owner's process on this machine is gone, another one
creates the next turn, which only one of several can.
"""

import contextlib
import json
import os
import platform
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from leval_harness.layout import CELL, CELLS, FAILED, FAILED_CELLS, LOG, WORK
from resonance_vllm.files import read_object, sync_folder, write_json

BEAT_SECONDS = 20.0
STALE_SECONDS = 180.0


def _here() -> str:
    """This machine, as far as process ids mean the same: containers have their own."""
    with contextlib.suppress(OSError):
        return f"{platform.node()} {Path('/proc/self/ns/pid').readlink()}"
    return platform.node()


HERE = _here()


@dataclass(frozen=True)
class Folder:
    """The results folder of a sweep, as those see it that compute its cells.

    Attributes:
        path: of the folder.
        began: when this start of the sweep began, on the clock of the folder's file system. Cells
            that failed before it are tried again, those that failed after it are not.
    """

    path: Path
    began: float

    @classmethod
    def of(cls, path: Path) -> "Folder":
        """Make the folder and write into it.

        Raises:
            OSError: that is not possible.
        """
        for name in ("claims", "progress", "logs", "cache", "apart"):
            (path / WORK / name).mkdir(parents=True, exist_ok=True)
        (path / CELLS).mkdir(exist_ok=True)
        return cls(path.resolve(), file_system_time(path))

    @property
    def work(self) -> Path:
        """What is no result: claims, unfinished cells, caches."""
        return self.path / WORK

    def is_done(self, cell: str) -> bool:
        """Whether the results of a cell are there."""
        return (self.path / CELLS / cell / CELL).exists()

    def failure(self, cell: str) -> str | None:
        """Why a cell has failed since this start, which does not try it again."""
        failed = self.path / FAILED_CELLS / cell / FAILED
        with contextlib.suppress(FileNotFoundError):
            if failed.stat().st_mtime >= self.began:
                return str((read_object(failed) or {}).get("reason", ""))
        return None

    def states(self, cells: Iterable[str]) -> "dict[str, CellState]":
        """What is known of some cells, from three listings of folders."""
        claimed = {path.stem for path in (self.work / "claims").iterdir()}  # before those it made
        done, failed = (
            {path.name for path in self.path.glob(f"{name}/*")} for name in (CELLS, FAILED_CELLS)
        )
        found = {}
        for cell in cells:
            reason = self.failure(cell) if cell in failed else None
            owner = self.owner(cell) if cell in claimed else None
            found[cell] = CellState(cell in done, reason, owner)
        return found

    def write_failure(self, cell: str, reason: str, log: bytes = b"") -> None:
        """Note why a cell has no results."""
        folder = self.path / FAILED_CELLS / cell
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOG).write_bytes(log)
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        write_json(folder / FAILED, {"reason": reason, "when": when})

    def publish(self, cell: str, attempt: Path) -> None:
        """Put finished results in place by one rename; where they are already, nothing happens."""
        for path in attempt.iterdir():
            with path.open("rb") as handle:
                os.fsync(handle.fileno())
        try:
            attempt.rename(self.path / CELLS / cell)
        except OSError:
            if not self.is_done(cell):
                raise
        sync_folder(self.path / CELLS)
        shutil.rmtree(attempt, ignore_errors=True)
        shutil.rmtree(self.path / FAILED_CELLS / cell, ignore_errors=True)

    def share(self, cell: str) -> float:
        """Share of the requests of a running cell that are answered."""
        try:
            answered, asked = (self.work / "progress" / cell).read_text().split()
            return min(1.0, int(answered) / max(1, int(asked)))
        except (OSError, ValueError):
            return 0.0

    def apart(self) -> set[str]:
        """Cells whose rotation could not be exchanged in a loaded model."""
        return {path.name for path in (self.work / "apart").iterdir()}

    def turns(self, cell: str) -> list[Path]:
        """The claims on a cell, the one that counts last."""
        found = (self.work / "claims").glob(f"{cell}.*")
        return sorted(found, key=lambda path: int(path.suffix[1:]))

    def owner(self, cell: str) -> dict[str, Any] | None:
        """What the one who computes a cell wrote, and `claim`, the file; None: nobody does."""
        turns = self.turns(cell)
        if not turns or self._is_abandoned(turns[-1]):
            return None
        return {**(read_object(turns[-1]) or {}), "claim": turns[-1]}

    def claim(self, cell: str, **about: Any) -> Path | None:
        """The file of a new claim; None where the cell is over or another process has it."""
        turns = self.turns(cell)
        if turns and not self._is_abandoned(turns[-1]):
            return None
        number = int(turns[-1].suffix[1:]) + 1 if turns else 1
        path = self.work / "claims" / f"{cell}.{number}"
        about |= {"host": HERE, "pid": os.getpid()}
        try:
            with path.open("x", encoding="utf-8") as handle:
                json.dump(about, handle)
        except FileExistsError:
            return None
        if self.is_done(cell) or self.failure(cell) is not None:
            self.release(cell)  # also where the owner finished between the look and the claim
            return None
        return path

    def release(self, cell: str) -> None:
        """Remove the claims on a cell that is over, or whose owner has ended."""
        for path in self.turns(cell):
            path.unlink(missing_ok=True)

    def _is_abandoned(self, claim: Path) -> bool:
        """Whether the owner of a claim is dead."""
        try:
            age = file_system_time(self.path) - claim.stat().st_mtime
        except FileNotFoundError:
            return True  # released in this moment
        owner = read_object(claim)
        here = owner is not None and owner.get("host") == HERE  # None: not written yet
        return age > STALE_SECONDS or bool(here and owner and not psutil.pid_exists(owner["pid"]))


@dataclass(frozen=True)
class CellState:
    """What is known of a cell.

    Attributes:
        done: whether its results are there.
        failure: why it has failed since this start of the sweep; None where it has not.
        owner: of a running cell, see `Folder.owner`.
    """

    done: bool
    failure: str | None
    owner: dict[str, Any] | None

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to compute."""
        return self.done or self.failure is not None

    @property
    def is_open(self) -> bool:
        """Whether anybody may claim it."""
        return not self.is_over and self.owner is None


def file_system_time(folder: Path) -> float:
    """Seconds on the clock that dates the files of a folder, which may be another machine's."""
    probe = folder / WORK / f"clock.{platform.node()}.{os.getpid()}"
    probe.touch()
    seconds = probe.stat().st_mtime
    probe.unlink(missing_ok=True)
    return seconds


@contextlib.contextmanager
def beating(claim: Path) -> Iterator[None]:
    """Keep a claim alive during the block."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT_SECONDS):
            with contextlib.suppress(OSError):
                os.utime(claim)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
