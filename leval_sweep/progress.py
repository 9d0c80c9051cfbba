"""What a person sees while a sweep runs: where it is, how long it will take, what the cell says."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import click

from leval_sweep.cell_files import log_tail
from leval_sweep.cells import PlannedCell
from leval_sweep.launch import CellOutcome
from leval_sweep.pace import Pace

HEARTBEAT_SECONDS = 30.0


def duration(seconds: float) -> str:
    """Seconds as people say them: 42 s, 3 min 05 s, 2 h 10 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class Progress:
    """Common to both displays: what is done, what runs, and the expected end."""

    def __init__(self, cells: list[PlannedCell], done: int, pace: Pace, folder: Path) -> None:
        self.total = len(cells) + done
        self.done = done
        self.failed = 0
        self.pace = pace
        self.folder = folder
        self.waiting = {cell.id: cell for cell in cells}
        self.running: dict[str, tuple[PlannedCell, float]] = {}
        self.most_at_once = 1
        self.began = time.time()

    def start(self, cell: PlannedCell) -> None:
        """A cell has begun."""
        self.waiting.pop(cell.id, None)
        self.running[cell.id] = (cell, time.monotonic())
        self.most_at_once = max(self.most_at_once, len(self.running))

    def tick(self) -> None:
        """Time has passed."""

    def end(self, cell: PlannedCell, outcome: CellOutcome) -> str:
        """A cell has ended; returns what to say about it."""
        self.running.pop(cell.id, None)
        self.waiting.pop(cell.id, None)
        self.done += outcome.ok
        self.failed += not outcome.ok
        if outcome.ok:
            self.pace.add(cell, outcome.seconds)
        how = "done" if outcome.ok else f"failed ({outcome.kind}): {outcome.reason}"
        return f"{self.position()} {cell.record.title}: {how} after {duration(outcome.seconds)}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing more will come."""

    def eta(self) -> str:
        """`ETA 3 min 05 s`, or how little is known yet."""
        now = time.monotonic()
        ahead = [(cell, 0.0) for cell in self.waiting.values()]
        ahead += [(cell, now - since) for cell, since in self.running.values()]
        seconds = self.pace.remaining(ahead, self.most_at_once)
        if seconds is None:
            return "ETA after the first cell"
        # Before the first cell has ended it rests on the config's guess alone.
        return f"ETA {'' if self.pace.finished else 'roughly '}{duration(seconds)}"

    def position(self) -> str:
        """`[3/12, 1 failed]`."""
        failed = f", {self.failed} failed" if self.failed else ""
        return f"[{self.done + self.failed}/{self.total}{failed}]"

    def last_line(self, cell: PlannedCell) -> str:
        """The last thing a running cell printed."""
        tail = log_tail(self.folder / cell.id, 1)
        return tail[-1].strip() if tail else ""


class PlainProgress(Progress):
    """One line an event, and one every half minute: for logs and pipes."""

    def __init__(
        self,
        cells: list[PlannedCell],
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

    def start(self, cell: PlannedCell) -> None:
        """Say which cell begins."""
        super().start(cell)
        self.spoken = time.monotonic()
        self.write(f"{self.position()} {cell.record.title}: started, {self.eta()}")

    def tick(self) -> None:
        """Say now and then that it is still running, and what it said last."""
        if time.monotonic() - self.spoken < self.heartbeat:
            return
        self.spoken = time.monotonic()
        for cell, since in self.running.values():
            state = f"{duration(time.monotonic() - since)}, {self.eta()} | {self.last_line(cell)}"
            self.write(f"{self.position()} {cell.record.title}: {state}")

    def end(self, cell: PlannedCell, outcome: CellOutcome) -> str:
        """Say how it ended."""
        line = super().end(cell, outcome)
        self.write(f"{line}, {self.eta()}")
        return line


class LiveProgress(Progress):
    """A bar with ETA and the running cell's last line: for terminals."""

    def __init__(self, cells: list[PlannedCell], done: int, pace: Pace, folder: Path) -> None:
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
            lines.append(Text(f"{cell.record.title}: {ran}", no_wrap=True, overflow="ellipsis"))
            lines.append(
                Text(f"  {self.last_line(cell)}", style="dim", no_wrap=True, overflow="ellipsis")
            )
        bar = ProgressBar(total=self.total, completed=self.done + self.failed, width=40)
        self.live.update(Group(Text(f"{self.position()} {self.eta()}"), bar, *lines))

    def end(self, cell: PlannedCell, outcome: CellOutcome) -> str:
        """Leave a line above the bar."""
        from rich.text import Text

        line = super().end(cell, outcome)
        self.console.print(Text(line, style="" if outcome.ok else "red"))
        self.looked = 0.0
        self.tick()
        return line

    def __exit__(self, *_: object) -> None:
        """Take the bar away."""
        self.live.stop()
