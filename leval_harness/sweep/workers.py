"""The process of a worker, as the sweep sees it: started, watched, judged by how it ended."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from leval_harness.sweep import SweepError
from leval_harness.sweep.claims import HERE, Folder
from resonance_vllm.errors import printable
from resonance_vllm.files import read_object

DISK_FULL = 74
"""Exit code of a worker that found no room on the disk."""
GRACE_SECONDS = 10.0
ENDED_POLITELY = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Somebody ended the process, not the cell: it is tried again."""


@dataclass(frozen=True, kw_only=True)
class WorkerRequest:
    """What a worker reads from its standard input, as JSON.

    Attributes:
        folder: of the results.
        began: when this start of the sweep began, see `Folder`.
        sweep: which start of the sweep it belongs to.
        command: what the user typed.
        records: of the cells of its group.
        parent: process with which it ends.
        log: file that takes its output.
    """

    folder: str
    began: float
    sweep: str
    command: str
    records: Sequence[Mapping[str, Any]] = ()
    parent: int = 0
    log: str = ""

    @property
    def place(self) -> Folder:
        """The folder of the results."""
        return Folder(Path(self.folder), self.began)

    @property
    def cells(self) -> list[str]:
        """Ids of its cells."""
        return [record["cell_id"] for record in self.records]


@dataclass
class Worker:
    """A running worker, with a session of its own that all that it starts belongs to."""

    request: WorkerRequest
    group: str
    gpus: Sequence[str]
    process: "subprocess.Popen[bytes]"

    @classmethod
    def start(
        cls,
        request: WorkerRequest,
        group: str,
        gpus: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> "Worker":
        """Start the process; `environment` is added to that of this one."""
        log = request.place.work / "logs" / f"{request.sweep}-{os.getpid()}-{time.time_ns()}.txt"
        whole = {**asdict(request), "parent": os.getpid(), "log": str(log)}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-u", "-m", "leval_harness.sweep.worker"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(json.dumps(whole).encode())
        return cls(WorkerRequest(**whole), group, gpus, process)

    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self.process.poll() is not None

    def held(self) -> tuple[str, Mapping[str, Any]]:
        """The cell that it computes, or computed when it ended, and its claim; empty for none."""
        place = self.request.place
        for cell in self.request.cells:
            for path in place.turns(cell):
                claim = read_object(path) or {}
                if claim.get("host") == HERE and claim.get("pid") == self.process.pid:
                    return cell, claim
        return "", {}

    def judge(self) -> None:
        """After its end: note a cell that it died of, and free what it held.

        Raises:
            SweepError: the disk is full, or it ended before it could do anything.
        """
        self._signal(signal.SIGKILL)  # what it has started outlives a worker that is killed
        code, (cell, claim), place = self.process.returncode, self.held(), self.request.place
        log = Path(self.request.log)
        printed = log.read_bytes()
        if code == DISK_FULL:
            self.let_go()
            raise SweepError("the disk is full; what is done is kept. Make room first")
        if code and -code not in ENDED_POLITELY:  # else another worker takes it
            if not cell:
                raise SweepError(f"a worker ended with code {code}: {last_line(printed)}")
            known = {-each.value: f"was ended by {each.name}" for each in signal.Signals}
            end = known.get(code, f"ended with code {code}")
            hint = " (out of memory?)" if code == -signal.SIGKILL else ""
            reason = f"its process {end}{hint}; last output: {last_line(printed)}"
            place.write_failure(cell, reason, log_since(log, claim))
        self.let_go()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def ask_to_end(self) -> None:
        """Ask the process and all that it has started to end."""
        self._signal(signal.SIGTERM)

    def end(self) -> None:
        """End the process and all that it has started: first ask, then kill."""
        self.ask_to_end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(GRACE_SECONDS)
        self._signal(signal.SIGKILL)
        self.process.wait()

    def let_go(self) -> None:
        """After its end: leave its cell to others, or to the next start."""
        cell, _ = self.held()
        if cell:
            self.request.place.release(cell)
        Path(self.request.log).unlink(missing_ok=True)


def log_since(log: Path, claim: Mapping[str, Any]) -> bytes:
    """What a worker has printed since it claimed a cell."""
    with contextlib.suppress(OSError), log.open("rb") as handle:
        handle.seek(int(claim.get("offset", 0)))
        return handle.read()
    return b""


def last_line(log: bytes) -> str:
    """The last line of a log, fit for a terminal; a bar counts as its last state."""
    text = log[-64 * 1024 :].decode("utf-8", errors="replace")
    states = (line.rstrip().split("\r")[-1].strip() for line in text.split("\n"))
    lines = [state for state in states if state]
    return printable(lines[-1][:500]) if lines else "no output"
