"""Tables of scores: a row for each method and context length, a column for each task."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

from leval_harness.analysis import Analysis, Entry
from leval_harness.analysis.entries import TOKEN_PERPLEXITIES, grouped
from leval_harness.analysis.labels import BESIDE, CLOSED, distinct, length_label, task_label
from leval_harness.old_results import Run, Score
from leval_harness.old_results.task_scores import PRIMARY
from leval_harness.old_tables.model import (
    METHOD,
    NOTHING,
    Block,
    Cell,
    Column,
    Row,
    Table,
    number_cell,
    ranked,
)
from leval_harness.old_tables.notes import table_notes
from leval_harness.old_tables.published import published_block, sizes_of
from leval_tasks.metrics import length_of
from leval_tasks.statistics.clustered import mean_of_estimates

SHARES = {"cut": "Truncated", "unparsed": "No answer found"}
OUT_OF_TOKENS = {"at_limit": "Hit max tokens", "thinking_cut": "Thinking cut"}
"""Fields of `Score` that stand beside scores; the second ones only where they are known."""

Heading = Callable[[Entry], str]


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


def score_table(
    title: str,
    entries: Sequence[Entry],
    tasks: Sequence[str],
    costs: Sequence[str],
    analysis: Analysis,
) -> Table:
    """Scores of some tasks, with the share cut and unparsed, counts, chance and `COSTS` by name.

    The tasks are columns in this order; the paper's six are averaged if all are there.
    """
    entries = [entry for entry in entries if entry.task in tasks]
    heading = _headings(entries)
    columns = _columns(entries, tasks, heading)
    shares = SHARES | {
        name: head
        for name, head in OUT_OF_TOKENS.items()
        if any(getattr(entry.score, name) is not None for entry in entries)
    }

    def more_cells(line: Sequence[Entry]) -> list[Cell]:
        cells = [share_cell(line, share) for share in shares]
        return cells + [cost_cell(line, COSTS[name]) for name in costs]

    more = [Column(head) for head in (*shares.values(), *(COSTS[name].head for name in costs))]
    blocks = []
    for name, block in grouped(entries, lambda entry: entry.block).items():
        rows = _rows(block, columns, heading, more_cells)
        blocks.append(Block(name, (*rows, *_information(block, columns, len(more)))))
    average = any(column.kind == "average" for column in columns) or not {*tasks} & {*CLOSED}
    notes = table_notes(entries, analysis, average)
    return Table(title, (*columns, *more), tuple(blocks), notes)


def leaderboard_table(analysis: Analysis) -> Table:
    """Everything on one board: all tasks and perplexities, and the paper's rows of its models.

    A number stands in the row of the length in its metric's name, else of its run's.
    """
    entries = analysis.board
    heading = _headings(entries)
    columns = _columns(entries, (*CLOSED, *BESIDE), heading)
    blocks = [
        Block(name, tuple(_rows(block, columns, heading, length_of_row=lambda entry: entry.length)))
        for name, block in grouped(entries, lambda entry: entry.block).items()
    ]
    models = [entry.run.model for entry in analysis.entries]
    blocks += [published_block(size, columns) for size in sorted(sizes_of(models))]
    return Table("Leaderboard", tuple(columns), tuple(blocks), table_notes(entries, analysis))


def _columns(entries: Sequence[Entry], tasks: Sequence[str], heading: Heading) -> list[Column]:
    """Method, length, and a column for each heading: some tasks in order, then the others.

    An average stands behind the paper's six.
    """
    place = {task: at for at, task in enumerate(tasks)}
    columns = []
    for label, part in grouped([e for e in entries if e.task], heading).items():
        scores = [entry.score for entry in part if entry.score.metric]
        column = Column(
            label,
            kind="task",
            task=part[0].task,
            lower_is_better=any(score.higher_is_better is False for score in scores),
            percent=all(score.percent == 100 for score in scores),
            nats=any(score.meaning.kind == "loss" for score in scores),
            perplexity=bool(scores) and all(s.family in TOKEN_PERPLEXITIES for s in scores),
            chance=chance_of(part),
        )
        columns.append(column)
    columns.sort(key=lambda column: place.get(column.task, len(place)))
    if set(CLOSED) <= {column.task for column in columns}:
        columns.insert(len(CLOSED), Column("Avg.", kind="average"))
    return [METHOD, Column("Ctx", kind="length"), *columns]


def _headings(entries: Sequence[Entry]) -> Heading:
    """A function that gives the column head of each entry.

    That is the task, and of a perplexity which one: its lengths are rows. Of another project's task
    it is also the metric and the filter, where there are several or the metric is not a usual one.
    An entry without a number stands under the first heading of its task.
    """
    measured: dict[str, dict[tuple[str, str], Entry]] = defaultdict(dict)
    for entry in entries:
        if entry.score.metric and length_of(entry.score.metric) is None:
            measured[entry.task].setdefault((entry.score.metric, entry.score.chosen), entry)
    meanings: dict[str, tuple[str, ...]] = {}

    def heading(entry: Entry) -> str:
        if not entry.score.metric:
            entry = next(iter(measured[entry.task].values()), entry)
        score, parts = entry.score, [task_label(entry.task)]
        if entry.family or not score.metric or length_of(score.metric) is not None:
            if entry.family == "perplexity" and score.at is not None:
                parts.append(f"{score.family.split('_')[0]} ppl")
            return distinct(" ".join(parts), (entry.task,), meanings)
        metrics = {metric for metric, _ in measured[entry.task]}
        filters = {chosen for metric, chosen in measured[entry.task] if metric == score.metric}
        if len(metrics) > 1 or score.metric not in PRIMARY:
            parts.append(score.metric)
        if len(filters) > 1:
            parts.append(f"({score.chosen})")
        if not score.higher:
            parts.append("(lower is better)")
        return distinct(" ".join(parts), (entry.task, score.metric, score.chosen), meanings)

    return heading


def _rows(
    block: Sequence[Entry],
    columns: Sequence[Column],
    heading: Heading,
    more_cells: Callable[[Sequence[Entry]], list[Cell]] = lambda line: [],
    length_of_row: Callable[[Entry], int | None] = lambda entry: entry.score.context_length,
) -> list[Row]:
    """A row for each length, ascending, and method; averages are ranked among those of one length.

    Under each heading the last entry of a row counts.
    """
    rows = []
    kinds = [column.kind for column in columns[2:]]
    ordered = sorted(block, key=lambda entry: length_of_row(entry) or -1)
    for length, of_length in grouped(ordered, length_of_row).items():
        lines = grouped(of_length, lambda entry: entry.label)
        by_heading = [{heading(entry): entry for entry in line} for line in lines.values()]
        numbers = [[score_cell(at.get(c.label)) for c in columns[2:]] for at in by_heading]
        if "average" in kinds:
            six = ([at.get(title) for title in CLOSED.values()] for at in by_heading)
            for cells, average in zip(numbers, ranked(list(map(average_cell, six))), strict=True):
                cells[kinds.index("average")] = average
        for (label, line), cells in zip(lines.items(), numbers, strict=True):
            stopped = all(entry.score.status != "done" for entry in line)
            row = Row(
                (Cell(label), Cell(length_label(length)), *cells, *more_cells(line)),
                "stopped" if stopped else "ours",
                label,
                length,
                line[0].score.partial,
                line[0].score.sample,
            )
            rows.append(row)
    return rows


def _information(block: Sequence[Entry], columns: Sequence[Column], width: int) -> list[Row]:
    """Rows below a block: questions and documents, and chance; `width` cells more stay empty."""
    by_task = grouped(block, lambda entry: entry.task)
    rows = []
    for label, cell_of in (("questions/documents", counts_cell), ("chance", chance_cell)):
        cells = [
            cell_of(by_task.get(column.task, ())) if column.kind == "task" else Cell()
            for column in columns[1:]
        ]
        if any(cell.text for cell in cells):
            rows.append(Row((Cell(label), *cells, *[Cell()] * width), "info"))
    return rows


def score_cell(entry: Entry | None) -> Cell:
    """A number in its unit, with its standard error; a dash for None.

    Where all answers are right, or all wrong, the exact interval replaces the standard error.
    """
    if entry is None:
        return NOTHING
    score, times = entry.score, entry.score.percent
    if score.value is None or not score.finished:
        return Cell(f"({score.status})", entry=entry)
    style = f".{score.decimals}f"
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
