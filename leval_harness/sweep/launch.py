"""Start one cell's process, watch it, and judge how it ended. Used by every executor."""

import contextlib
import math
import os
import platform
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from leval_harness.cell_record import CellRecord, FailedRecord, read_record
from leval_harness.layout import CELL, DONE, FAILED, LOG, SCHEMA_VERSION
from leval_harness.secrets import VARIABLE, redact
from leval_harness.sweep.cell_files import clear_attempt, log_tail, why_not_done
from leval_harness.sweep.cell_main import EXIT_CODES, REASON_MARK, kind_of
from leval_harness.sweep.cells import PlannedCell
from leval_harness.sweep.supervisor import MARK, kill_marked
from resonance_vllm.files import write_json

POLL_SECONDS = 0.2
PATIENCE_SECONDS = 60.0
"""For a supervisor to end its cell."""


@dataclass(frozen=True, kw_only=True)
class CellOutcome:
    """How a cell's process ended: `done`, or `oom`, `disk`, `timeout`, `killed`, `error`."""

    cell_id: str
    kind: str
    reason: str = ""
    seconds: float = 0.0
    log_tail: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the cell's results exist."""
        return self.kind == "done"


def run_cell(
    cell: PlannedCell,
    folder: Path,
    command: str,
    tick: Callable[[], None] = lambda: None,
    environment: Mapping[str, str] | None = None,
) -> CellOutcome:
    """Compute one cell in a process of its own and judge the result by the files it left.

    A failure is also written to `failed.json`. After `cell.timeout` seconds the cell is ended.

    Args:
        cell: what to compute; its credentials reach the process by the environment.
        folder: of the cell.
        command: what the user typed, for the record.
        tick: called several times a second; what it raises ends the cell.
        environment: variables added to those of this process.
    """
    started, kills, timed_out = time.monotonic(), oom_kills(), False
    deadline = started + (math.inf if cell.timeout is None else cell.timeout)
    mark = f"{os.getpid()}-{time.time_ns()}"
    given = {**(environment or {}), MARK: mark}
    if cell.with_credentials is not None:
        given[VARIABLE] = cell.with_credentials.model_dump_json()
    try:
        supervisor = _start(cell.record, folder, redact(command), given)
    except OSError as error:
        return CellOutcome(cell_id=cell.id, kind=kind_of(error), reason=f"cannot start: {error}")
    assert supervisor.stdin is not None
    assert supervisor.stdout is not None
    with supervisor:
        try:
            while not select.select([supervisor.stdout], [], [], POLL_SECONDS)[0]:
                tick()
                if timed_out := time.monotonic() > deadline:
                    break
        finally:
            supervisor.stdin.close()
            ended = select.select([supervisor.stdout], [], [], PATIENCE_SECONDS)[0]
            output = supervisor.stdout.read() if ended else b""
    code = int(output) if output.lstrip(b"-").isdigit() else None
    if code is None:  # the supervisor was killed and could not end what the cell has started
        kill_marked(mark)
    seconds = round(time.monotonic() - started, 3)
    wrong = why_not_done(folder, cell.id)
    if wrong is None:  # an engine that aborts while it shuts down has still delivered
        return CellOutcome(cell_id=cell.id, kind="done", seconds=seconds)
    tail = log_tail(folder)
    limit = cell.timeout if timed_out else None
    kind, reason = judge(code, limit, oom_kills() > kills, tail, wrong)
    outcome = CellOutcome(cell_id=cell.id, kind=kind, reason=reason, seconds=seconds, log_tail=tail)
    _record_failure(folder, outcome)
    return outcome


def _start(
    record: CellRecord, folder: Path, command: str, environment: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    """Write the request and start the cell's supervisor with its output going to the log."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / DONE).unlink(missing_ok=True)
    attempt = {
        "host": {
            "name": platform.node(),
            "system": platform.platform(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
        },
        "command": command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    write_json(folder / CELL, record.model_copy(update=attempt).written())
    log = folder / LOG
    log.unlink(missing_ok=True)  # a process of an earlier attempt may still write to the old file
    with log.open("wb") as handle:
        return subprocess.Popen(
            [sys.executable, "-m", "leval_harness.sweep.supervisor", "cell", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=handle,
            start_new_session=True,
            env={**os.environ, **environment},
        )


def oom_kills() -> int:
    """How many processes the kernel has killed for lack of memory; 0 where it does not count."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def judge(
    code: int | None, timeout: float | None, oom_killed: bool, tail: list[str], wrong: str
) -> tuple[str, str]:
    """Kind and reason of a failure.

    Args:
        code: exit code of the cell; None where its supervisor could not report one.
        timeout: seconds after which the cell was ended; None where it was not.
        oom_killed: whether the kernel has killed a process for lack of memory meanwhile.
        tail: last lines of the log.
        wrong: what `why_not_done` says.
    """
    reasons = [line for line in tail if line.startswith(REASON_MARK)]
    last = (reasons or tail or ["no output"])[-1].removeprefix(REASON_MARK)
    if timeout is not None:
        return "timeout", f"not done after {timeout:g} s, so it was ended; last output: {last}"
    if code == -signal.SIGKILL and oom_killed:
        return "oom", "killed by the kernel: the machine ran out of memory"
    if code is None:
        return "killed", f"its supervisor process was killed; last output: {last}"
    if code < 0:
        known = {each.value: each.name for each in signal.Signals}
        name = known.get(-code, f"signal {-code}")  # real-time signals have no name
        return "killed", f"its process was ended by {name}; last output: {last}"
    if code == 0:
        return "error", f"its process exited with code 0, but: {wrong}"
    return next((kind for kind, number in EXIT_CODES.items() if number == code), "error"), last


def _record_failure(folder: Path, outcome: CellOutcome) -> None:
    with contextlib.suppress(OSError):  # on a full disk only the note is lost
        clear_attempt(folder)
        before = read_record(FailedRecord, folder / FAILED)
        failure = FailedRecord(
            schema_version=SCHEMA_VERSION,
            reason=outcome.reason,
            kind=outcome.kind,
            log_tail=tuple(outcome.log_tail),
            attempts=before.attempts + 1 if before else 1,
            seconds=outcome.seconds,
        )
        write_json(folder / FAILED, failure.written())
