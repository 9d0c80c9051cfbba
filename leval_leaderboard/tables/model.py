"""The table model: what is in a table, with nothing of any output format."""

from dataclasses import dataclass, field
from typing import Literal

Emphasis = Literal["", "best", "second"]
RowKind = Literal["ours", "published", "info", "stopped"]


@dataclass(frozen=True)
class Cell:
    """One entry: plain text to show, and what is known of it.

    `value` and `stderr` are what CSV writes, in the unit shown (percent for scores). `mark` is a
    short sign explained in the table's notes.
    """

    text: str = ""
    value: float | str | None = None
    stderr_text: str = ""
    mark: str = ""
    emphasis: Emphasis = ""


@dataclass(frozen=True)
class Column:
    """A column; numbers are aligned right."""

    label: str
    numeric: bool = True


@dataclass(frozen=True)
class Row:
    """A row of as many cells as the table has columns."""

    cells: tuple[Cell, ...]
    kind: RowKind = "ours"


@dataclass(frozen=True)
class Block:
    """Rows that may be ranked against each other: one model in one setting."""

    title: str
    rows: tuple[Row, ...]
    published: bool = False


@dataclass(frozen=True)
class Table:
    """A titled table with blocks of rows and notes below it."""

    title: str
    columns: tuple[Column, ...]
    blocks: tuple[Block, ...]
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        for block in self.blocks:
            for row in block.rows:
                if len(row.cells) != len(self.columns):
                    raise ValueError(
                        f"row of {len(row.cells)} cells in table '{self.title}' of "
                        f"{len(self.columns)} columns"
                    )
