"""Tables of scores: a row for each method and context length, a column for each task."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from leval_leaderboard.tables.analysis import Analysis, grouped
from leval_leaderboard.tables.cells import (
    COSTS,
    average_cell,
    average_of,
    chance_cell,
    cost_cell,
    counts_cell,
    number_cell,
    share_cell,
)
from leval_leaderboard.tables.entries import Entry
from leval_leaderboard.tables.model import Block, Cell, Column, Row, Table
from leval_leaderboard.tables.names import BESIDE, CLOSED, length_label, task_label
from leval_leaderboard.tables.notes import table_notes
from leval_leaderboard.tables.published import published_block, sizes_of

HIDDEN = ("word_perplexity", "byte_perplexity", "bits_per_byte")
"""Families that no table of several tasks shows: they repeat the token perplexity."""


@dataclass(frozen=True)
class Line:
    """The entries of a method at one context length; under each heading the last one counts."""

    label: str
    length: int | None
    entries: list[Entry]
    by_heading: dict[str, Entry]


def heading(entry: Entry) -> str:
    """What an entry stands under: the task, and of a perplexity which one and its length."""
    if entry.score.at is None or not entry.is_perplexity:
        return task_label(entry.task)
    kind = entry.score.family.split("_")[0]
    return f"{task_label(entry.task)} {kind} ppl@{length_label(entry.score.at)}"


def lines(entries: Sequence[Entry]) -> list[Line]:
    """Rows of a block: lengths ascending, methods in the order of the runs."""
    by_place = grouped(entries, lambda entry: (entry.label, entry.run.context_length))
    made = [
        Line(label, length, part, {heading(entry): entry for entry in part})
        for (label, length), part in by_place.items()
    ]
    return sorted(made, key=lambda line: -1 if line.length is None else line.length)


def score_table(
    title: str,
    entries: Sequence[Entry],
    tasks: Sequence[str],
    costs: Sequence[str],
    analysis: Analysis,
) -> Table:
    """Scores of some tasks, with the share cut and unparsed, counts and chance.

    Args:
        title: of the table.
        entries: primary entries, of these tasks and others.
        tasks: in the order of the columns; the paper's six are averaged if all are there.
        costs: optional columns, names of `COSTS`.
        analysis: where the entries come from.
    """
    entries = [entry for entry in entries if entry.task in tasks]
    columns = _columns(entries, tasks)
    shares = (Column("Cut"), Column("Unparsed"), *(Column(COSTS[name].head) for name in costs))

    def more(line: Line) -> list[Cell]:
        return [
            share_cell(line.entries, lambda entry: entry.score.cut),
            share_cell(line.entries, lambda entry: entry.score.unparsed),
            *(cost_cell(line.entries, COSTS[name]) for name in costs),
        ]

    blocks = [
        Block(
            name,
            (*_rows(block, columns, more), *_information(block, columns, len(shares))),
        )
        for name, block in grouped(entries, lambda entry: entry.block).items()
    ]
    has_average = _average_column(columns) is not None
    notes = table_notes(entries, analysis, average=has_average)
    return Table(title, (*columns, *shares), tuple(blocks), notes)


def leaderboard_table(analysis: Analysis) -> Table:
    """Everything on one board: all tasks and perplexities, and the paper's rows of its models."""
    entries = [e for e in analysis.entries if e.score.primary and e.score.family not in HIDDEN]
    columns = _columns(entries, (*CLOSED, *BESIDE))
    blocks = [
        Block(name, tuple(_rows(block, columns)))
        for name, block in grouped(entries, lambda entry: entry.block).items()
    ]
    models = [entry.run.model for entry in analysis.entries]
    blocks += [published_block(size, columns) for size in sorted(sizes_of(models))]
    return Table("Leaderboard", tuple(columns), tuple(blocks), table_notes(entries, analysis))


def _columns(entries: Sequence[Entry], tasks: Sequence[str]) -> list[Column]:
    """Method, length, and the heads of the entries; an average stands behind the paper's six.

    Args:
        entries: what stands under the heads.
        tasks: these come first and in this order, others as they come.
    """
    place = {task: at for at, task in enumerate(tasks)}
    heads = grouped([entry for entry in entries if entry.task], heading)
    columns = [_task_column(label, part) for label, part in heads.items()]
    columns.sort(key=lambda column: place.get(column.task, len(place)))
    if set(CLOSED) <= {column.task for column in columns}:
        columns.insert(len(CLOSED), Column("Avg.", kind="average"))
    return [Column("Method", numeric=False, kind="name"), Column("Ctx", kind="length"), *columns]


def _task_column(label: str, entries: Sequence[Entry]) -> Column:
    chances = [entry.score.chance for entry in entries if entry.score.chance is not None]
    lower = entries[0].score.percent == 1
    return Column(label, True, "task", entries[0].task, lower, chances[0] if chances else None)


def _average_column(columns: Sequence[Column]) -> int | None:
    return next((at for at, column in enumerate(columns) if column.kind == "average"), None)


def _rows(
    block: Sequence[Entry],
    columns: Sequence[Column],
    more: Callable[[Line], list[Cell]] = lambda line: [],
) -> list[Row]:
    """A row for each method and length; averages are ranked among those of one length."""
    ordered = lines(block)
    at = _average_column(columns)
    averages = {}
    if at is not None:
        for line in ordered:
            averages[id(line)] = average_of(line.by_heading.get(task) for task in CLOSED.values())
    rows = []
    for line in ordered:
        cells = [Cell(line.label), Cell(length_label(line.length))]
        cells += [number_cell(line.by_heading.get(column.label)) for column in columns[2:]]
        if at is not None:
            rivals = [averages[id(other)] for other in ordered if other.length == line.length]
            cells[at] = average_cell(averages[id(line)], rivals)
        scores = [entry.score for entry in line.entries]
        rows.append(
            Row(
                (*cells, *more(line)),
                "stopped" if all(score.status != "done" for score in scores) else "ours",
                line.label,
                line.length,
                scores[0].partial,
                scores[0].sample,
            )
        )
    return rows


def _information(block: Sequence[Entry], columns: Sequence[Column], width: int) -> list[Row]:
    """Rows below a block: how many questions and documents, and chance."""
    by_task = grouped(block, lambda entry: entry.task)
    rows = []
    for label, cell_of in (("questions/documents", counts_cell), ("chance", chance_cell)):
        cells = [
            cell_of(by_task.get(column.task, ())) if column.kind == "task" else Cell("")
            for column in columns[1:]
        ]
        if any(cell.text for cell in cells):
            rows.append(Row((Cell(label), *cells, *[Cell("")] * width), "info"))
    return rows
