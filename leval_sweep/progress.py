"""What a person sees while a sweep runs: where it is, how long it will take, what the cell says."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import click

from leval_sweep.cell_files import log_tail
from leval_sweep.cells import Cell
from leval_sweep.launch import Outcome

HEARTBEAT_SECONDS = 30.0


def duration(seconds: float) -> str:
    """Seconds as people say them: 42 s, 3 min 05 s, 2 h 10 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


@dataclass
class Pace:
    """Remaining time from the time that finished work took.

    Attributes:
        work: what each cell is reckoned to cost, in any unit, by cell id.
        finished: work and seconds of the cells that were finished, in this run or before.
        expected: seconds a unit is reckoned to take before anything was measured, if known.
    """

    work: Mapping[str, float]
    finished: list[tuple[float, float]] = field(default_factory=list)
    expected: float | None = None

    def seconds_per_unit(self) -> float | None:
        """Seconds that a unit of work has taken so far, else is expected to take."""
        work = sum(each for each, _ in self.finished)
        return sum(seconds for _, seconds in self.finished) / work if work else self.expected

    def remaining(self, cells: Mapping[str, float], parallel: int = 1) -> float | None:
        """Seconds still needed for `cells` (id -> seconds they have run already)."""
        pace = self.seconds_per_unit()
        if pace is None:
            return None
        # a cell that takes longer than expected is about to end, not ended
        left = (max(0.0, self.work[ident] * pace - ran) for ident, ran in cells.items())
        return sum(left) / max(1, parallel)


class Progress:
    """Common to both displays: what is done, what runs, and the expected end."""

    def __init__(self, cells: list[Cell], done: int, pace: Pace, folder: Path) -> None:
        self.total = len(cells) + done
        self.done = done
        self.failed = 0
        self.pace = pace
        self.folder = folder
        self.waiting = {cell.id: cell for cell in cells}
        self.running: dict[str, tuple[Cell, float]] = {}
        self.most_at_once = 1
        self.began = time.time()

    def start(self, cell: Cell) -> None:
        """A cell has begun."""
        self.waiting.pop(cell.id, None)
        self.running[cell.id] = (cell, time.monotonic())
        self.most_at_once = max(self.most_at_once, len(self.running))

    def tick(self) -> None:
        """Time has passed."""

    def end(self, outcome: Outcome) -> None:
        """A cell has ended."""
        self.running.pop(outcome.cell_id, None)
        self.waiting.pop(outcome.cell_id, None)
        self.done += outcome.ok
        self.failed += not outcome.ok
        if outcome.ok:
            self.pace.finished.append((self.pace.work[outcome.cell_id], outcome.seconds))

    def close(self) -> None:
        """Nothing more will come."""

    def eta(self) -> str:
        """`ETA 3 min 05 s`, or how little is known yet."""
        now = time.monotonic()
        ahead = dict.fromkeys(self.waiting, 0.0)
        ahead |= {ident: now - since for ident, (_, since) in self.running.items()}
        seconds = self.pace.remaining(ahead, self.most_at_once)
        if seconds is None:
            return "ETA after the first cell"
        # Before the first cell has ended it rests on the config's guess alone.
        return f"ETA {'' if self.pace.finished else 'roughly '}{duration(seconds)}"

    def position(self) -> str:
        """`[3/12, 1 failed]`."""
        failed = f", {self.failed} failed" if self.failed else ""
        return f"[{self.done + self.failed}/{self.total}{failed}]"

    def last_line(self, cell: Cell) -> str:
        """The last thing a running cell printed."""
        tail = log_tail(self.folder / cell.id, 1)
        return tail[-1].strip() if tail else ""


class PlainProgress(Progress):
    """One line an event, and one every half minute: for logs and pipes."""

    def __init__(
        self,
        cells: list[Cell],
        done: int,
        pace: Pace,
        folder: Path,
        write: Callable[[str], None] = click.echo,
        heartbeat: float = HEARTBEAT_SECONDS,
    ) -> None:
        super().__init__(cells, done, pace, folder)
        self.write = write
        self.heartbeat = heartbeat
        self.spoken = time.monotonic()

    def start(self, cell: Cell) -> None:
        """Say which cell begins."""
        super().start(cell)
        self.spoken = time.monotonic()
        self.write(f"{self.position()} {cell.title}: started, {self.eta()}")

    def tick(self) -> None:
        """Say now and then that it is still running, and what it said last."""
        if time.monotonic() - self.spoken < self.heartbeat:
            return
        self.spoken = time.monotonic()
        for cell, since in self.running.values():
            ran = duration(time.monotonic() - since)
            self.write(
                f"{self.position()} {cell.title}: {ran}, {self.eta()} | {self.last_line(cell)}"
            )

    def end(self, outcome: Outcome) -> None:
        """Say how it ended."""
        cell = self.running.get(outcome.cell_id, (None, 0.0))[0]
        super().end(outcome)
        how = "done" if outcome.ok else f"failed ({outcome.kind}): {outcome.reason}"
        title = cell.title if cell else outcome.cell_id
        self.write(
            f"{self.position()} {title}: {how} after {duration(outcome.seconds)}, {self.eta()}"
        )


class LiveProgress(Progress):
    """A bar with ETA and the running cell's last line: for terminals."""

    def __init__(self, cells: list[Cell], done: int, pace: Pace, folder: Path) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__(cells, done, pace, folder)
        self.console = Console()
        self.live = Live(console=self.console, refresh_per_second=4, transient=True)
        self.live.start()
        self.looked = 0.0

    def tick(self) -> None:
        """Draw bar, running cells and their last lines."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        if time.monotonic() - self.looked < 0.5:
            return
        self.looked = time.monotonic()
        lines: list[Text | ProgressBar] = []
        for cell, since in self.running.values():
            ran = duration(time.monotonic() - since)
            lines.append(Text(f"{cell.title}: {ran}", no_wrap=True, overflow="ellipsis"))
            said = self.last_line(cell)
            lines.append(Text(f"  {said}", style="dim", no_wrap=True, overflow="ellipsis"))
        bar = ProgressBar(total=self.total, completed=self.done + self.failed, width=40)
        self.live.update(Group(Text(f"{self.position()} {self.eta()}"), bar, *lines))

    def end(self, outcome: Outcome) -> None:
        """Leave a line above the bar."""
        from rich.text import Text

        cell = self.running.get(outcome.cell_id, (None, 0.0))[0]
        super().end(outcome)
        how = "done" if outcome.ok else f"failed ({outcome.kind}): {outcome.reason}"
        title = cell.title if cell else outcome.cell_id
        line = f"{self.position()} {title}: {how} after {duration(outcome.seconds)}"
        self.console.print(Text(line, style="" if outcome.ok else "red"))
        self.looked = 0.0
        self.tick()

    def close(self) -> None:
        """Take the bar away."""
        self.live.stop()
