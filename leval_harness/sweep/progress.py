"""What a sweep shows while it runs: lines, and in a terminal a table of what is running."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import click

from leval_harness.results.layout import RUN_FILE, RUNS_FOLDER
from leval_harness.sweep.claims import Folder, RunState
from leval_harness.sweep.cost import ComputedShare
from leval_harness.sweep.estimate import Estimate, all_warnings, flops_by_run, total
from leval_harness.sweep.groups import size_of
from leval_harness.sweep.identity import RUNNING_TEXT
from leval_harness.sweep.run_progress import RunProgress
from leval_harness.sweep.run_record import RunRecord
from leval_harness.sweep.task_registry import families_of
from resonance_vllm.common.files import read_json_object

SECONDS_BETWEEN_LINES = 60.0
REFRESHES_PER_SECOND = 2.0
HOUR = 3600.0
SHARE_OF_VERDICT = 0.05
"""Share of the time of a sweep that may go into verdicts on the runs so far."""
MOST_SENTENCES = 2
"""Sentences of a verdict so far, beside the length of each method; the report has all of them."""


def say(line: str) -> None:
    """Print a line; once nobody reads the output any more, continue without it.

    `leval-harness sweep ... | head -1` closes the pipe after the first line. The sweep is worth more
    than its messages, so that everything printed later goes nowhere.
    """
    try:
        click.echo(line)
    except BrokenPipeError:
        discard_output()


def discard_output() -> None:
    """Let everything that is printed from now on go nowhere."""
    sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until the end


class Progress:
    """Shows which runs are computed, how far they are, and how long the rest will take.

    Each run that starts or ends is a line. In between there is one line a minute; where standard
    error is a terminal, a table of the running runs is shown there instead. A context.

    Args:
        runs: all runs of the sweep.
        folder: where they are computed.
        estimates: what each run will take, as far as it is known.
    """

    def __init__(
        self,
        runs: Sequence[RunRecord],
        folder: Folder,
        estimates: Mapping[str, Estimate] | None = None,
    ) -> None:
        self.runs = {run.run_id: run for run in runs}
        self.folder = folder
        self.states: Mapping[str, RunState] = {}
        self.estimates = estimates or {}
        self.time_left = TimeLeft(runs, self.estimates)
        self.verdict = VerdictSoFar(folder.path)
        self.last_line = time.monotonic()
        self.retried: set[str] = set()
        self.live: Any = None

    def __enter__(self) -> Self:
        """Say what the sweep will take, and show the table if there is a terminal."""
        if self.estimates:
            self._say_cost()
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self.live = Live(
                console=Console(stderr=True),
                refresh_per_second=REFRESHES_PER_SECOND,
                transient=True,
            )
            self.live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Remove the table."""
        if self.live is not None:
            self.live.stop()

    def _say_cost(self) -> None:
        """Print what the runs that are to do will take, and what had better be changed."""
        cost = total(list(self.estimates.values()))
        line = f"Cost: {cost.text()}"
        if cost.hours is None:
            say(f"{line}; the time is estimated from the first tokens on")
        else:
            say(f"{line} with one worker; the estimate gets better with each run")
        to_do = [run for name, run in self.runs.items() if name in self.estimates]
        for warning in all_warnings(to_do, self.estimates):
            say(f"Note: {warning}")

    def update(self, states: Mapping[str, RunState]) -> None:
        """Take the present state of each run, and show what has changed.

        Args:
            states: id of each run -> its state.
        """
        before = self.states or states
        self.states = states
        for name, state in states.items():
            self.time_left.update(name, state, self.folder)
        for name in self.folder.retried() & states.keys() - self.retried:
            self.retried.add(name)
            self._say(name, f"is tried once more: {self.folder.reason_of_retry(name)}")
        for name, state in states.items():
            self._report_change(name, before[name], state)
        running = self._running()
        if self.live is not None:
            self.live.update(self.table(running))
        elif running and time.monotonic() - self.last_line > SECONDS_BETWEEN_LINES:
            self._report_running(running)

    def _running(self) -> list[str]:
        return [name for name, state in self.states.items() if state.owner]

    def _report_change(self, name: str, before: RunState, now: RunState) -> None:
        """Print what has happened to a run since it was last looked at, if anything."""
        if now.owner and not before.owner:
            self._say(name, "started")
        elif now.alone and not before.alone:
            self._say(name, f"continues with fewer workers: {now.alone}")
        elif now.done and not before.done:
            self._say(name, "done")
            self._say_verdict()
        elif now.failure is not None and before.failure is None:
            self._say(name, f"failed: {now.failure}")

    def _say_verdict(self) -> None:
        """Print what the runs so far say; the report at the end says what all of them do."""
        if all(state.is_over for state in self.states.values()):
            return
        for line in self.verdict.lines(sum(state.done for state in self.states.values())):
            say(line)

    def _report_running(self, running: Sequence[str]) -> None:
        """Print one line about all runs that are computed now."""
        shares = [f"{self.time_left.share(name):.0%}" for name in running]
        rate = sum(self._tokens_per_second(name) for name in running)
        text = ", ".join(shares)
        if rate:
            text += f", {rate:,.0f} tokens/s"
        if len(running) == 1:
            self._say(running[0], text)
        else:
            self._print(f"{len(running)} runs: {text}")

    def _tokens_per_second(self, name: str) -> float:
        """Return the tokens per second of all workers of a run."""
        return self.time_left.tokens_per_second(name) * len(self.states[name].owners)

    def _say(self, name: str, text: str) -> None:
        self._print(f"{self.runs[name].title}: {text}")

    def _print(self, text: str) -> None:
        """Print a line with the number of runs that are over in front and the time left behind."""
        self.last_line = time.monotonic()
        failed = sum(state.failure is not None for state in self.states.values())
        over = sum(state.is_over for state in self.states.values())
        count = f"{over}/{len(self.runs)}"
        if failed:
            count += f", {failed} failed"
        say(f"[{count}] {text}, ETA {self._eta()}")

    def _eta(self) -> str:
        seconds = self.time_left.seconds(self.states)
        if seconds is None:
            return "unknown"
        return str(timedelta(seconds=round(seconds)))

    def table(self, running: Sequence[str]) -> Any:
        """Return the table of the running runs that a terminal shows.

        Args:
            running: their ids.
        """
        from rich.table import Table

        over = sum(state.is_over for state in self.states.values())
        title = f"{over} of {len(self.runs)} runs are over, remaining: {self._eta()}"
        table = Table(title=title, title_justify="left")
        table.add_column("Model")
        table.add_column("Method")
        table.add_column("Tasks")
        for heading in ("Length", "GPU", "Done", "Tokens/s", "Remaining"):
            table.add_column(heading, justify="right")
        for name in running:
            run = self.runs[name]
            owner = self.states[name].owner or {}
            remaining = self.time_left.seconds_of(name)
            table.add_row(
                run.model.name,
                run.method.name,
                ", ".join(run.tasks),
                f"{run.context_length or 0:,}",
                str(owner.get("gpus") or "CPU"),
                f"{self.time_left.share(name):.0%}",
                f"{self._tokens_per_second(name):,.0f}",
                _duration(remaining, len(self.states[name].owners)),
            )
        return table


