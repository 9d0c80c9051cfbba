"""A table that people read: texts with emphasis, a title and notes."""

from dataclasses import dataclass

import pandas as pd

BEST = "font-weight: bold"
SECOND = "text-decoration: underline"
QUIET = "font-style: italic"
"""The emphasis of a cell, as CSS."""

NONE = "–"
"""A cell without a number."""


@dataclass(frozen=True)
class Table:
    """A table in the form that every format is written from.

    Attributes:
        title: what the table shows.
        cells: texts; the index names the rows.
        css: emphasis of each cell, of the same shape.
        notes: sentences that explain it.
    """

    title: str
    cells: pd.DataFrame
    css: pd.DataFrame
    notes: tuple[str, ...] = ()

    @classmethod
    def plain(cls, title: str, cells: pd.DataFrame, *notes: str) -> "Table":
        """Return a table without emphasis."""
        return cls(title, cells, pd.DataFrame("", cells.index, cells.columns), notes)

    @property
    def caption(self) -> str:
        """Return title and notes: all that a reader of the table alone needs."""
        return " ".join([f"{self.title}.", *self.notes])
