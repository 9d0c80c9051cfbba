"""What a person sees while a sweep runs: where it is, how long it will take, what the cell says."""

import contextlib
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from leval_harness.sweep.cell_files import log_tail
from leval_harness.sweep.cells import PlannedCell
from leval_harness.sweep.estimate import Pace
from leval_harness.sweep.launch import CellOutcome

if TYPE_CHECKING:
    from rich.console import Group

HEARTBEAT_SECONDS = 30.0
# A bar of tqdm's: what it counts, the share that is done, and since when.
_BAR = re.compile(r"([^\r\n]*?)(\d+)%\|.*?\[(?:(\d+):)?(\d+):(\d+)<")
# Below a tenth it tells more of the start than of the pace.
_LEAST_PERCENT = 10


def duration(seconds: float) -> str:
    """Seconds as people say them: 42 s, 3 min 05 s, 2 h 10 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class Progress:
    """What is done, what runs, and the expected end: as lines for logs, drawn on terminals.

    Args:
        cells: those that are to be computed.
        done: how many were before.
        pace: what finished cells took.
        folder: of the sweep.
        write: takes a line.
        heartbeat: seconds between lines about cells that run; None where they are drawn instead.
    """

    def __init__(
        self,
        cells: list[PlannedCell],
        done: int,
        pace: Pace,
        folder: Path,
        write: Callable[[str], None] = click.echo,
        heartbeat: float | None = HEARTBEAT_SECONDS,
    ) -> None:
        self.total = len(cells) + done
        self.done = done
        self.failed = 0
        self.pace = pace
        self.folder = folder
        self.write = write
        self.heartbeat = heartbeat
        self.waiting = {cell.id: cell for cell in cells}
        self.running: dict[str, tuple[PlannedCell, float]] = {}
        # cell that runs -> what a bar of it counts -> percent done, what the cell takes by that
        self.bars: dict[str, dict[str, tuple[int, float]]] = {}
        self.most_at_once = 1
        self.began = time.time()
        self.spoken = time.monotonic()

    def start(self, cell: PlannedCell) -> None:
        """A cell has begun."""
        self.waiting.pop(cell.id, None)
        self.running[cell.id] = (cell, time.monotonic())
        self.bars.pop(cell.id, None)  # of an attempt before
        self.most_at_once = max(self.most_at_once, len(self.running))
        self.spoken = time.monotonic()
        if self.heartbeat is not None:
            self.write(f"{self.position()} {cell.record.title}: started, {self.eta()}")

    def tick(self) -> None:
        """Say now and then what is still running, and what it said last."""
        if self.heartbeat is None or time.monotonic() - self.spoken < self.heartbeat:
            return
        self.spoken = time.monotonic()
        eta = self.eta()
        for state, last_line in self.states():
            self.write(f"{self.position()} {state}, {eta} | {last_line}")

    def end(self, cell: PlannedCell, outcome: CellOutcome) -> None:
        """A cell has ended."""
        self.running.pop(cell.id, None)
        self.waiting.pop(cell.id, None)
        self.done += outcome.ok
        self.failed += not outcome.ok
        if outcome.ok:
            self.pace.add(cell, outcome.seconds)
        how = "done" if outcome.ok else f"failed ({outcome.kind}): {outcome.reason}"
        took = f"{how} after {duration(outcome.seconds)}, {self.eta()}"
        line = f"{self.position()} {cell.record.title}: {took}"
        self.write(line if outcome.ok else click.style(line, fg="red"))

    def states(self) -> list[tuple[str, str]]:
        """Name and time of every running cell, and the last thing that it printed."""
        now = time.monotonic()
        return [
            (
                f"{cell.record.title}: {duration(now - since)}",
                "".join(log_tail(self.folder / cell.id, 1)).strip(),
            )
            for cell, since in list(self.running.values())
        ]

    def _see(self, now: float) -> None:
        """Until a first cell has ended, those that run and their bars correct the guess."""
        for cell, since in list(self.running.values()) if not self.pace.finished else ():
            ran, bars = now - since, self.bars.setdefault(cell.id, {})
            self._read_bar(cell, ran, bars)
            if bars or cell.tokens_per_second:  # else nothing is known that could be corrected
                self.pace.see(cell, max([ran, *(whole for _, whole in bars.values())]))

    def _read_bar(self, cell: PlannedCell, ran: float, bars: dict[str, tuple[int, float]]) -> None:
        """Note what a cell's bar says; one that stands still since it was read says nothing new."""
        bar = _BAR.search("".join(log_tail(self.folder / cell.id, 1)))
        if not bar or (percent := int(bar[2])) < _LEAST_PERCENT:
            return
        if bars.get(bar[1], (0, 0.0))[0] != percent:
            drawn = 3600 * int(bar[3] or 0) + 60 * int(bar[4]) + int(bar[5])
            bars[bar[1]] = (percent, ran - drawn + drawn * 100 / percent)

    def eta(self) -> str:
        """`ETA 3 min 05 s`, or how little is known yet."""
        now = time.monotonic()
        self._see(now)
        ahead = [(cell, 0.0) for cell in list(self.waiting.values())]
        ahead += [(cell, now - since) for cell, since in list(self.running.values())]
        seconds = self.pace.remaining(ahead, self.most_at_once)
        if seconds is None:
            return "ETA after the first cell"
        # Before the first cell has ended it rests on the config's guess and on bars.
        return f"ETA {'' if self.pace.finished else 'roughly '}{duration(seconds)}"

    def position(self) -> str:
        """`[3/12, 1 failed]`."""
        failed = f", {self.failed} failed" if self.failed else ""
        return f"[{self.done + self.failed}/{self.total}{failed}]"

    def __rich__(self) -> "Group":
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        lines = [Text(f"{self.position()} {self.eta()}")]
        for state, last_line in self.states():
            lines.append(Text(state, no_wrap=True, overflow="ellipsis"))
            lines.append(Text(f"  {last_line}", "dim", no_wrap=True, overflow="ellipsis"))
        bar = ProgressBar(total=self.total, completed=self.done + self.failed, width=40)
        return Group(*lines, bar)


@contextlib.contextmanager
def display(cells: list[PlannedCell], done: int, pace: Pace, folder: Path) -> Iterator[Progress]:
    """Lines for logs and pipes; on a terminal a bar with ETA and the running cells' last lines."""
    if not sys.stdout.isatty():
        yield Progress(cells, done, pace, folder)
        return
    from rich.live import Live

    # rich takes in what `print` writes and puts it above the bar; click would write across it
    progress = Progress(cells, done, pace, folder, print, heartbeat=None)
    with Live(progress, refresh_per_second=2, transient=True):
        yield progress
