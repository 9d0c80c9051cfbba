"""Runs one cell and ends every process that it has started, however the sweep itself ends.

    python -m leval_harness.sweep.supervisor CELL_FOLDER

Standard input is a pipe from the sweep. It reaches its end when the sweep closes it or dies, and
the supervisor then ends the cell. Standard output takes the cell's exit code, standard error is the
cell's log. Engines start processes in sessions of their own that outlive their parent; on Linux
the supervisor adopts them.
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

import psutil

from leval_harness.secrets import redact

GRACE_SECONDS = 3.0
"""Between SIGTERM and SIGKILL."""
TICK_SECONDS = 0.1
GIVE_UP_SECONDS = 30.0
_PR_SET_CHILD_SUBREAPER = 36


def main(folder: str) -> None:
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
    with (
        open(reading, encoding="utf-8", errors="surrogateescape", newline="") as lines,
        open(writing, "wb", buffering=0, closefd=False) as log,
    ):
        for line in lines:
            with contextlib.suppress(OSError):  # a full disk ends the cell, not its supervisor
                log.write(redact(line).encode("utf-8", "surrogateescape"))


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


if __name__ == "__main__":
    main(*sys.argv[1:])
