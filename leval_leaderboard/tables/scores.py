"""Tables of scores: a row for each method and context length, a column for each task."""

from collections.abc import Callable, Sequence

from leval_leaderboard.tables.analysis import Analysis, grouped
from leval_leaderboard.tables.cells import (
    COSTS,
    average_cell,
    chance_cell,
    chance_of,
    cost_cell,
    counts_cell,
    number_cell,
    share_cell,
)
from leval_leaderboard.tables.entries import Entry
from leval_leaderboard.tables.model import Block, Cell, Column, Row, Table, ranked
from leval_leaderboard.tables.names import BESIDE, CLOSED, length_label, task_label
from leval_leaderboard.tables.notes import table_notes
from leval_leaderboard.tables.published import published_block, sizes_of

HIDDEN = ("word_perplexity", "byte_perplexity", "bits_per_byte")
"""Families that no table of several tasks shows: they repeat the token perplexity."""


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
    columns = _columns(entries, tasks)
    more = [Column("Cut"), Column("Unparsed"), *(Column(COSTS[name].head) for name in costs)]

    def more_cells(line: Sequence[Entry]) -> list[Cell]:
        shares = [share_cell(line, "cut"), share_cell(line, "unparsed")]
        return shares + [cost_cell(line, COSTS[name]) for name in costs]

    blocks = [
        Block(name, (*_rows(block, columns, more_cells), *_information(block, columns, len(more))))
        for name, block in grouped(entries, lambda entry: entry.block).items()
    ]
    average = any(column.kind == "average" for column in columns)
    notes = table_notes(entries, analysis, average)
    return Table(title, (*columns, *more), tuple(blocks), notes)


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
    """Method, length, and what entries stand under: some tasks in order, then others as they come.

    An average stands behind the paper's six.
    """
    place = {task: at for at, task in enumerate(tasks)}
    columns = [
        Column(label, True, "task", part[0].task, part[0].score.percent == 1, chance_of(part))
        for label, part in grouped([e for e in entries if e.task], _heading).items()
    ]
    columns.sort(key=lambda column: place.get(column.task, len(place)))
    if set(CLOSED) <= {column.task for column in columns}:
        columns.insert(len(CLOSED), Column("Avg.", kind="average"))
    return [Column("Method", numeric=False, kind="name"), Column("Ctx", kind="length"), *columns]


def _heading(entry: Entry) -> str:
    """What an entry stands under: the task, and of a perplexity which one and its length."""
    if entry.score.at is None or not entry.is_perplexity:
        return task_label(entry.task)
    kind = entry.score.family.split("_")[0]
    return f"{task_label(entry.task)} {kind} ppl@{length_label(entry.score.at)}"


def _rows(
    block: Sequence[Entry],
    columns: Sequence[Column],
    more_cells: Callable[[Sequence[Entry]], list[Cell]] = lambda line: [],
) -> list[Row]:
    """A row for each length, ascending, and method; averages are ranked among those of one length.

    Under each heading the last entry of a row counts.
    """
    rows = []
    ordered = sorted(block, key=lambda entry: entry.run.context_length or -1)
    for length, of_length in grouped(ordered, lambda entry: entry.run.context_length).items():
        lines = grouped(of_length, lambda entry: entry.label)
        by_heading = [{_heading(entry): entry for entry in line} for line in lines.values()]
        six = [[under.get(title) for title in CLOSED.values()] for under in by_heading]
        averages = ranked([average_cell(entries) for entries in six])
        for (label, line), under, average in zip(lines.items(), by_heading, averages, strict=True):
            cells = [
                average if column.kind == "average" else number_cell(under.get(column.label))
                for column in columns[2:]
            ]
            stopped = all(entry.score.status != "done" for entry in line)
            rows.append(
                Row(
                    (Cell(label), Cell(length_label(length)), *cells, *more_cells(line)),
                    "stopped" if stopped else "ours",
                    label,
                    length,
                    line[0].score.partial,
                    line[0].score.sample,
                )
            )
    return rows


def _information(block: Sequence[Entry], columns: Sequence[Column], width: int) -> list[Row]:
    """Rows below a block, with so many cells left empty: questions and documents, and chance."""
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
