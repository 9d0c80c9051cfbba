"""What people are told while a sweep runs, and what a failure is called."""

import io
import re
import signal
import sys
import threading
import time
from pathlib import Path

import click
import pytest
from rich.console import Console

from leval_harness.cell_record import CellRecord, MethodRecord, ModelRecord
from leval_harness.sweep.cell_main import (
    EXIT_CODES,
    REASON_MARK,
    CellError,
    kind_of,
    wait_for_text,
)
from leval_harness.sweep.cells import PlannedCell
from leval_harness.sweep.launch import CellOutcome, judge
from leval_harness.sweep.progress import Progress, _status, display, duration


def cell(ident: str) -> PlannedCell:
    record = CellRecord(
        schema_version=1,
        cell_id=ident,
        model=ModelRecord(name="m"),
        method=MethodRecord(name=ident),
        tasks=("t",),
        context_length=8192,
    )
    return PlannedCell(record=record)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")],
)
def test_durations_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_time_left_goes_by_the_rate_at_which_cells_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    cells = one, two, three = [cell(name) for name in "abc"]
    show = Progress(cells, 2, tmp_path, lambda line: None)
    show.start(one)
    clock[0] = 60.0
    assert show.eta() == "ETA unknown"
    show.end(one, CellOutcome(cell_id="a", kind="done", seconds=60.0))
    assert show.eta() == "ETA 2 min 00 s"
    show.start(two)
    clock[0] = 80.0
    show.end(two, CellOutcome(cell_id="b", kind="oom", seconds=20.0))
    assert show.eta() == "ETA 1 min 20 s", "a cell that failed says nothing of the rate"
    show.end(three, CellOutcome(cell_id="c", kind="done", seconds=100.0))
    assert show.eta() == "ETA 0 s"


def test_plain_lines_for_every_event_and_a_heartbeat_with_the_last_words(tmp_path: Path) -> None:
    lines: list[str] = []
    one, two = cell("a"), cell("b")
    show = Progress([one, two], 1, tmp_path, lines.append, heartbeat=0.0)
    show.start(one)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "log.txt").write_text("first\n 10%\r 90%\nfatal: not a git repository\n")
    show.tick()
    show.end(one, CellOutcome(cell_id="a", kind="done", seconds=60.0))
    show.start(two)
    show.end(two, CellOutcome(cell_id="b", kind="oom", reason="no memory", seconds=2.0))
    assert [click.unstyle(line) for line in lines] == [
        "[1/3] m | a @ 8192 | t: started, ETA unknown",
        "[1/3] m | a @ 8192 | t: 0 s, ETA unknown | 90%",
        "[2/3] m | a @ 8192 | t: done after 1 min 00 s, ETA 0 s",
        "[2/3] m | b @ 8192 | t: started, ETA 0 s",
        "[3/3, 1 failed] m | b @ 8192 | t: failed (oom): no memory after 2 s, ETA 0 s",
    ]


def test_a_terminal_shows_a_bar_and_lines_of_their_own_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "log.txt").write_text("first\n 10%\r 90% [x]")
    one, two = cell("a"), cell("b")
    with display([one, two], 1, tmp_path) as show:
        show.start(one)
        show.tick()
        drawn = io.StringIO()
        Console(file=drawn, width=60).print(show)
        show.end(one, CellOutcome(cell_id="a", kind="done", seconds=60.0))
        show.end(two, CellOutcome(cell_id="b", kind="oom", reason="no [b]", seconds=2.0))
    state, running, last_line, bar = drawn.getvalue().splitlines()
    assert state == "[1/3] elapsed 0 s, ETA unknown"
    assert running == "m | a @ 8192 | t: 0 s"
    assert last_line == "  90% [x]"
    assert bar.startswith("━")
    lines = re.split(r"\r?\n|\r|\x1b\[\d*[AK]", screen.getvalue())
    assert "[2/3] m | a @ 8192 | t: done after 1 min 00 s, ETA 0 s" in lines
    failed = "[3/3, 1 failed] m | b @ 8192 | t: failed (oom): no [b] after 2 s, ETA 0 s"
    assert f"\x1b[31m{failed}\x1b[0m" in lines


class OutOfMemoryError(RuntimeError):
    """As torch names it."""


def test_kinds_of_failure_by_exception_and_by_what_caused_it() -> None:
    assert kind_of(OutOfMemoryError("x")) == "oom"
    assert kind_of(MemoryError()) == "oom"
    assert (
        kind_of(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")) == "oom"
    )
    assert kind_of(OSError(28, "No space left on device")) == "disk"
    assert kind_of(CellError(27, "the disk is full")) == "disk"
    assert kind_of(OSError(2, "No such file")) == "error"
    wrapped = ValueError("engine failed")
    wrapped.__cause__ = OutOfMemoryError("x")
    assert kind_of(wrapped) == "oom"


@pytest.mark.parametrize(
    ("code", "timed_out", "oom_killed", "tail", "kind", "reason"),
    [
        (1, False, False, [f"{REASON_MARK}ValueError: bad"], "error", "ValueError: bad"),
        (EXIT_CODES["oom"], False, False, [f"{REASON_MARK}M: full"], "oom", "M: full"),
        (EXIT_CODES["disk"], False, False, [], "disk", "no output"),
        (-signal.SIGKILL, False, True, ["x"], "oom", "killed by the kernel"),
        (-signal.SIGKILL, False, False, ["x"], "killed", "ended by SIGKILL; last output: x"),
        (-signal.SIGTERM, True, False, ["x"], "timeout", "not done after 5 s"),
        (None, True, False, ["x"], "timeout", "last output: x"),
        (0, False, False, ["x"], "error", "its process exited with code 0, but: not run yet"),
    ],
)
def test_a_failure_gets_kind_and_reason(
    code: int | None, timed_out: bool, oom_killed: bool, tail: list[str], kind: str, reason: str
) -> None:
    got = judge(code, 5.0 if timed_out else None, oom_killed, tail, "not run yet")
    assert got[0] == kind
    assert reason in got[1]


def test_the_last_line_of_a_log_is_waited_for(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    assert not wait_for_text(log, "computed")
    log.write_text("begun\n" + 5000 * "x")
    assert not wait_for_text(log, "computed", seconds=0.05)
    late = threading.Timer(0.2, lambda: log.write_text(5000 * "x" + "\ncomputed\n"))
    late.start()
    assert wait_for_text(log, "computed", seconds=10)
    late.join()


def test_a_status_is_what_was_said_without_its_time_and_logger() -> None:
    said = "2026-11-24 22:41:09,897 leval_harness.sweep.cell: model ready after 4.1 s"
    assert _status([said, "fatal: not a git repository"]) == "model ready after 4.1 s"
    assert _status([said, "Reading:  48%|##  | 6.95k/14.3k"]).startswith("Reading:  48%")
    assert _status(["fatal: not a git repository"]) == ""
