"""The table model: what is in a table, independent of the output format."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Literal

from leval_harness.analysis import Entry
from leval_harness.analysis.entries import Item, grouped

RowKind = Literal["ours", "published", "info", "stopped"]
ColumnKind = Literal["name", "length", "task", "average", "more"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One place of a row.

    Attributes:
        text: plain text to show.
        value: the number, in the unit shown (percent for shares); CSV writes it.
        stderr_text: its standard error, in the same unit.
        mark: a short sign that the table's notes explain.
        rank: 1 for the best, 0 without rivals.
        entry: the score behind a number, or the reason why there is none.
        between: the interval where no standard error is known.
        bounds: the number if every answer that ran out of tokens were wrong, and if it were right.
    """

    text: str = ""
    value: float | None = None
    stderr_text: str = ""
    mark: str = ""
    rank: int = 0
    entry: Entry | None = None
    between: str = ""
    bounds: str = ""

    @property
    def spread(self) -> str:
        """The number's uncertainty, as it is shown."""
        error = f"± {self.stderr_text}" if self.stderr_text else self.between
        return f"{error} {self.bounds}".strip()

    @property
    def emphasis(self) -> str:
        """`best`, `second` or empty."""
        return {1: "best", 2: "second"}.get(self.rank, "")


NOTHING = Cell("–")


def number_cell(value: float | None, style: str = ".2f", stderr: float | None = None) -> Cell:
    """A number in a format, with its standard error if that is finite; a dash for None."""
    if value is None:
        return NOTHING
    error = "" if stderr is None or not math.isfinite(stderr) else format(stderr, style)
    return Cell(format(value, style), float(value), error)


def ranked(cells: Sequence[Cell]) -> list[Cell]:
    """Cells of one column with their ranks, the highest first; none if all are equal."""
    values = {round(cell.value, 10) for cell in cells if cell.value is not None}
    order = sorted(values, reverse=True) if len(values) > 1 else []
    return [
        replace(cell, rank=order.index(round(cell.value, 10)) + 1)
        if order and cell.value is not None
        else cell
        for cell in cells
    ]


@dataclass(frozen=True, slots=True)
class Column:
    """A column; numbers are aligned right.

    That of a task has the task, whether its metric is better lower, is shown in percent, counts
    nats or is a perplexity of tokens, and the score of a guess.
    """

    label: str
    numeric: bool = True
    kind: ColumnKind = "more"
    task: str = ""
    lower_is_better: bool = False
    percent: bool = True
    nats: bool = False
    perplexity: bool = False
    chance: float | None = None


METHOD = Column("Method", numeric=False, kind="name")


def text_columns(labels: Sequence[str], texts: int) -> tuple[Column, ...]:
    """Columns of which the first few hold text and the others numbers."""
    return tuple(Column(label, numeric=at >= texts) for at, label in enumerate(labels))


@dataclass(frozen=True, slots=True)
class Row:
    """A row of as many cells as the table has columns; of one method at one length in most."""

    cells: tuple[Cell, ...]
    kind: RowKind = "ours"
    method: str = ""
    length: int | None = None
    partial: bool = False
    sample: bool = False


@dataclass(frozen=True, slots=True)
class Block:
    """Rows that may be ranked against each other: one model in one setting."""

    title: str
    rows: tuple[Row, ...]


def blocks_by_method(
    items: Iterable[Item],
    cells: Callable[[Sequence[Item]], Iterable[Cell]],
    method: Callable[[Item], str] = attrgetter("method"),
) -> tuple[Block, ...]:
    """Blocks by the items' `block`, with a row for each method: its name, then the cells."""
    blocks = []
    for title, of_block in grouped(items, attrgetter("block")).items():
        rows = tuple(
            Row((Cell(label), *cells(part)), "ours", label)
            for label, part in grouped(of_block, method).items()
        )
        blocks.append(Block(title, rows))
    return tuple(blocks)


@dataclass(frozen=True, slots=True)
class Table:
    """A titled table with blocks of rows and notes below it.

    `sentences` say what it shows; where a verdict follows the tables, they are left out.
    """

    title: str
    columns: tuple[Column, ...]
    blocks: tuple[Block, ...]
    notes: tuple[str, ...] = ()
    sentences: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for block in self.blocks:
            for row in block.rows:
                if (width := len(row.cells)) != len(self.columns):
                    raise ValueError(f"row of {width} cells in table '{self.title}'")

    @property
    def below(self) -> tuple[str, ...]:
        """What stands below it in a file."""
        return (*self.sentences, *self.notes)

    def records(self) -> list[dict[str, object]]:
        """Rows as objects for JSON: numbers in full precision, null where missing."""
        return [
            {
                column.label: (cell.value if column.numeric else cell.text)
                for column, cell in zip(self.columns, row.cells, strict=True)
            }
            for block in self.blocks
            for row in block.rows
        ]
