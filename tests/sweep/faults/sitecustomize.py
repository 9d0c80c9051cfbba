"""Fault injection from outside: loaded by every Python whose PYTHONPATH has this folder.

`SWEEP_FAULT=ROLE:KIND:NUMBER` acts in the sweep's process or in a cell's (`ROLE` sweep or cell):
`kill` sends the process SIGKILL just before its NUMBER-th change of the results folder
(`SWEEP_FAULT_ROOT`), `count` appends how many there were to `SWEEP_FAULT_COUNT`. `orphans` makes a
process that ignores signals and hangs, with children that do so in sessions of their own, orphaned
and without its environment; their ids go to `SWEEP_FAULT_COUNT`. `SWEEP_FILE_LIMIT` is the largest
file, in bytes, that a cell may write: writing more fails as on a full disk.
"""

import atexit
import os
import signal
import sys
from pathlib import Path

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_EVENTS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "fcntl.flock")


def _role() -> str | None:
    words = sys.orig_argv
    if "leval_harness.sweep.cell_main" in words:
        return "cell"
    return "sweep" if "sweep" in words else None


def _install(kind: str, number: int, root: str) -> None:
    seen = 0

    def on_event(event: str, arguments: tuple) -> None:
        nonlocal seen
        if event == "open":
            path, _, flags = arguments
            if not isinstance(path, str) or not isinstance(flags, int) or not flags & _WRITES:
                return
        elif event in _EVENTS:
            path = arguments[0]
        else:
            return
        if event != "fcntl.flock" and not os.fspath(path).startswith(root):
            return
        seen += 1
        if kind == "kill" and seen == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(on_event)
    if kind == "count":
        record = os.environ["SWEEP_FAULT_COUNT"]
        exit_now = os._exit

        def write() -> None:
            with Path(record).open("a") as handle:
                handle.write(f"{_role()} {seen}\n")

        def counted_exit(code: int) -> None:
            write()
            exit_now(code)

        os._exit = counted_exit
        atexit.register(write)


def _hang_with_orphans() -> None:
    """Three generations that no polite signal ends; the last one is found by nothing but its id."""
    record = os.environ["SWEEP_FAULT_COUNT"]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.setpgid(0, 0)
        with Path(record).open("a") as handle:
            handle.write(f"{os.getpid()}\n")
        os.execve("/bin/sleep", ["engine", "3600"], {})
    if os.fork() == 0:
        os.setsid()
    with Path(record).open("a") as handle:
        handle.write(f"{os.getpid()}\n")
    while True:
        signal.pause()


_fault, _me = os.environ.get("SWEEP_FAULT", "none:none:0").split(":"), _role()
if _me == "cell" and "SWEEP_FILE_LIMIT" in os.environ:
    import resource

    _limit = int(os.environ["SWEEP_FILE_LIMIT"])
    resource.setrlimit(resource.RLIMIT_FSIZE, (_limit, _limit))
if _me == _fault[0] and _fault[1] in ("kill", "count"):
    _install(_fault[1], int(_fault[2]), os.environ["SWEEP_FAULT_ROOT"])
if _me == _fault[0] and _fault[1] == "orphans":
    _hang_with_orphans()
