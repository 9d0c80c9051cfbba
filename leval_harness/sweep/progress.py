"""What a person sees while a sweep runs: a line for what happens, and how long it will take."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

import click

from leval_harness.sweep.cells import PlannedCell
from leval_harness.sweep.claims import CellState, Folder

HEARTBEAT_SECONDS = 60.0
USUAL_LENGTH = 8192
"""A cell counts as its context length, in tokens; as this where it has none."""


def duration(seconds: float) -> str:
    """Hours, minutes, seconds: 0:03:05."""
    return str(timedelta(seconds=round(seconds)))


class Progress:
    """Writes when a cell starts or ends, and once a minute how far the running ones are."""

    def __init__(
        self,
        cells: Sequence[PlannedCell],
        folder: Folder,
        write: Callable[[str], None] = click.echo,
    ) -> None:
        self.titles = {cell.id: cell.record.title for cell in cells}
        self.sizes = {cell.id: cell.record.context_length or USUAL_LENGTH for cell in cells}
        self.folder, self.write = folder, write
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
                self._say(name, "started")
            elif state.is_over and before and not before[name].is_over:
                how = "done" if state.done else f"failed: {state.failure}"
                self._say(name, f"{how} after {duration(now - self.since.pop(name, now))}")
            elif not state.owner:
                self.since.pop(name, None)
        if now - self.last_line > HEARTBEAT_SECONDS:
            for name, since in self.since.items():
                self._say(name, f"{duration(now - since)}, {self._share(name):.0%}")

    def _say(self, name: str, what: str) -> None:
        self.last_line = time.monotonic()
        failed = sum(state.failure is not None for state in self.states.values())
        over = sum(state.is_over for state in self.states.values())
        place = f"[{over}/{len(self.sizes)}{f', {failed} failed' if failed else ''}]"
        self.write(f"{place} {self.titles[name]}: {what}, {self._eta()}")

    def _share(self, name: str) -> float:
        """Share of a cell that is computed."""
        state = self.states[name]
        return 1.0 if state.done else self.folder.share(name) if state.owner else 0.0

    def _done(self) -> float:
        return sum(self.sizes[name] * self._share(name) for name in self._counted())

    def _counted(self) -> list[str]:
        """The cells that have not failed."""
        return [name for name, state in self.states.items() if state.failure is None]

    def _eta(self) -> str:
        """What is left, at the rate of what this start has computed so far."""
        done, total = self._done(), sum(self.sizes[name] for name in self._counted())
        if done <= self.done_before and done < total:
            return "ETA unknown"
        elapsed = time.monotonic() - self.started
        return f"ETA {duration((total - done) * elapsed / max(1.0, done - self.done_before))}"
