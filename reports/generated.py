"""Tables that a script makes from raw results, between markers in a report."""

from collections.abc import Mapping
from pathlib import Path

BEGIN, END = "<!-- {}: begin -->\n", "<!-- {}: end -->\n"


def marked(name: str, made: str) -> str:
    """A table with its markers, as a report holds it."""
    return BEGIN.format(name) + made + END.format(name)


def fill(report: Path, tables: Mapping[str, str]) -> None:
    """Put tables, each of which ends in a newline, between the markers of their names.

    Raises:
        ValueError: the report does not have the markers of a table exactly once.
    """
    text = report.read_text(encoding="utf-8")
    for name, made in tables.items():
        before, rest = text.split(BEGIN.format(name))
        _, after = rest.split(END.format(name))
        text = before + marked(name, made) + after
    report.write_text(text, encoding="utf-8")
