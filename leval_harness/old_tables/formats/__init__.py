"""Formats of tables: one module each, found by its name; it holds a `FORMAT`.

A new format is a new module here, say `org.py`:

    FORMAT = Format(text=..., suffix="org")

Then `leval-harness table --format org` is there, and sweeps write `table.org`.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from leval_harness.format_names import WRITTEN
from leval_harness.old_tables.model import Cell, Table
from resonance_vllm.errors import one_of


@dataclass(frozen=True)
class Format:
    """How tables become text.

    Attributes:
        text: renders tables; it must escape every text in them.
        suffix: ending of the file that a sweep writes at its end; empty for none.
        every_number: whether it gets the one long table of every number, for programs, instead of
            the tables that people read.
    """

    text: Callable[[Sequence[Table]], str]
    suffix: str = ""
    every_number: bool = False


def load_format(name: str) -> Format:
    """A format by its name.

    Raises:
        SettingError: there is no such format.
    """
    one_of("format", name, WRITTEN)
    form: Format = importlib.import_module(f"{__name__}.{name}").FORMAT
    return form


def render(tables: Sequence[Table], name: str) -> str:
    """Tables in one of the formats; errors as in `load_format`."""
    return load_format(name).text(tables)


def decorated(cell: Cell, escape: Callable[[str], str], best: str, second: str) -> str:
    """Escaped text of a cell; in `best` and `second`, the emphasis, `@` stands for the number."""
    body = escape(cell.text)
    if cell.emphasis and body:
        body = (best if cell.emphasis == "best" else second).replace("@", body)
    spread = f" {escape(cell.spread)}" if cell.spread else ""
    return body + escape(cell.mark) + spread
