"""Programs as forks of a process that has imported everything: they start in milliseconds."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SERVER = Path(__file__).parents[1] / "sweep" / "faults" / "forks.py"
COMMAND = "from leval_harness.cli.main import main; main()"
# The report of a sweep takes longer than a tiny one's runs.
SWEEP = f"from leval_harness.cli import sweep; sweep._report = lambda folder: True; {COMMAND}"


class Forks:
    """A process that forks Python programs on request, one at a time; runs are forked too."""

    def __init__(self, scratch: Path, name: str = "fork") -> None:
        self.out, self.err = scratch / f"{name}.out", scratch / f"{name}.err"
        self.process = subprocess.Popen(
            [sys.executable, str(SERVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.read() == "ready"

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def begin(self, code: str, *words: object, **request: Any) -> int:
        """Start a program; its process id."""
        request = {"err": str(self.err), "environment": {}, **request}
        request |= {"code": code, "words": list(map(str, words)), "folder": str(Path.cwd())}
        request["environment"] = {**os.environ, **request["environment"]}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"out": str(self.out), **request}) + "\n")
        self.process.stdin.flush()
        return int(self.read().removeprefix("pid "))

    def ended(self) -> int:
        """Wait for the program; its exit code, negative for a signal."""
        return int(self.read().removeprefix("ended "))

    def python(
        self, code: str, *words: object, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program, as `subprocess.run` of Python with `-c`."""
        self.begin(code, *words, environment=environment)
        ended = self.ended()
        return subprocess.CompletedProcess(words, ended, self.said(), self.err.read_text())

    def command(self, *words: object, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run `leval-harness` with these arguments."""
        return self.python(COMMAND, *words, **environment)

    def sweep(self, config: Path, out: Path, *options: str, **environment: str) -> int:
        """Run a sweep without its report to its end; `said` gives all that it printed."""
        words = ("sweep", config, "--out", out, *options)
        self.begin(SWEEP, *words, environment=environment, err=str(self.out))
        return self.ended()

    def said(self) -> str:
        return self.out.read_text()


@contextlib.contextmanager
def forked(scratch: Path, name: str = "fork") -> Iterator[Forks]:
    made = Forks(scratch, name)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()
