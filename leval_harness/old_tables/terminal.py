"""Tables for a terminal, drawn by rich; best bold, second underlined."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from leval_harness.old_tables.model import Cell, Table
from resonance_vllm.errors import plain

LONGEST_WORD = 14
"""Words up to this length are not broken in narrow columns."""


def draw(tables: Sequence[Table], console: Console) -> None:
    """Print tables one below the other, each with its notes.

    A table that is wider than the terminal wraps its cells; a block's title has a line of its own.
    """
    for table in tables:
        console.print(_drawn(table))


def _drawn(table: Table) -> Group:
    parts: list[RenderableType] = [Text(plain(table.title), style="bold underline")]
    for block in table.blocks:
        title = plain(block.title) or None
        grid = Grid(box=SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
        grid.padding = (0, 1, 0, 0)
        for at, column in enumerate(table.columns):
            cells = " ".join(plain(row.cells[at].text) for row in block.rows)
            words = (len(word) for word in f"{plain(column.label)} {cells}".split())
            grid.add_column(
                Text(plain(column.label)),
                justify="right" if column.numeric else "left",
                overflow="fold",
                min_width=min(max(words), LONGEST_WORD),
            )
        for row in block.rows:
            quiet = "dim" if row.kind in {"published", "info"} else ""
            grid.add_row(*map(_text, row.cells), style=quiet)
        parts.append(grid)
    parts += [Padding(Text(plain(note), style="dim"), (0, 0, 0, 2)) for note in table.notes]
    return Group(*parts, Text())


def _text(cell: Cell) -> Text:
    style = {"best": "bold", "second": "underline"}.get(cell.emphasis, "")
    text = Text(plain(cell.text), style=style)
    return text.append(
        Text(plain(f"{cell.mark} {cell.spread}".rstrip()), style="not bold not underline")
    )
