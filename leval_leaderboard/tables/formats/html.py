"""A standalone HTML page of plain tables."""

import html
from collections.abc import Sequence

from leval_leaderboard.tables.escape import plain
from leval_leaderboard.tables.formats import Format, decorated
from leval_leaderboard.tables.model import Row, Table

STYLE = (
    ":root{color-scheme:light dark}body{font:15px/1.45 system-ui,sans-serif;margin:2rem}"
    "table{border-collapse:collapse;margin:1rem 0}.scroll{overflow-x:auto}"
    "th,td{padding:.25rem .6rem;text-align:left;white-space:nowrap}.number{text-align:right}"
    "thead th{border-bottom:1px solid}tbody+tbody th{padding-top:.8rem}"
    ".second{text-decoration:underline}.best{font-weight:700}"
    ".published,.info{font-style:italic;opacity:.8}small{opacity:.75}"
)


def escape(text: str) -> str:
    """For an HTML text node or a quoted attribute."""
    return html.escape(plain(text)).replace("&#x27;", "&#39;")


def page(tables: Sequence[Table]) -> str:
    """A standalone page of plain tables."""
    body = "\n".join(map(_table, tables))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Leaderboard</title><style>{STYLE}</style></head>\n<body>\n{body}</body></html>\n"
    )


def _table(table: Table) -> str:
    number = [' class="number"' if column.numeric else "" for column in table.columns]
    head = "".join(
        f'<th scope="col"{align}>{escape(column.label)}</th>'
        for align, column in zip(number, table.columns, strict=True)
    )
    bodies = []
    for block in table.blocks:
        rows = [_row(row, number) for row in block.rows]
        if block.title:
            span = f'colspan="{len(number)}" scope="rowgroup"'
            rows.insert(0, f"<tr><th {span}>{escape(block.title)}</th></tr>")
        bodies.append("\n".join(["<tbody>", *rows, "</tbody>"]))
    notes = "".join(f"<li>{escape(note)}</li>" for note in table.notes)
    return (
        f'<h2>{escape(table.title)}</h2>\n<div class="scroll"><table>\n'
        f"<thead><tr>{head}</tr></thead>\n" + "\n".join(bodies) + "\n</table></div>\n"
        f"<ul>{notes}</ul>\n"
    )


def _row(row: Row, number: Sequence[str]) -> str:
    marked = ('<span class="best">@</span>', '<span class="second">@</span>')
    cells = "".join(
        f"<td{align}>{decorated(cell, escape, *marked)}</td>"
        for cell, align in zip(row.cells, number, strict=True)
    )
    return f'<tr class="{row.kind}">{cells}</tr>'


FORMAT = Format(page, suffix="html")