def _duration(seconds: float | None, workers: int) -> str:
    """Return how long some workers need for what takes one of them so many seconds."""
    if seconds is None:
        return "unknown"
    return str(timedelta(seconds=round(seconds / max(1, workers))))


class VerdictSoFar:
    """The verdict on the runs that are done, after each run that ends.

    Reading many results takes seconds, in which no worker is started. So it is made only while it
    takes less than a twentieth of the time between two runs.

    Args:
        results: the results folder.
    """

    def __init__(self, results: Path) -> None:
        self.results = results
        self.seconds = 0.0
        self.ended = time.monotonic()
        self.shown: list[str] = []

    def lines(self, number: int) -> list[str]:
        """Return a heading and the sentences; nothing where they are as before.

        Args:
            number: of the runs that are done.
        """
        started = time.monotonic()
        if self.seconds > (started - self.ended) * SHARE_OF_VERDICT:
            return []
        sentences = self._sentences()
        self.ended = time.monotonic()
        self.seconds = self.ended - started
        if not sentences or sentences == self.shown:
            return []
        self.shown = sentences
        runs = f"{number} run{'' if number == 1 else 's'}"
        return [f"Verdict so far, by {runs}:", *(f"  {line}" for line in sentences)]

    def _sentences(self) -> list[str]:
        """Return what is known of each model; nothing where results cannot be compared yet."""
        from leval_harness.report.effective_context import compared_frame
        from leval_harness.report.verdict import LENGTH, METHOD, verdicts
        from leval_harness.results.load import load_results

        sentences = []
        try:
            for verdict in verdicts(compared_frame(load_results(self.results))):
                table = verdict.table()
                # a table of retrieval alone has no such column
                if table is not None and LENGTH in table:
                    sentences += [
                        f"{method}: effective context length {length}"
                        for method, length in zip(table[METHOD], table[LENGTH], strict=True)
                    ]
                sentences += verdict.all_sentences[:MOST_SENTENCES]
        except (ValueError, OSError, ImportError):
            return []  # the report at the end says what is wrong
        return sentences


