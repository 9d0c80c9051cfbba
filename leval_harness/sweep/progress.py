"""What a person sees while a sweep runs: cells done, time elapsed, ETA, what the cells say."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from leval_harness.sweep.cells import PlannedCell
from leval_harness.sweep.claims import CellState, Folder
from leval_harness.sweep.estimate import tokens_of

if TYPE_CHECKING:
    from rich.console import Group

HEARTBEAT_SECONDS = 60.0


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
        cells: of the sweep.
        folder: of it.
        write: takes a line.
        heartbeat: seconds between lines about running cells; None where they are drawn instead.
    """

    def __init__(
        self,
        cells: Sequence[PlannedCell],
        folder: Folder,
        write: Callable[[str], None] = click.echo,
        heartbeat: float | None = HEARTBEAT_SECONDS,
    ) -> None:
        self.cells = {cell.id: cell for cell in cells}
        tokens = {cell.id: tokens_of(cell.record) for cell in cells}
        known = [each for each in tokens.values() if each]
        usual = sum(known) / len(known) if known else 1.0
        self.tokens = {name: each or usual for name, each in tokens.items()}
        self.folder, self.write, self.heartbeat = folder, write, heartbeat
        self.states: Mapping[str, CellState] = {}
        self.before: dict[str, float] = {}
        self.since: dict[str, float] = {}
        self.started = self.last_line = time.monotonic()

    def update(self, states: Mapping[str, CellState]) -> None:
        """Take what is known of the cells now, and write what has changed."""
        now, before = time.monotonic(), self.states
        self.states = states
        if not before:
            self.before = {name: self._share(name) for name in states}
        for name, state in states.items():
            title, was = self.cells[name].record.title, before.get(name)
            if state.owner and not (was and was.owner):
                self.since[name] = now
                self._say(f"{title}: started")
            if was and state.is_over and not was.is_over:
                took = duration(now - self.since.pop(name, now))
                how = "done" if state.done else f"failed: {state.failure}"
                self._say(f"{title}: {how} after {took}", None if state.done else "red")
            elif not state.owner:
                self.since.pop(name, None)
        if self.heartbeat is not None and now - self.last_line > self.heartbeat:
            for line in self.running():
                self._say(line)

    def _say(self, line: str, colour: str | None = None) -> None:
        self.last_line = time.monotonic()
        text = f"{self.position()} {line}, {self.eta()}"
        self.write(click.style(text, fg=colour) if colour else text)

    def _share(self, cell: str) -> float:
        """Share of a cell that is computed."""
        state = self.states[cell]
        if state.is_over:
            return 1.0
        return self.folder.share(cell) if state.owner else 0.0

    def running(self) -> list[str]:
        """Title, time and share of every running cell."""
        now = time.monotonic()
        return [
            f"{self.cells[name].record.title}: {duration(now - since)}, {self._share(name):.0%}"
            for name, since in list(self.since.items())
        ]

    def eta(self) -> str:
        """Tokens left over the tokens a second that were seen so far, running cells included."""
        shares = {name: self._share(name) for name in self.states}
        left = sum(self.tokens[name] * (1 - share) for name, share in shares.items())
        seen = sum(self.tokens[n] * (s - self.before.get(n, 0)) for n, s in shares.items())
        elapsed = time.monotonic() - self.started
        if left < 1e-9:
            return "ETA 0 s"
        if seen > 0:
            return f"ETA {duration(left * elapsed / seen)}"
        speeds = [cell.tokens_per_second for cell in self.cells.values()]
        if all(speeds) and len(set(speeds)) == 1 and speeds[0]:
            return f"ETA {duration(left / speeds[0])}"
        return "ETA unknown"

    def position(self) -> str:
        """`[3/12, 1 failed]`."""
        failed = sum(state.failure is not None for state in self.states.values())
        over = sum(state.is_over for state in self.states.values())
        return f"[{over}/{len(self.cells)}{f', {failed} failed' if failed else ''}]"

    def __rich__(self) -> "Group":
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        elapsed = duration(time.monotonic() - self.started)
        done = sum(self.tokens[name] * self._share(name) for name in self.states)
        lines = [Text(f"{self.position()} elapsed {elapsed}, {self.eta()}")]
        lines += [Text(line, no_wrap=True, overflow="ellipsis") for line in self.running()]
        return Group(*lines, ProgressBar(sum(self.tokens.values()), done, width=40))


@contextlib.contextmanager
def display(cells: Sequence[PlannedCell], folder: Folder) -> Iterator[Progress]:
    """Lines for logs and pipes; on a terminal a bar with ETA and the running cells."""
    if not sys.stdout.isatty():
        yield Progress(cells, folder)
        return
    from rich.live import Live

    # rich puts what `print` writes above the bar; click would write across it
    progress = Progress(cells, folder, print, heartbeat=None)
    with Live(progress, refresh_per_second=2, transient=True):
        yield progress
