"""What a sweep prints while it runs: a line when a run starts or ends, and one each minute."""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import click

from leval_harness.sweep.claims import Folder, RunState
from leval_harness.sweep.groups import USUAL_LENGTH
from leval_harness.sweep.run_record import RunRecord

HEARTBEAT_SECONDS = 60.0


def say(line: str) -> None:
    """Print a line; once nobody reads the output any more, continue without it.

    `leval-harness sweep ... | head -1` closes the pipe after the first line. The sweep is worth more
    than its messages, so that everything printed later goes nowhere.
    """
    try:
        click.echo(line)
    except BrokenPipeError:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until the end


class Progress:
    """Prints when a run starts or ends, and once a minute how far the running ones are.

    Args:
        runs: all runs of the sweep.
        folder: where they are computed.
    """

    def __init__(self, runs: Sequence[RunRecord], folder: Folder) -> None:
        self.runs = {run.run_id: run for run in runs}
        self.folder = folder
        self.states: Mapping[str, RunState] = {}
        self.started = time.monotonic()
        self.last_line = self.started
        self.tokens_at_start = 0.0
        self.retried: set[str] = set()

    def update(self, states: Mapping[str, RunState]) -> None:
        """Take the present state of each run, and print what has changed."""
        before = self.states
        self.states = states
        if not before:
            before = states
            self.tokens_at_start = self._tokens(self._share)
        for name in self.folder.retried() & states.keys() - self.retried:
            self.retried.add(name)
            self._say(name, f"is tried once more: {self.folder.reason_of_retry(name)}")
        for name, state in states.items():
            self._report_change(name, before[name], state)
        if time.monotonic() - self.last_line > HEARTBEAT_SECONDS:
            for name, state in states.items():
                if state.owner:
                    self._say(name, f"{self._share(name):.0%}")

    def _report_change(self, name: str, before: RunState, now: RunState) -> None:
        if now.owner and not before.owner:
            self._say(name, "started")
        elif now.done and not before.done:
            self._say(name, "done")
        elif now.failure is not None and before.failure is None:
            self._say(name, f"failed: {now.failure}")

    def _say(self, name: str, what: str) -> None:
        self.last_line = time.monotonic()
        failed = sum(state.failure is not None for state in self.states.values())
        over = sum(state.is_over for state in self.states.values())
        count = f"{over}/{len(self.runs)}"
        if failed:
            count += f", {failed} failed"
        say(f"[{count}] {self.runs[name].title}: {what}, {self._eta()}")

    def _share(self, name: str) -> float:
        """Return the share of a run that is computed, from 0 to 1."""
        state = self.states[name]
        if state.done:
            return 1.0
        if state.owner:
            return self.folder.share(name)
        return 0.0

    def _tokens(self, share: Callable[[str], float]) -> float:
        """Return the tokens of all runs that have not failed, each weighted by a share of it."""
        total = 0.0
        for name, state in self.states.items():
            if state.failure is None:
                total += (self.runs[name].context_length or USUAL_LENGTH) * share(name)
        return total

    def _eta(self) -> str:
        """Return the time that is left at the rate at which this start has computed so far."""
        done = self._tokens(self._share)
        total = self._tokens(lambda name: 1.0)
        if done <= self.tokens_at_start and done < total:
            return "ETA unknown"
        elapsed = time.monotonic() - self.started
        seconds_per_token = elapsed / max(1.0, done - self.tokens_at_start)
        return f"ETA {timedelta(seconds=round((total - done) * seconds_per_token))}"
