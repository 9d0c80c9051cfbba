"""Ends what Ray has started for a sweep when that is gone: two of its agents stay otherwise.

    python -m leval_harness.sweep.ray_guard PID

PID is the sweep's process, which holds the other end of standard input. Ray's processes hang on it
as its descendants; they are remembered as long as it lives.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from leval_harness.sweep.keeper import descendants

TICK_SECONDS = 0.5


def started(pid: int) -> str | None:
    """When a process began, which tells it from a later one of the same id; None without it."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    return None


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Whatever this process starts inside of this dies with it, however it ends (Linux)."""
    if sys.platform != "linux":
        yield
        return
    guard = subprocess.Popen(
        [sys.executable, "-m", "leval_harness.sweep.ray_guard", str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        with guard:
            pass  # its standard input ends, and with it the guard


def main(parent: int) -> None:
    """Remember what hangs on a process until standard input ends, then end it."""
    seen: dict[int, str | None] = {}
    while not select.select([0], [], [], TICK_SECONDS)[0]:
        for pid in descendants(parent) - {os.getpid()}:
            seen.setdefault(pid, started(pid))
    for pid, since in seen.items():
        if since is not None and started(pid) == since:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
