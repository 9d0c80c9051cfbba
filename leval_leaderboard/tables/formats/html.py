"""A standalone HTML page of plain tables."""

from collections.abc import Sequence

from leval_leaderboard.tables.escape import plain
from leval_leaderboard.tables.formats import Format, decorated
from leval_leaderboard.tables.model import Column, Row, Table

ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"}


def escape(text: str) -> str:
    """For an HTML text node or a quoted attribute."""
    return "".join(ESCAPES.get(c, c) for c in plain(text))


def html(tables: Sequence[Table]) -> str:
    """A standalone page of plain tables."""
    body = "\n".join(_table(table) for table in tables)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Leaderboard</title><style>{_STYLE}</style></head>\n<body>\n{body}</body></html>\n"
    )


_STYLE = (
    ":root{color-scheme:light dark}body{font:15px/1.45 system-ui,sans-serif;margin:2rem}"
    "table{border-collapse:collapse;margin:1rem 0}.scroll{overflow-x:auto}"
    "th,td{padding:.25rem .6rem;text-align:left;white-space:nowrap}.number{text-align:right}"
    "thead th{border-bottom:1px solid}tbody+tbody th{padding-top:.8rem}"
    ".second{text-decoration:underline}.best{font-weight:700}"
    ".published,.info{font-style:italic;opacity:.8}small{opacity:.75}"
)


def _table(table: Table) -> str:
    head = "".join(
        f'<th scope="col"{_number(column)}>{escape(column.label)}</th>' for column in table.columns
    )
    width = len(table.columns)
    bodies = []
    for block in table.blocks:
        rows = [_row(row, table.columns) for row in block.rows]
        if block.title:
            title = escape(block.title)
            rows.insert(0, f'<tr><th colspan="{width}" scope="rowgroup">{title}</th></tr>')
        bodies.append("<tbody>\n" + "\n".join(rows) + "\n</tbody>")
    notes = "".join(f"<li>{escape(note)}</li>" for note in table.notes)
    return (
        f'<h2>{escape(table.title)}</h2>\n<div class="scroll"><table>\n'
        f"<thead><tr>{head}</tr></thead>\n" + "\n".join(bodies) + "\n</table></div>\n"
        f"<ul>{notes}</ul>\n"
    )


def _number(column: Column) -> str:
    return ' class="number"' if column.numeric else ""


def _row(row: Row, columns: Sequence[Column]) -> str:
    cells = "".join(
        f"<td{_number(column)}>"
        + decorated(cell, escape, '<span class="best">@</span>', '<span class="second">@</span>')
        + "</td>"
        for cell, column in zip(row.cells, columns, strict=True)
    )
    return f'<tr class="{row.kind}">{cells}</tr>'


FORMAT = Format(html, suffix="html")
