"""Numbers as cells, and what is said of several of them at once."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from leval_leaderboard.results import Run
from leval_leaderboard.tables.entries import Entry
from leval_leaderboard.tables.model import Cell, emphasis_of


@dataclass(frozen=True)
class Cost:
    """An optional column: its head, a run's number, how those of a row are joined, its format."""

    head: str
    of: Callable[[Run], float | None]
    join: Callable[[Sequence[float]], float]
    style: str


def _telemetry(name: str, factor: float = 1.0) -> Callable[[Run], float | None]:
    def of(run: Run) -> float | None:
        number = run.telemetry.get(name)
        return None if number is None else factor * number

    return of


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


COSTS = {
    "seconds": Cost("Seconds", lambda run: run.seconds, sum, ",.1f"),
    "tokens_per_second": Cost("Tokens/s", lambda run: run.tokens_per_second, _mean, ",.1f"),
    "peak_memory": Cost("Peak GiB", _telemetry("peak_memory_bytes", 1 / 2**30), max, ",.1f"),
    "tokens_prefilled": Cost("Prefilled", _telemetry("tokens_prefilled"), sum, ",.0f"),
    "tokens_shared": Cost("Shared", _telemetry("tokens_shared"), sum, ",.0f"),
    "tokens_generated": Cost("Generated", _telemetry("tokens_generated"), sum, ",.0f"),
    "tokens_unique": Cost("Unique", _telemetry("tokens_unique"), sum, ",.0f"),
}
"""Optional columns by their names on the command line."""


def number_cell(entry: Entry | None, sole: bool = False) -> Cell:
    """A score in percent or a perplexity, with its standard error.

    Args:
        entry: None where nothing was run.
        sole: whether there is nobody to be ranked against.
    """
    if entry is None:
        return Cell("–")
    score = entry.score
    if score.value is None or score.status != "done":
        return Cell(f"({score.status})", entry=entry)
    digits, times = (3, 1.0) if entry.is_perplexity else (2, 100.0)
    return Cell(
        f"{times * score.value:.{digits}f}",
        times * score.value,
        "" if score.stderr is None else f"{times * score.stderr:.{digits}f}",
        entry.mark,
        "" if sole else emphasis_of(entry.rank),
        entry,
    )


@dataclass(frozen=True)
class Average:
    """Unweighted mean of several tasks and its standard error, as fractions."""

    value: float
    stderr: float | None


def average_of(entries: Iterable[Entry | None]) -> Average | None:
    """The average of some entries; None if one of them has no number."""
    values, squares = [], []
    for entry in entries:
        if entry is None or entry.score.value is None or entry.score.status != "done":
            return None
        values.append(entry.score.value)
        squares.append(math.nan if entry.score.stderr is None else entry.score.stderr**2)
    stderr = math.sqrt(sum(squares)) / len(values)
    return Average(sum(values) / len(values), stderr if math.isfinite(stderr) else None)


def average_cell(average: Average | None, rivals: Iterable[Average | None]) -> Cell:
    """An average in percent, ranked among all that stand beside it (itself included)."""
    if average is None:
        return Cell("–")
    values = sorted({round(each.value, 12) for each in rivals if each}, reverse=True)
    rank = values.index(round(average.value, 12)) + 1 if len(values) > 1 else 0
    spread = "" if average.stderr is None else f"{100 * average.stderr:.2f}"
    value = 100 * average.value
    return Cell(f"{value:.2f}", value, spread, "", emphasis_of(rank), rank=rank)


def share_cell(entries: Iterable[Entry], share: Callable[[Entry], float | None]) -> Cell:
    """Share of all questions of a row, weighted by their number, %."""
    known = [
        (part, entry.score.n)
        for entry in entries
        if entry.score.status == "done" and entry.score.n and (part := share(entry)) is not None
    ]
    if not known:
        return Cell("–")
    percent = 100 * sum(part * n for part, n in known) / sum(n for _, n in known)
    return Cell(f"{percent:.1f}", percent)


def cost_cell(entries: Iterable[Entry], cost: Cost) -> Cell:
    """Time and tokens add up over the runs of a row; speed is averaged, memory the largest."""
    runs = {entry.score.run: entry.run for entry in entries}
    numbers = [number for run in runs.values() if (number := cost.of(run)) is not None]
    if not numbers:
        return Cell("–")
    value = float(cost.join(numbers))
    return Cell(format(value, cost.style), value)


def counts_cell(entries: Iterable[Entry]) -> Cell:
    """Questions and documents of a task."""
    counts = {
        (e.score.n, e.score.clusters) for e in entries if e.score.status == "done" and e.score.n
    }
    texts = [
        f"{n:g}/{'–' if clusters is None else format(clusters, 'g')}"
        for n, clusters in sorted(
            counts, key=lambda pair: (pair[0], math.inf if pair[1] is None else pair[1])
        )
    ]
    return Cell(" to ".join(dict.fromkeys([texts[0], texts[-1]])) if texts else "")


def chance_cell(entries: Iterable[Entry]) -> Cell:
    """What a guess would score, %."""
    chances = [entry.score.chance for entry in entries if entry.score.chance is not None]
    return Cell(f"{100 * chances[0]:.1f}", 100 * chances[0]) if chances else Cell("")
