"""Sweeps as forks of a process that has imported everything: they start in milliseconds."""

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from leval_harness.locks import is_locked

FORKS = Path(__file__).parents[1] / "sweep" / "faults" / "forks.py"


class Forks:
    """A process that forks sweeps on request."""

    def __init__(self, scratch: Path, name: str = "sweep") -> None:
        self.log = scratch / f"{name}.log"
        self.process = subprocess.Popen(
            [sys.executable, str(FORKS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.read() == "ready"

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def run(
        self,
        config: Path,
        out: Path,
        *options: str,
        fault: str = "none:none:0",
        after: float | None = None,
        victim: str = "sweep",
    ) -> int:
        """One sweep; with `after`, its process or a cell's is killed after so many seconds."""
        request = {"arguments": [str(config), "--out", str(out), *options], "fault": fault}
        request |= {"root": str(out), "log": str(self.log)}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        pid = int(self.read().removeprefix("pid "))
        if after is not None:
            killer = threading.Timer(after, kill, (pid, victim, out))
            killer.start()
        ended = int(self.read().removeprefix("ended "))
        if after is not None:
            killer.cancel()
        return ended

    def said(self) -> str:
        return self.log.read_text()


def kill(sweep: int, victim: str, out: Path) -> None:
    with contextlib.suppress(OSError, IndexError):
        if victim == "sweep":
            os.kill(sweep, 9)
        for held in out.glob("*/*/.lock") if victim == "cell" else ():
            if is_locked(held):
                os.kill(int(held.read_text().split()[1]), 9)
                return


@contextlib.contextmanager
def forked(scratch: Path, name: str = "sweep") -> Iterator[Forks]:
    made = Forks(scratch, name)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()
