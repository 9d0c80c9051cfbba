"""Cells of scores: one number, and what several entries of a row have in common."""

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

from leval_harness.analysis import Entry
from leval_harness.results import Run, Score
from leval_harness.tables.model import NOTHING, Cell, number_cell
from leval_tasks.statistics.clustered import mean_of_estimates


class Cost(NamedTuple):
    """An optional column: its head, a run's number, how those of a row are joined, its format."""

    head: str
    of: Callable[[Run], float | None]
    join: Callable[[Sequence[float]], float]
    style: str = ",.1f"


def _telemetry(name: str, unit: float = 1.0) -> Callable[[Run], float | None]:
    """How a number of a run's telemetry is read, in some unit."""
    return lambda run: run.telemetry[name] / unit if name in run.telemetry else None


COSTS = {
    "seconds": Cost("Seconds", lambda run: run.seconds, sum),
    "tokens_per_second": Cost("Tokens/s", lambda run: run.tokens_per_second, fmean),
    "peak_memory": Cost("Peak GiB", _telemetry("peak_memory_bytes", 2**30), max),
    **{
        f"tokens_{name}": Cost(name.capitalize(), _telemetry(f"tokens_{name}"), sum, ",.0f")
        for name in ("prefilled", "shared", "generated", "unique")
    },
}
"""Optional columns by their names on the command line."""


def score_cell(entry: Entry | None) -> Cell:
    """A number in its unit, with its standard error; a dash for None.

    Where all answers are right, or all wrong, the exact interval replaces the standard error.
    """
    if entry is None:
        return NOTHING
    score, times = entry.score, entry.score.percent
    if score.value is None or not score.finished:
        return Cell(f"({score.status})", entry=entry)
    style = ".2f" if times == 100 else ".3f"
    between = bounds = ""
    if entry.interval == "exact" and entry.low is not None and entry.high is not None:
        between = f"({times * entry.low:.1f} to {times * entry.high:.1f})"
    if score.if_wrong is not None and score.if_right is not None:
        bounds = f"[{times * score.if_wrong:{style}} to {times * score.if_right:{style}}]"
    return Cell(
        format(times * score.value, style),
        times * score.value,
        "" if score.stderr is None else format(times * score.stderr, style),
        entry.mark,
        entry.rank or 0,
        entry,
        between,
        bounds,
    )


def average_cell(entries: Sequence[Entry | None]) -> Cell:
    """Unweighted mean of several tasks and its standard error, %; a dash if one is missing."""
    scores = [entry.score for entry in entries if entry and entry.score.finished]
    values = [score.value for score in scores if score.value is not None]
    if len(values) < len(entries):
        return NOTHING
    errors = [math.nan if score.stderr is None else score.stderr for score in scores]
    mean, stderr = mean_of_estimates(values, errors)
    return number_cell(100 * mean, stderr=100 * stderr)


def share_cell(entries: Iterable[Entry], share: str) -> Cell:
    """Share (a field of `Score`) of all questions of a row, weighted by their number, %."""
    shares = [
        (part, n) for score, n in _asked(entries) if (part := getattr(score, share)) is not None
    ]
    if not shares:
        return NOTHING
    return number_cell(100 * sum(part * n for part, n in shares) / sum(n for _, n in shares), ".1f")


def _asked(entries: Iterable[Entry]) -> list[tuple[Score, int]]:
    """A score of each task that is done, and its number of questions."""
    scores = {
        (entry.score.run, entry.task): entry.score
        for entry in entries
        if entry.score.status == "done" and entry.score.n
    }
    return [(score, score.n or 0) for score in scores.values()]


def cost_cell(entries: Iterable[Entry], cost: Cost) -> Cell:
    """What the runs of a row cost together."""
    runs = {entry.score.run: entry.run for entry in entries}
    numbers = [number for run in runs.values() if (number := cost.of(run)) is not None]
    return number_cell(cost.join(numbers), cost.style) if numbers else NOTHING


def counts_cell(entries: Iterable[Entry]) -> Cell:
    """Questions and documents of a task: the fewest, and the most where runs differ."""
    counts = sorted(
        (n, math.inf if score.clusters is None else score.clusters) for score, n in _asked(entries)
    )
    texts = [
        f"{n:g}/{'–' if documents == math.inf else f'{documents:g}'}" for n, documents in counts
    ]
    return Cell(" to ".join(dict.fromkeys([texts[0], texts[-1]])) if texts else "")


def chance_of(entries: Iterable[Entry]) -> float | None:
    """Expected score of a guess, as a fraction; None where it is not known."""
    chances = (entry.score.chance for entry in entries)
    return next((chance for chance in chances if chance is not None), None)


def chance_cell(entries: Iterable[Entry]) -> Cell:
    """Expected score of a guess, %."""
    chance = chance_of(entries)
    return Cell() if chance is None else number_cell(100 * chance, ".1f")
