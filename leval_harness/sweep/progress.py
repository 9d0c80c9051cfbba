"""What a person sees while a sweep runs: cells done, time elapsed, ETA, what the cells say."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from leval_harness.sweep.cells import PlannedCell
from leval_harness.sweep.claims import CellState, Folder

if TYPE_CHECKING:
    from rich.console import Group

HEARTBEAT_SECONDS = 60.0
USUAL_LENGTH = 8192
"""A cell counts as its context length, in tokens; as this where it has none."""


def duration(seconds: float) -> str:
    """Seconds as people write them: 42 s, 3 min 05 s, 2 h 10 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class Progress:
    """Cells done and running, as lines; on a terminal a block below them is drawn anew.

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
        self.titles = {cell.id: cell.record.title for cell in cells}
        self.sizes = {cell.id: cell.record.context_length or USUAL_LENGTH for cell in cells}
        self.folder, self.write, self.heartbeat = folder, write, heartbeat
        self.states: Mapping[str, CellState] = {}
        self.since: dict[str, float] = {}
        self.started = self.last_line = time.monotonic()
        self.done_before = 0.0

    def update(self, states: Mapping[str, CellState]) -> None:
        """Take what is known of the cells now, and write what has changed."""
        now, before, self.states = time.monotonic(), self.states, states
        if not before:
            self.done_before = self._done()
        for name, state in states.items():
            if state.owner and name not in self.since:
                self.since[name] = now
                self._say(f"{self.titles[name]}: started")
            elif state.is_over and before and not before[name].is_over:
                took = duration(now - self.since.pop(name, now))
                how = "done" if state.done else f"failed: {state.failure}"
                self._say(f"{self.titles[name]}: {how} after {took}")
            elif not state.owner:
                self.since.pop(name, None)
        if self.heartbeat is not None and now - self.last_line > self.heartbeat:
            for line in self.running():
                self._say(line)

    def _say(self, line: str) -> None:
        self.last_line = time.monotonic()
        self.write(f"{self.position()} {line}, {self.eta()}")

    def _share(self, name: str) -> float:
        """Share of a cell that is computed."""
        state = self.states[name]
        return 1.0 if state.is_over else self.folder.share(name) if state.owner else 0.0

    def _done(self) -> float:
        return sum(self.sizes[name] * self._share(name) for name in self.states)

    def running(self) -> list[str]:
        """Title, time and share of every running cell."""
        now = time.monotonic()
        return [
            f"{self.titles[name]}: {duration(now - since)}, {self._share(name):.0%}"
            for name, since in list(self.since.items())
        ]

    def eta(self) -> str:
        """What is left, at the rate of what this start has computed so far."""
        done, total = self._done(), sum(self.sizes.values())
        if done <= self.done_before and done < total:
            return "ETA unknown"
        elapsed = time.monotonic() - self.started
        return f"ETA {duration((total - done) * elapsed / max(1.0, done - self.done_before))}"

    def position(self) -> str:
        """`[3/12, 1 failed]`."""
        failed = sum(state.failure is not None for state in self.states.values())
        over = sum(state.is_over for state in self.states.values())
        return f"[{over}/{len(self.sizes)}{f', {failed} failed' if failed else ''}]"

    def __rich__(self) -> "Group":
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        elapsed = duration(time.monotonic() - self.started)
        lines = [Text(f"{self.position()} elapsed {elapsed}, {self.eta()}")]
        lines += [Text(line, no_wrap=True, overflow="ellipsis") for line in self.running()]
        return Group(*lines, ProgressBar(sum(self.sizes.values()), self._done(), width=40))


@contextlib.contextmanager
def display(cells: Sequence[PlannedCell], folder: Folder) -> Iterator[Progress]:
    """Lines for logs and pipes; on a terminal a bar with ETA and the running cells below them."""
    if not sys.stdout.isatty():
        yield Progress(cells, folder)
        return
    from rich.live import Live

    # rich puts what `print` writes above the bar; click would write across it
    progress = Progress(cells, folder, print, heartbeat=None)
    with Live(progress, refresh_per_second=2, transient=True):
        yield progress
