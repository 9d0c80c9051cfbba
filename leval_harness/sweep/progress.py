"""What a person sees while a sweep runs: cells done, time elapsed, ETA, the running cells' logs."""

import contextlib
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from leval_harness.sweep.cell_files import log_tail
from leval_harness.sweep.cells import PlannedCell
from leval_harness.sweep.launch import CellOutcome

if TYPE_CHECKING:
    from rich.console import Group

HEARTBEAT_SECONDS = 30.0

_STATUS = re.compile(r"\d%|leval_harness\.")
"""In lines of a log that say how far a cell is: bars, and what this project reports."""
_LOGGED = re.compile(r"^\d{4}-\d\d-\d\d [\d:,]+ [\w.]+: ")
"""Time and name of the logger at the beginning of a line."""


def duration(seconds: float) -> str:
    """Seconds as people write them: 42 s, 3 min 05 s, 2 h 10 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class Progress:
    """Cells done and running, as lines for logs or drawn on a terminal.

    Args:
        pending: cells to compute.
        done: cells that an earlier run has finished.
        folder: of the sweep.
        write: takes a line.
        heartbeat: seconds between lines about running cells; None where they are drawn instead.
    """

    def __init__(
        self,
        pending: Sequence[PlannedCell],
        done: int,
        folder: Path,
        write: Callable[[str], None] = click.echo,
        heartbeat: float | None = HEARTBEAT_SECONDS,
    ) -> None:
        self.total, self.left = done + len(pending), len(pending)
        self.finished = self.failed = 0
        self.folder = folder
        self.write = write
        self.heartbeat = heartbeat
        self.running: dict[str, tuple[PlannedCell, float]] = {}
        self.began = time.time()
        self.started = self.last_line = time.monotonic()

    def start(self, cell: PlannedCell) -> None:
        """Note that a cell has begun."""
        self.running[cell.id] = (cell, time.monotonic())
        self.last_line = time.monotonic()
        if self.heartbeat is not None:
            self.write(f"{self.position()} {cell.record.title}: started, {self.eta()}")

    def tick(self) -> None:
        """Write what is running and its last output, if a heartbeat has passed."""
        if self.heartbeat is None or time.monotonic() - self.last_line < self.heartbeat:
            return
        self.last_line = time.monotonic()
        for state, last_output in self.states():
            self.write(f"{self.position()} {state}, {self.eta()} | {last_output}")

    def end(self, cell: PlannedCell, outcome: CellOutcome) -> None:
        """Note that a cell has ended."""
        self.running.pop(cell.id, None)
        self.left -= 1
        self.finished += outcome.ok
        self.failed += not outcome.ok
        how = "done" if outcome.ok else f"failed ({outcome.kind}): {outcome.reason}"
        took = f"{how} after {duration(outcome.seconds)}, {self.eta()}"
        line = f"{self.position()} {cell.record.title}: {took}"
        self.write(line if outcome.ok else click.style(line, fg="red"))

    def states(self) -> list[tuple[str, str]]:
        """Title and time of every running cell, and the last status in its log."""
        now = time.monotonic()
        return [
            (
                f"{cell.record.title}: {duration(now - since)}",
                _status(log_tail(self.folder / cell.id)),
            )
            for cell, since in list(self.running.values())
        ]

    def eta(self) -> str:
        """Time left at the rate at which this run has finished cells; unknown before the first."""
        if not self.left:
            return "ETA 0 s"
        if not self.finished:
            return "ETA unknown"
        elapsed = time.monotonic() - self.started
        return f"ETA {duration(elapsed / self.finished * self.left)}"

    def position(self) -> str:
        """`[3/12, 1 failed]`."""
        failed = f", {self.failed} failed" if self.failed else ""
        return f"[{self.total - self.left}/{self.total}{failed}]"

    def __rich__(self) -> "Group":
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        elapsed = duration(time.monotonic() - self.started)
        lines = [Text(f"{self.position()} elapsed {elapsed}, {self.eta()}")]
        for state, last_output in self.states():
            lines.append(Text(state, no_wrap=True, overflow="ellipsis"))
            lines.append(Text(f"  {last_output}", "dim", no_wrap=True, overflow="ellipsis"))
        return Group(
            *lines, ProgressBar(total=self.total, completed=self.total - self.left, width=40)
        )


def _status(lines: list[str]) -> str:
    """The last line that says how far a cell is; empty where none does."""
    found = next((line.strip() for line in reversed(lines) if _STATUS.search(line)), "")
    return _LOGGED.sub("", found)


@contextlib.contextmanager
def display(pending: Sequence[PlannedCell], done: int, folder: Path) -> Iterator[Progress]:
    """Lines for logs and pipes; on a terminal a bar with ETA and the last lines of the cells."""
    if not sys.stdout.isatty():
        yield Progress(pending, done, folder)
        return
    from rich.live import Live

    # rich puts what `print` writes above the bar; click would write across it
    progress = Progress(pending, done, folder, print, heartbeat=None)
    with Live(progress, refresh_per_second=2, transient=True):
        yield progress
