"""The table model: what is in a table, with nothing of any output format."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from leval_harness.analysis.entries import Entry

RowKind = Literal["ours", "published", "info", "stopped"]
ColumnKind = Literal["name", "length", "task", "average", "more"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One place of a row: plain text to show, and what is known of it.

    `value` and `stderr_text` are in the unit shown (percent for shares); CSV writes the value.
    `between` is the interval where no standard error is known, `bounds` what the number would be
    if every answer that is missing for want of tokens were wrong, and if it were right.
    `mark` is a short sign explained in the table's notes, `rank` 1 for the best and 0 without
    rivals. `entry` is the score behind a number, or why there is none.
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
        """What is known of the number's uncertainty, as it is shown."""
        error = f"± {self.stderr_text}" if self.stderr_text else self.between
        return f"{error} {self.bounds}".strip()

    @property
    def emphasis(self) -> str:
        """`best`, `second` or empty."""
        return {1: "best", 2: "second"}.get(self.rank, "")


def ranked(cells: Sequence[Cell]) -> list[Cell]:
    """Cells of one column with their ranks, the highest first; without, where nobody differs."""
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
    """A column; numbers are aligned right. A task's says which task, which way, unit and chance."""

    label: str
    numeric: bool = True
    kind: ColumnKind = "more"
    task: str = ""
    lower_is_better: bool = False
    percent: bool = True
    nats: bool = False
    chance: float | None = None


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


@dataclass(frozen=True, slots=True)
class Table:
    """A titled table with blocks of rows and notes below it."""

    title: str
    columns: tuple[Column, ...]
    blocks: tuple[Block, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for block in self.blocks:
            for row in block.rows:
                if (width := len(row.cells)) != len(self.columns):
                    raise ValueError(f"row of {width} cells in table '{self.title}'")

    def records(self) -> list[dict[str, object]]:
        """Rows as objects for JSON: numbers of full precision, null where missing."""
        return [
            {
                column.label: (cell.value if column.numeric else cell.text)
                for column, cell in zip(self.columns, row.cells, strict=True)
            }
            for block in self.blocks
            for row in block.rows
        ]
