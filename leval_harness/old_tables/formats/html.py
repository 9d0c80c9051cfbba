"""A standalone HTML page of plain tables; `tables.html.j2` is what it looks like."""

import html
from collections.abc import Sequence
from pathlib import Path

from leval_harness.old_tables.formats import Format, decorated
from leval_harness.old_tables.model import Cell, Table
from resonance_vllm.errors import plain


def escape(text: str) -> str:
    """For an HTML text node or a quoted attribute."""
    return html.escape(plain(text)).replace("&#x27;", "&#39;")


def html_text(tables: Sequence[Table]) -> str:
    """A standalone page of plain tables."""
    from jinja2 import Environment, FileSystemLoader

    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters |= {"text": escape, "cell": _cell}
    return templates.get_template("tables.html.j2").render(tables=tables)


def _cell(cell: Cell) -> str:
    return decorated(cell, escape, '<span class="best">@</span>', '<span class="second">@</span>')


FORMAT = Format(html_text, suffix="html")
