"""RFC 4180 CSV for programs: every number in full precision."""

import csv
import io
from collections.abc import Sequence

from leval_harness.old_tables.formats import Format
from leval_harness.old_tables.model import Table
from resonance_vllm.errors import plain


def escape(text: str) -> str:
    """For a field: a text that a spreadsheet would run as a formula gets a leading quote."""
    cleaned = plain(text)
    return "'" + cleaned if cleaned[:1] in {"=", "+", "-", "@"} else cleaned


def csv_text(tables: Sequence[Table]) -> str:
    """Rows of all blocks below one header; a number cell writes its value, any other its text.

    Raises:
        ValueError: tables with different columns.
    """
    if len({table.columns for table in tables}) > 1:
        raise ValueError("tables: CSV holds one set of columns; render these one by one")
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([escape(column.label) for column in table.columns] for table in tables[:1])
    for table in tables:
        for block in table.blocks:
            for row in block.rows:
                cells = ((cell.text, cell.value) for cell in row.cells)
                writer.writerow(escape(t) if v is None else repr(float(v)) for t, v in cells)
    return out.getvalue()


FORMAT = Format(csv_text, suffix="csv", every_number=True)
