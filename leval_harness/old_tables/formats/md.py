"""GitHub-flavoured Markdown; best bold, second underlined."""

from collections.abc import Sequence

from leval_harness.old_tables.formats import Format, decorated
from leval_harness.old_tables.model import Table
from resonance_vllm.errors import plain

ESCAPES = {c: "\\" + c for c in "\\`*_[]#|~$"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"}


def escape(text: str) -> str:
    """For a cell or a line."""
    return "".join(ESCAPES.get(c, c) for c in plain(text))


def markdown(tables: Sequence[Table]) -> str:
    """Tables one below the other, each with its notes."""
    return "\n".join(map(_table, tables))


def _table(table: Table) -> str:
    columns = [escape(column.label) for column in table.columns]
    rule = ["---:" if column.numeric else "---" for column in table.columns]
    lines = [f"### {escape(table.title)}", "", _line(columns), _line(rule)]
    for block in table.blocks:
        if block.title:
            lines.append(_line([f"**{escape(block.title)}**", *[""] * (len(columns) - 1)]))
        for row in block.rows:
            cells = [decorated(cell, escape, "**@**", "<u>@</u>") for cell in row.cells]
            if row.kind in {"published", "info"}:
                cells[0] = f"*{cells[0]}*"
            lines.append(_line(cells))
    lines += ["", *(f"- {escape(note)}" for note in table.below)]
    return "\n".join(lines).rstrip() + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


FORMAT = Format(markdown, suffix="md")