class TimeLeft:
    """Estimates the time that is left, from what runs have computed so far.

    The work of a run is its operations, where they are known for all runs, else the tokens of a
    document. Scoring text and generating answers reach different rates, so that each has its own:
    that of this sweep as soon as something is computed, before that the one from earlier sweeps.

    Args:
        runs: all runs of the sweep.
        estimates: what each run that is to do will take, as far as it is known.
    """

    def __init__(self, runs: Sequence[RunRecord], estimates: Mapping[str, Estimate]) -> None:
        self.shares: dict[str, ComputedShare | None] = {}
        self.hours: dict[str, float | None] = {}
        for run in runs:
            estimate = estimates.get(run.run_id, Estimate(None))
            self.shares[run.run_id] = estimate.share
            self.hours[run.run_id] = estimate.hours
        self.scores_text = {run.run_id: families_of(run.tasks) <= RUNNING_TEXT for run in runs}
        self.work: dict[str, float] = {}
        for run in runs:
            self.work[run.run_id] = float(size_of(run))
        flops = flops_by_run(estimates)
        if flops and flops.keys() == estimates.keys():
            # a run without an estimate is there already
            self.work = {name: flops.get(name, 0.0) for name in self.work}
        self.progress: dict[str, RunProgress] = {}
        self.states: dict[str, RunState] = {}

    def update(self, name: str, state: RunState, folder: Folder) -> None:
        """Take the state of a run, and read its progress."""
        before = self.states.get(name)
        self.states[name] = state
        if state.owner:
            # a file that is written in this moment leaves what is known
            self.progress[name] = folder.progress(name) or self.progress.get(name, RunProgress())
        elif state.done and before is not None and not before.done:
            content = read_json_object(folder.path / RUNS_FOLDER / name / RUN_FILE) or {}
            seconds = float(content.get("seconds") or 0.0)
            last = self.progress.get(name, RunProgress())
            # what one worker wrote is not the time of all that took part
            seconds = max(seconds, last.seconds)
            self.progress[name] = last._replace(seconds=seconds, answered=last.requests)

    def share(self, name: str) -> float:
        """Return the share of a run that is computed, from 0 to 1."""
        if self.states[name].is_over:
            return 1.0
        if name not in self.progress or not self.states[name].owner:
            return 0.0
        return self.progress[name].share(self.shares[name])

    def tokens_per_second(self, name: str) -> float:
        """Return the tokens per second of one worker of a run; 0 if its backend counts none."""
        progress = self.progress.get(name, RunProgress())
        if not progress.seconds:
            return 0.0
        return progress.tokens / progress.seconds

    def _rate(self, names: Sequence[str]) -> float | None:
        """Return the work per second and worker that some runs have reached in this sweep."""
        work = 0.0
        seconds = 0.0
        for name in names:
            progress = self.progress.get(name)
            if progress is None or self.states[name].failure is not None:
                continue
            fresh = self.share(name) - progress.resumed_share
            if fresh > 0 and progress.seconds > 0:
                work += self.work[name] * fresh
                seconds += progress.seconds
        if not work:
            return None
        return work / seconds

    def seconds_of(self, name: str) -> float | None:
        """Return the seconds that one worker still needs for a run; None if it is not known."""
        alike = [other for other in self.work if self.scores_text[other] == self.scores_text[name]]
        left = 1 - self.share(name)
        hours = self.hours[name]
        rate = self._rate(alike)
        if rate is None and hours is not None:
            return hours * HOUR * left
        rate = rate or self._rate(list(self.work))
        if rate is None:
            return None
        return self.work[name] * left / rate

    def seconds(self, states: Mapping[str, RunState]) -> float | None:
        """Return the seconds until all runs are over, with as many workers as now.

        Args:
            states: id of each run -> its state.
        """
        workers = sum(len(state.owners) for state in states.values())
        total = 0.0
        for name, state in states.items():
            if state.is_over:
                continue
            seconds = self.seconds_of(name)
            if seconds is None:
                return None
            total += seconds
        return total / max(1, workers)
