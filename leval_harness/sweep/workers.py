"""The process of a worker, as the sweep sees it: started, watched, judged by how it ended."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from leval_harness.sweep import SweepError
from leval_harness.sweep.claims import HERE, Folder
from resonance_vllm.errors import printable

ANEW, DISK_FULL = 70, 74
"""Exit codes of a worker: its cell has failed and the next needs a new process; no room on disk."""
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
        timeout: seconds after which a cell is ended.
        records: of the cells of its group.
        parent: process with which it ends.
        log: file that takes its output.
    """

    folder: str
    began: float
    sweep: str
    command: str
    timeout: float | None
    records: Sequence[Mapping[str, Any]]
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


class Held(NamedTuple):
    """A cell that a worker computes, and its claim."""

    cell: str
    claim: Mapping[str, Any]


@dataclass
class Worker:
    """A running worker.

    Attributes:
        request: what it was given.
        group: key of its group.
        gpus: names of those that it sees.
        process: of the worker.
        family: processes that it has started, as last seen: they outlive a worker that is killed.
    """

    request: WorkerRequest
    group: str
    gpus: list[str]
    process: "subprocess.Popen[bytes]"
    family: list[psutil.Process] = field(default_factory=list)
    late: str = ""
    oom_kills: int = 0

    @classmethod
    def start(
        cls,
        request: WorkerRequest,
        group: str,
        gpus: Sequence[str],
        environment: Mapping[str, str],
    ) -> "Worker":
        """Start the process; `environment` is added to that of this one."""
        place = request.place
        log = place.work / "logs" / f"{request.sweep}-{os.getpid()}-{time.time_ns()}.txt"
        whole = {**asdict(request), "parent": os.getpid(), "log": str(log)}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-u", "-m", "leval_harness.sweep.worker"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, **environment},
            )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(json.dumps(whole).encode())
        request = WorkerRequest(**whole)
        return cls(request, group, list(gpus), process, oom_kills=oom_kills())

    def has_ended(self) -> bool:
        """Whether the process is gone; one whose cell takes too long is ended."""
        if self.process.poll() is None:
            with contextlib.suppress(psutil.Error):
                self.family = psutil.Process(self.process.pid).children(recursive=True)
            limit, held = self.request.timeout, self.held()
            if limit and held and time.time() - held.claim["since"] > limit:
                self.late = f"not done after {limit:g} s, so it was ended"
                self.terminate()
                self.end()
        return self.process.poll() is not None

    def held(self) -> Held | None:
        """The cell that it computes, or computed when it ended."""
        place = self.request.place
        for cell in self.request.cells:
            for claim in place.claims_of(cell):
                if claim.get("host") == HERE and claim.get("pid") == self.process.pid:
                    return Held(cell, claim)
        return None

    def judge(self) -> None:
        """After its end: note a cell that it died of, and free what it held.

        Raises:
            SweepError: the disk is full, or it ended before it could do anything.
        """
        self.end()
        code, held, place = self.process.returncode, self.held(), self.request.place
        log = Path(self.request.log)
        polite = not self.late and -code in ENDED_POLITELY  # its claim is taken over
        if held is not None and not polite:
            if code != DISK_FULL:
                place.write_failure(held.cell, self._reason(code, log), log_since(log, held.claim))
            place.release(held.cell)
        elif code not in (0, ANEW, DISK_FULL) and not polite:
            raise SweepError(f"a worker ended with code {code}: {last_line(log.read_bytes())}")
        if code == DISK_FULL:
            raise SweepError("the disk is full; what is done is kept. Make room first")
        log.unlink(missing_ok=True)

    def _reason(self, code: int, log: Path) -> str:
        last = f"last output: {last_line(log.read_bytes())}"
        if self.late:
            return f"{self.late}; {last}"
        if code == -signal.SIGKILL and oom_kills() > self.oom_kills:
            return "its process was killed by the kernel: the machine ran out of memory"
        if code < 0:
            known = {each.value: each.name for each in signal.Signals}
            return f"its process was ended by {known.get(-code, f'signal {-code}')}; {last}"
        return f"its process ended with code {code}; {last}"

    def terminate(self) -> None:
        """Ask the process and all that it has started to end."""
        with contextlib.suppress(psutil.Error):
            self.family = psutil.Process(self.process.pid).children(recursive=True)
        for each in self.family:
            with contextlib.suppress(psutil.Error):
                each.terminate()
        self.process.terminate()

    def end(self) -> None:
        """Wait for the end of the process and all that it has started, then kill what is left."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(GRACE_SECONDS)
        self.process.kill()
        self.process.wait()
        for each in psutil.wait_procs(self.family, timeout=1.0)[1]:
            with contextlib.suppress(psutil.Error):
                each.kill()

    def let_go(self) -> None:
        """After it was stopped: leave its cell to the next start."""
        if (held := self.held()) is not None:
            self.request.place.release(held.cell)
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


def oom_kills() -> int:
    """How many processes the kernel has killed for lack of memory; 0 where it does not count."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
