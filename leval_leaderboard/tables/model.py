"""The table model: what is in a table, with nothing of any output format."""

from dataclasses import dataclass, field
from typing import Literal

from leval_leaderboard.tables.entries import Entry

Emphasis = Literal["", "best", "second"]
RowKind = Literal["ours", "published", "info", "stopped"]
ColumnKind = Literal["name", "length", "task", "average", "more"]


def emphasis_of(rank: int | None) -> Emphasis:
    """Best, second or nothing."""
    return "best" if rank == 1 else "second" if rank == 2 else ""


@dataclass(frozen=True, slots=True)
class Cell:
    """One place of a row: plain text to show, and what is known of it.

    `value` and `stderr_text` are in the unit shown (percent for scores); CSV writes the value.
    `mark` is a short sign explained in the table's notes. `entry` is the score behind a number,
    or why there is none; `rank` that of a number made of several (an average), 0 without rivals.
    """

    text: str = ""
    value: float | str | None = None
    stderr_text: str = ""
    mark: str = ""
    emphasis: Emphasis = ""
    entry: Entry | None = None
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Column:
    """A column; numbers are aligned right. A task's says which task, which way and chance."""

    label: str
    numeric: bool = True
    kind: ColumnKind = "more"
    task: str = ""
    lower_is_better: bool = False
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
    published: bool = False


@dataclass(frozen=True, slots=True)
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
