"""Stands between a sweep and one cell's process: ends whatever that cell has started.

    python -m leval_harness.sweep.keeper CELL_FOLDER

Standard input stays open as long as somebody wants the cell: its end, with the sweep's process
however that ends, ends the cell. Standard output takes the cell's exit code, standard error is the
cell's log. Engines start processes of their own, in sessions of their own, that outlive their
parent; on Linux the kernel hands all of them to the keeper when they are orphaned.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from leval_harness import secrets

GRACE_SECONDS = 3.0
"""From a polite signal to the one that cannot be ignored."""
TICK_SECONDS = 0.1
_GIVE_UP_SECONDS = 30.0
_LONGEST = 1 << 16
_PR_SET_CHILD_SUBREAPER = 36
MARK = "LEVAL_HARNESS_CELL"
"""Environment variable that a cell hands down to all that it starts."""


def adopt_orphans() -> None:
    """Become the parent of every orphan among this process's descendants (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def descendants(root: int) -> set[int]:
    """Process ids of everything that a process has started, and what that has."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    waiting = [root]
    while waiting:
        new = set(children.get(waiting.pop(), ())) - found
        found |= new
        waiting += new
    return found


def _parents() -> Iterable[tuple[int, int]]:
    """Process and parent of every process of this machine."""
    if sys.platform != "linux":
        told = subprocess.run(["ps", "-axo", "pid=,ppid="], capture_output=True, text=True)
        return [(int(pid), int(parent)) for pid, parent in map(str.split, told.stdout.splitlines())]
    pairs = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # the name of the program, in brackets, may hold anything
            after = path.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:  # it has ended since
            continue
        pairs.append((int(path.parent.name), int(after[1])))
    return pairs


def end_marked(mark: str) -> None:
    """End what a cell has started, told by its environment: for a keeper that was killed."""
    wanted = f"{MARK}={mark}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # another user's, or ended since
            if wanted in path.read_bytes().split(b"\0"):
                _signal(int(path.parent.name), signal.SIGKILL)


class Kept:
    """A cell's process and all that comes of it."""

    def __init__(self, command: list[str], log: int) -> None:
        self.code: int | None = None
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )

    def reap(self) -> bool:
        """Take note of children that have ended; whether any is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.process.pid:
                self.code = self.process.returncode = os.waitstatus_to_exitcode(status)

    def end(self, grace: float, meanwhile: Callable[[], None]) -> None:
        """End the cell and everything below this process: politely, then not."""
        began = time.monotonic()
        sent: set[int] = set()
        while self.reap() and time.monotonic() - began < _GIVE_UP_SECONDS:
            late = time.monotonic() - began > grace
            there = descendants(os.getpid())
            for pid in there if late else there - sent:
                _signal(pid, signal.SIGKILL if late else signal.SIGTERM)
            sent |= there
            meanwhile()
            time.sleep(0.02)
        if sys.platform != "linux":  # nobody hands orphans over there
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                return


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


class Log:
    """The cell's log, into which nothing passes that must not be seen."""

    def __init__(self, hidden: Iterable[str]) -> None:
        self.hidden = [text.encode() for text in hidden]
        self.kept = b""
        self.reading, self.writing = os.pipe() if self.hidden else (-1, 2)
        self.inputs = [self.reading] if self.hidden else []
        for descriptor in self.inputs:
            os.set_blocking(descriptor, False)

    def pass_on(self, last: bool = False) -> None:
        """Write what has come in whole lines; at the end, the rest."""
        while self.hidden:
            try:
                some = os.read(self.reading, 1 << 16)
            except BlockingIOError:
                break
            if not some:
                break
            self._write(some)
        if last:
            self._flush(len(self.kept))

    def _write(self, some: bytes) -> None:
        self.kept += some
        # a progress bar is no line; what is longer than any line of words is written as it is
        end = max(self.kept.rfind(b"\n"), self.kept.rfind(b"\r")) + 1
        self._flush(end or (len(self.kept) - _LONGEST if len(self.kept) > 2 * _LONGEST else 0))

    def _flush(self, end: int) -> None:
        ready, self.kept = self.kept[:end], self.kept[end:]
        for text in self.hidden:
            ready = ready.replace(text, secrets.HIDDEN.encode())
        with contextlib.suppress(OSError):  # a full disk ends the cell, not its keeper
            while ready:
                ready = ready[os.write(2, ready) :]


def main(folder: str) -> None:
    """Run a cell to its end, or until standard input ends."""
    # Ray kills the children of a worker that it ends; this is none any more.
    if os.fork():
        os._exit(0)
    adopt_orphans()
    wanted = True

    def stop(number: int, frame: object) -> None:
        nonlocal wanted
        wanted = False

    signal.signal(signal.SIGTERM, stop)
    program = [sys.executable, "-u", "-m", "leval_harness.sweep.cell_main", folder]
    log = Log(secrets.values(secrets.from_environment()))
    cell = Kept([*program, "--parent", str(os.getpid())], log.writing)
    while cell.reap() and cell.code is None and wanted:
        readable = select.select([0, *log.inputs], [], [], TICK_SECONDS)[0]
        wanted = 0 not in readable or bool(os.read(0, 1))
        log.pass_on()
    cell.end(GRACE_SECONDS if cell.code is None else 1.0, log.pass_on)
    log.pass_on(last=True)
    os.write(1, str(cell.code).encode())


if __name__ == "__main__":
    main(sys.argv[1])
