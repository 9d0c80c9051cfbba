"""Ends every process that a sweep has started, however the sweep itself ends.

    python -m leval_harness.sweep.supervisor cell CELL_FOLDER
    python -m leval_harness.sweep.supervisor ray PID

Standard input is a pipe from the sweep. It reaches its end when the sweep closes it or dies, and
the supervisor then ends the processes that it watches. `cell` runs one cell: its standard output
takes the cell's exit code, its standard error is the cell's log. Engines start processes in
sessions of their own that outlive their parent; on Linux the supervisor adopts them. `ray` kills
the descendants of a sweep that has started a Ray cluster.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import psutil

from leval_harness.secrets import redact

MARK = "LEVAL_HARNESS_CELL"
"""Environment variable that a cell hands down to all processes that it starts."""
GRACE_SECONDS = 3.0
"""Between SIGTERM and SIGKILL."""
TICK_SECONDS = 0.1
RAY_TICK_SECONDS = 0.5
GIVE_UP_SECONDS = 30.0
LONGEST_LINE = 1 << 16
"""Characters that are copied to the log at once."""
_PR_SET_CHILD_SUBREAPER = 36


def run_cell_process(folder: str) -> None:
    """Run a cell until it ends or standard input does, then end all processes below this one."""
    # Ray kills the children of a worker that it ends. After this fork we are none of them.
    if os.fork():
        os._exit(0)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    command = [sys.executable, "-u", "-m", "leval_harness.sweep.cell_main", folder]
    command += ["--parent", str(os.getpid())]
    exit_codes: dict[int, int] = {}
    reading, writing = os.pipe()
    copier = threading.Thread(target=copy_redacted, args=(reading, 2), daemon=True)
    copier.start()
    cell = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=writing, stderr=writing, start_new_session=True
    )
    os.close(writing)
    with contextlib.suppress(KeyboardInterrupt):
        while cell.pid not in exit_codes:
            if select.select([0], [], [], TICK_SECONDS)[0] and not os.read(0, 1):
                break
            _reap(exit_codes)
    _end_descendants(exit_codes, 1.0 if cell.pid in exit_codes else GRACE_SECONDS)
    if sys.platform != "linux":  # orphans are adopted on Linux only
        with contextlib.suppress(OSError):
            os.killpg(cell.pid, signal.SIGKILL)
    copier.join(timeout=1.0)
    os.write(1, str(exit_codes.get(cell.pid)).encode())


def copy_redacted(reading: int, writing: int) -> None:
    """Copy lines to a log without credentials; a carriage return ends a line."""
    log = BoundedLog(writing)
    lines = open(reading, encoding="utf-8", errors="surrogateescape", newline="")  # noqa: SIM115
    rest = ""
    while line := rest + lines.readline(LONGEST_LINE - len(rest)):
        # a longer line is divided between words, as a credential has none inside
        whole = line.endswith(("\n", "\r")) or len(line) < LONGEST_LINE
        end = len(line) if whole else line.rfind(" ") + 1 or len(line)
        line, rest = line[:end], line[end:]
        with contextlib.suppress(OSError):  # a full disk ends the cell, not its supervisor
            log.write(redact(line).encode("utf-8", "surrogateescape"))


class BoundedLog:
    """Writes to a file and keeps its first and its last bytes, at most `HEAD + 2 * TAIL` in all.

    The file stays complete up to its last byte while it is written, so that it can be followed.
    """

    HEAD = TAIL = 1 << 20

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.size = self.left_out = 0
        self.tail = bytearray()

    def write(self, data: bytes) -> None:
        """Append bytes; where the file grows too long, its middle is left out."""
        self.tail += data[max(0, self.HEAD - self.size) :]
        self.size += len(data)
        if (extra := len(self.tail) - self.TAIL) > self.TAIL:
            self.left_out += extra
            del self.tail[:extra]
            os.ftruncate(self.descriptor, self.HEAD)
            os.lseek(self.descriptor, self.HEAD, os.SEEK_SET)
            data = b"\n[... %d bytes left out ...]\n" % self.left_out + self.tail
        while data:
            data = data[os.write(self.descriptor, data) :]


def _reap(exit_codes: dict[int, int]) -> None:
    """Collect the exit codes of child processes that have ended, adopted ones included."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            exit_codes[ended[0]] = os.waitstatus_to_exitcode(ended[1])


def _end_descendants(exit_codes: dict[int, int], grace: float) -> None:
    """Send SIGTERM to every process below this one, and SIGKILL after `grace` seconds."""
    this, began = psutil.Process(), time.monotonic()
    terminated: set[psutil.Process] = set()
    while (elapsed := time.monotonic() - began) < GIVE_UP_SECONDS:
        _reap(exit_codes)
        left = set(this.children(recursive=True))
        if not left:
            return
        for process in left if elapsed > grace else left - terminated:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGKILL if elapsed > grace else signal.SIGTERM)
        terminated |= left
        time.sleep(0.02)


def kill_marked(mark: str) -> None:
    """Kill what a cell has started and whose supervisor was killed, found by its environment."""
    for process in psutil.process_iter(["environ"]):
        if (process.info["environ"] or {}).get(MARK) == mark:
            with contextlib.suppress(psutil.Error):
                process.kill()


@contextlib.contextmanager
def descendants_die_with_us() -> Iterator[None]:
    """Kill what this process starts inside the block when the block or this process ends.

    Two of Ray's agents outlive the process that has started them.
    """
    guard = subprocess.Popen(
        [sys.executable, "-m", "leval_harness.sweep.supervisor", "ray", str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    with guard:  # its end closes standard input and waits
        yield


def kill_descendants_of(pid: int) -> None:
    """Remember the descendants of a process until standard input ends, then kill them."""
    seen: set[psutil.Process] = set()
    while not select.select([0], [], [], RAY_TICK_SECONDS)[0]:
        with contextlib.suppress(psutil.NoSuchProcess):
            seen |= set(psutil.Process(pid).children(recursive=True))
    for process in seen - {psutil.Process()}:
        with contextlib.suppress(psutil.Error):
            process.kill()


def main(kind: str, argument: str) -> None:
    """Supervise a cell or the descendants of a sweep."""
    if kind == "cell":
        run_cell_process(argument)
    else:
        kill_descendants_of(int(argument))


if __name__ == "__main__":
    main(*sys.argv[1:])
