"""What people are told while a sweep runs, and what a failure is called."""

import io
import re
import signal
import sys
import time
from pathlib import Path

import click
import pytest
from rich.console import Console

from leval_harness.cell_record import CellRecord, MethodRecord, ModelRecord
from leval_harness.sweep.cell_main import EXIT_CODES, REASON_MARK, CellError, kind_of
from leval_harness.sweep.cells import PlannedCell
from leval_harness.sweep.estimate import Pace
from leval_harness.sweep.launch import CellOutcome, _judge
from leval_harness.sweep.progress import Progress, display, duration


def cell(ident: str, model: str = "m", speed: float | None = None) -> PlannedCell:
    record = CellRecord(
        schema_version=1,
        cell_id=ident,
        model=ModelRecord(name=model),
        method=MethodRecord(name=ident),
        tasks=("t",),
        context_length=8192,
    )
    return PlannedCell(record=record, tokens_per_second=speed)


def paced(**work: float) -> Pace:
    """A pace of cells whose work is known."""
    pace = Pace([])
    pace.work = work
    return pace


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")],
)
def test_durations_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_remaining_time_goes_by_the_work_and_the_pace_so_far() -> None:
    pace, a, b, c = paced(a=10.0, b=30.0, c=20.0), cell("a"), cell("b"), cell("c")
    assert pace.remaining([(b, 0.0)]) is None
    pace.add(a, 5.0)
    assert pace.remaining([(b, 0.0), (c, 0.0)]) == 25.0
    assert pace.remaining([(b, 5.0), (c, 0.0)]) == 20.0
    assert pace.remaining([(b, 500.0), (c, 0.0)]) == 10.0, "a late cell is about to end"
    assert pace.remaining([(b, 0.0), (c, 0.0)], parallel=2) == 12.5


def test_a_model_is_reckoned_by_itself_then_by_its_config_then_by_the_others() -> None:
    pace = paced(a=10.0, b=30.0, c=20.0, d=20.0)
    pace.add(cell("a", "slow"), 100.0)
    assert pace.seconds(cell("b", "slow", speed=1000.0)) == 300.0
    assert pace.seconds(cell("c", "guessed", speed=10.0)) == 2.0
    assert pace.seconds(cell("d", "unknown")) == 200.0


def test_a_cell_of_unknown_documents_is_reckoned_as_the_mean_of_the_others() -> None:
    assert Pace([cell("a"), cell("b")]).work == {"a": 1.0, "b": 1.0}


def test_the_configs_guess_serves_until_something_was_measured(tmp_path: Path) -> None:
    one, two, pace = cell("a", speed=0.5), cell("b", speed=0.5), paced(a=10.0, b=30.0)
    show = Progress([one, two], 0, pace, tmp_path, lambda line: None)
    assert show.eta() == "ETA roughly 1 min 20 s"
    pace.add(one, 5.0)
    show.waiting.pop("a")
    assert show.eta() == "ETA 15 s"


def test_the_bar_of_a_running_cell_corrects_a_guess_that_was_too_fast(tmp_path: Path) -> None:
    """A guess of 80 s stood unchanged for the ten minutes that the first cell took."""
    one, two = cell("a", speed=0.5), cell("b", speed=0.5)
    show = Progress([one, two], 0, paced(a=10.0, b=30.0), tmp_path, lambda line: None)
    show.start(one)
    show.running["a"] = (one, time.monotonic() - 100.0)
    (tmp_path / "a").mkdir()
    log = tmp_path / "a" / "log.txt"
    log.write_text("Reading:   5%|5 | 1/20 [01:40<30:00]")
    assert show.eta() == "ETA roughly 5 min 00 s", "it takes 100 s at least, the other thrice that"
    log.write_text(
        "Loading weights: 100%|#| 9/9 [00:05<00:00]\rReading:  50%|5 | 10/20 [01:40<01:40]"
    )
    assert show.eta() == "ETA roughly 11 min 40 s", "100 s of 200, and 600 for three times the work"
    log.write_text("Loading weights: 100%|#| 9/9 [00:05<00:00]")
    assert show.eta() == "ETA roughly 11 min 40 s", "another bar does not take that back"


def test_a_bar_that_stands_still_does_not_make_the_end_move_away(tmp_path: Path) -> None:
    """Over long texts a bar moves every few minutes; between, the ETA grew by twice the time."""
    one = cell("a", speed=0.5)
    show = Progress([one], 0, paced(a=10.0), tmp_path, lambda line: None)
    show.start(one)
    (tmp_path / "a").mkdir()

    def eta(ran: float, bar: str) -> str:
        show.running["a"] = (one, time.monotonic() - ran)
        (tmp_path / "a" / "log.txt").write_text(bar)
        return show.eta()

    assert eta(220, "Reading:  25%|2 | 1/4 [03:20<10:00, 61.4tok/s]") == "ETA roughly 10 min 00 s"
    assert eta(400, "Reading:  25%|2 | 1/4 [03:20<10:00, 61.4tok/s]") == "ETA roughly 7 min 00 s"
    assert eta(420, "Reading:  50%|5 | 2/4 [06:40<06:40, 61.4tok/s]") == "ETA roughly 6 min 40 s"
    assert eta(3720, "Scoring:  10%|1 | 1/10 [00:10<01:30]") == "ETA roughly 1 min 30 s"


def test_plain_lines_for_every_event_and_a_heartbeat_with_the_last_words(tmp_path: Path) -> None:
    lines: list[str] = []
    one, two = cell("a"), cell("b")
    show = Progress([one, two], 1, paced(a=1.0, b=1.0), tmp_path, lines.append, heartbeat=0.0)
    show.start(one)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "log.txt").write_text("first\n 10%\r 90%")
    show.tick()
    show.end(one, CellOutcome(cell_id="a", kind="done", seconds=60.0))
    show.start(two)
    show.end(two, CellOutcome(cell_id="b", kind="oom", reason="no memory", seconds=2.0))
    assert [click.unstyle(line) for line in lines] == [
        "[1/3] m | a @ 8192 | t: started, ETA after the first cell",
        "[1/3] m | a @ 8192 | t: 0 s, ETA after the first cell | 90%",
        "[2/3] m | a @ 8192 | t: done after 1 min 00 s, ETA 1 min 00 s",
        "[2/3] m | b @ 8192 | t: started, ETA 1 min 00 s",
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
    with display([one, two], 1, paced(a=1.0, b=1.0), tmp_path) as show:
        show.start(one)
        show.tick()
        drawn = io.StringIO()
        Console(file=drawn, width=60).print(show)
        show.end(one, CellOutcome(cell_id="a", kind="done", seconds=60.0))
        show.end(two, CellOutcome(cell_id="b", kind="oom", reason="no [b]", seconds=2.0))
    state, running, last_line, bar = drawn.getvalue().splitlines()
    assert state == "[1/3] ETA after the first cell"
    assert running == "m | a @ 8192 | t: 0 s"
    assert last_line == "  90% [x]"
    assert bar.startswith("━")
    lines = re.split(r"\r?\n|\r|\x1b\[\d*[AK]", screen.getvalue())
    assert "[2/3] m | a @ 8192 | t: done after 1 min 00 s, ETA 1 min 00 s" in lines
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
        (0, False, False, ["x"], "error", "it ended as if all were well, but not run yet"),
    ],
)
def test_a_failure_gets_kind_and_reason(
    code: int | None, timed_out: bool, oom_killed: bool, tail: list[str], kind: str, reason: str
) -> None:
    got = _judge(code, timed_out, 5.0, oom_killed, tail, "not run yet")
    assert got[0] == kind
    assert reason in got[1]
