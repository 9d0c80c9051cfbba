"""Start one cell's process, watch it, and say how it ended. Used by every executor."""

import contextlib
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

from leval_border.files import write_json
from leval_harness import secrets
from leval_harness.cell_record import CellRecord, FailedRecord, read_record
from leval_harness.layout import CELL, DONE, FAILED, LOG, SCHEMA_VERSION
from leval_harness.secrets import Secrets
from leval_harness.sweep.cell_files import clear_attempt, log_tail, why_not_done
from leval_harness.sweep.cell_main import EXIT_CODES, REASON_MARK, kind_of
from leval_harness.sweep.keeper import MARK, end_marked

POLL_SECONDS = 0.2
PATIENCE_SECONDS = 60.0
"""For a keeper to end its cell."""
OOM_COUNTERS = (
    Path("/sys/fs/cgroup/memory.events"),
    Path("/sys/fs/cgroup/memory/memory.oom_control"),
    Path("/proc/vmstat"),
)


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
        """Whether the cell's results are there."""
        return self.kind == "done"


def oom_kills() -> int:
    """How many processes the kernel has killed for want of memory, as far as it tells us."""
    total = 0
    for path in OOM_COUNTERS:
        with contextlib.suppress(OSError, ValueError):
            for line in path.read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    total += int(value)
    return total


def _ended(keeper: "subprocess.Popen[bytes]", said: bytearray, seconds: float) -> bool:
    """Whether a keeper has ended; what it says meanwhile is added to `said`."""
    assert keeper.stdout is not None
    until = time.monotonic() + seconds
    while select.select([keeper.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
        some = os.read(keeper.stdout.fileno(), 100)
        if not some:
            return True
        said += some
    return False


def run_cell(
    record: CellRecord,
    folder: Path,
    timeout: float | None,
    command: str,
    tick: Callable[[], None] = lambda: None,
    environment: Mapping[str, str] | None = None,
    kept: Secrets | None = None,
) -> CellOutcome:
    """Compute one cell in a process of its own and judge the result by the files it left.

    A failure is written to `failed.json` as well, if the disk takes it. After `timeout` seconds the
    cell is ended as hanging; `tick` is called several times a second, and what it raises ends it,
    too. `command` is what the user typed, for the record; `environment` adds to this process's.
    Credentials that the record lacks are `kept`.
    """
    started = time.monotonic()
    cell_id = record.cell_id
    mark = f"{os.getpid()}-{time.time_ns()}"
    try:
        given = {**(environment or {}), **secrets.to_environment(kept or []), MARK: mark}
        command = secrets.public(secrets.hidden(command, secrets.values(kept or [])))
        keeper = _start(record, folder, command, given)
    except OSError as error:
        return CellOutcome(cell_id=cell_id, kind=kind_of(error), reason=f"cannot start: {error}")
    kills = oom_kills()
    timed_out = False
    said = bytearray()
    with keeper:
        try:
            while not _ended(keeper, said, POLL_SECONDS) and not timed_out:
                tick()
                timed_out = timeout is not None and time.monotonic() - started > timeout
        finally:
            assert keeper.stdin is not None
            keeper.stdin.close()
            _ended(keeper, said, PATIENCE_SECONDS)
    code = int(said) if said.lstrip(b"-").isdigit() else None
    if code is None:  # its keeper was killed, and could not end what the cell has started
        end_marked(mark)
    seconds = round(time.monotonic() - started, 3)
    wrong = why_not_done(folder, cell_id)
    if wrong is None:  # an engine that aborts while it shuts down has still delivered
        return CellOutcome(cell_id=cell_id, kind="done", seconds=seconds)
    tail = log_tail(folder)
    kind, reason = _judge(code, timed_out, timeout, oom_kills() > kills, tail, wrong)
    outcome = CellOutcome(cell_id=cell_id, kind=kind, reason=reason, seconds=seconds, log_tail=tail)
    _record_failure(folder, outcome)
    return outcome


def _start(
    record: CellRecord, folder: Path, command: str, environment: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    """Write the request and start the process with its output going to the log."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / DONE).unlink(missing_ok=True)
    host = {
        "name": platform.node(),
        "system": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
    }
    now = datetime.now(UTC).isoformat(timespec="seconds")
    attempt = {"host": host, "command": command, "created": now}
    write_json(folder / CELL, record.model_copy(update=attempt).written())
    log = folder / LOG
    log.unlink(missing_ok=True)  # a new file, which no dying process of before can write to
    with log.open("wb") as handle:
        return subprocess.Popen(
            [sys.executable, "-m", "leval_harness.sweep.keeper", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=handle,
            start_new_session=True,
            env={**os.environ, **environment},
        )


def _judge(
    code: int | None,
    timed_out: bool,
    timeout: float | None,
    oom_killed: bool,
    tail: list[str],
    wrong: str,
) -> tuple[str, str]:
    """Kind and reason of a failure from exit code, kernel counters and the log's last lines."""
    reasons = [line for line in tail if line.startswith(REASON_MARK)]
    last = (reasons or tail or ["no output"])[-1].removeprefix(REASON_MARK)
    if timed_out:
        return "timeout", f"not done after {timeout:g} s, so it was ended; last output: {last}"
    if code == -signal.SIGKILL and oom_killed:
        return "oom", "killed by the kernel: the machine ran out of memory"
    if code is None:
        return "killed", f"the process that watches over it was ended; last output: {last}"
    if code < 0:
        known = {each.value: each.name for each in signal.Signals}
        name = known.get(-code, f"signal {-code}")  # real-time ones have no name
        return "killed", f"its process was ended by {name}; last output: {last}"
    if code == 0:
        return "error", f"it ended as if all were well, but {wrong}"
    return next((kind for kind, number in EXIT_CODES.items() if number == code), "error"), last


def _record_failure(folder: Path, outcome: CellOutcome) -> None:
    with contextlib.suppress(OSError):  # a full disk only loses the note
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
