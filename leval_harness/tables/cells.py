"""Numbers as cells, and what is said of several of them at once."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import fmean
from typing import NamedTuple

from leval_harness.analysis.entries import Entry
from leval_harness.results import Run, Score
from leval_harness.tables.model import Cell

NOTHING = Cell("–")


class Cost(NamedTuple):
    """An optional column: its head, a run's number, how those of a row are joined, its format."""

    head: str
    of: Callable[[Run], float | None]
    join: Callable[[Sequence[float]], float]
    style: str = ",.0f"


def _telemetry(name: str, run: Run, factor: float = 1.0) -> float | None:
    number = run.telemetry.get(name)
    return None if number is None else factor * number


COSTS = {
    "seconds": Cost("Seconds", lambda run: run.seconds, sum, ",.1f"),
    "tokens_per_second": Cost("Tokens/s", lambda run: run.tokens_per_second, fmean, ",.1f"),
    "peak_memory": Cost(
        "Peak GiB", partial(_telemetry, "peak_memory_bytes", factor=1 / 2**30), max, ",.1f"
    ),
    **{
        name: Cost(name.removeprefix("tokens_").capitalize(), partial(_telemetry, name), sum)
        for name in ("tokens_prefilled", "tokens_shared", "tokens_generated", "tokens_unique")
    },
}
"""Optional columns by their names on the command line."""


def number_cell(entry: Entry | None) -> Cell:
    """A number in its unit, with its standard error; a dash for None."""
    if entry is None:
        return NOTHING
    score = entry.score
    if score.value is None or not score.finished:
        return Cell(f"({score.status})", entry=entry)
    value = score.percent * score.value
    error = "" if score.stderr is None else _number(score.percent * score.stderr, score)
    known = (entry.mark, entry.rank or 0, entry)
    return Cell(_number(value, score), value, error, *known, _between(entry), _bounds(score))


def _number(value: float, score: Score) -> str:
    return f"{value:.{2 if score.percent == 100 else 3}f}"


def _between(entry: Entry) -> str:
    """The exact interval, which stands alone where all answers are right, or all wrong."""
    score = entry.score
    if entry.interval == "exact" and entry.low is not None and entry.high is not None:
        return f"({score.percent * entry.low:.1f} to {score.percent * entry.high:.1f})"
    return ""


def _bounds(score: Score) -> str:
    """The score if all answers cut while thinking were wrong, and if they were right."""
    if score.if_wrong is None or score.if_right is None:
        return ""
    wrong, right = (_number(score.percent * end, score) for end in (score.if_wrong, score.if_right))
    return f"[{wrong} to {right}]"


def average_cell(entries: Sequence[Entry | None]) -> Cell:
    """Unweighted mean of several tasks and its standard error, %; a dash if one is missing."""
    scores = [entry.score for entry in entries if entry and entry.score.finished]
    values = [score.value for score in scores if score.value is not None]
    if len(values) < len(entries):
        return NOTHING
    average = 100 * (sum(values) / len(values))
    errors = [score.stderr for score in scores if score.stderr is not None]
    stderr = 100 * (math.sqrt(sum(error**2 for error in errors)) / len(values))
    known = len(errors) == len(values) and math.isfinite(stderr)
    return Cell(f"{average:.2f}", average, f"{stderr:.2f}" if known else "")


def share_cell(entries: Iterable[Entry], share: str) -> Cell:
    """Share (a field of `Score`) of all questions of a row, weighted by their number, %."""
    shares = [
        (part, n) for score, n in _asked(entries) if (part := getattr(score, share)) is not None
    ]
    if not shares:
        return NOTHING
    percent = 100 * sum(part * n for part, n in shares) / sum(n for _, n in shares)
    return Cell(f"{percent:.1f}", percent)


def _asked(entries: Iterable[Entry]) -> list[tuple[Score, int]]:
    """A score of each task that is done, and its number of questions."""
    scores = {
        (entry.score.run, entry.task): entry.score
        for entry in entries
        if entry.score.status == "done" and entry.score.n
    }
    return [(score, score.n or 0) for score in scores.values()]


def cost_cell(entries: Iterable[Entry], cost: Cost) -> Cell:
    """Time and tokens add up over the runs of a row; speed is averaged, memory the largest."""
    runs = {entry.score.run: entry.run for entry in entries}
    numbers = [number for run in runs.values() if (number := cost.of(run)) is not None]
    if not numbers:
        return NOTHING
    value = float(cost.join(numbers))
    return Cell(format(value, cost.style), value)


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
    """What a guess would score, as a fraction; None where it is not known."""
    chances = (entry.score.chance for entry in entries)
    return next((chance for chance in chances if chance is not None), None)


def chance_cell(entries: Iterable[Entry]) -> Cell:
    """What a guess would score, %."""
    chance = chance_of(entries)
    return Cell() if chance is None else Cell(f"{100 * chance:.1f}", 100 * chance)
