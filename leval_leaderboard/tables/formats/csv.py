"""RFC 4180 CSV for programs: every number in full precision."""

import csv
import io
from collections.abc import Sequence

from leval_leaderboard.tables.escape import plain
from leval_leaderboard.tables.formats import Format
from leval_leaderboard.tables.model import Cell, Table


def escape(text: str) -> str:
    """For a field: a text that a spreadsheet would run as a formula gets a leading quote."""
    cleaned = plain(text)
    return "'" + cleaned if cleaned[:1] in {"=", "+", "-", "@"} else cleaned


def csv_text(tables: Sequence[Table]) -> str:
    """Rows of all blocks below one header; tables must share their columns.

    A number cell writes its value, any other its text.

    Raises:
        ValueError: tables with different columns.
    """
    if len({table.columns for table in tables}) > 1:
        raise ValueError("tables: CSV holds one set of columns; render these one by one")
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for number, table in enumerate(tables):
        if number == 0:
            writer.writerow([escape(column.label) for column in table.columns])
        for block in table.blocks:
            for row in block.rows:
                writer.writerow([_csv_cell(cell) for cell in row.cells])
    return out.getvalue()


def _csv_cell(cell: Cell) -> str:
    if isinstance(cell.value, float):
        return repr(cell.value)
    return escape(cell.text if cell.value is None else cell.value)


FORMAT = Format(csv_text, suffix="csv", every_number=True)
