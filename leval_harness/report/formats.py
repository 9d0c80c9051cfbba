"""Formats of tables: Markdown, LaTeX, HTML and a terminal; CSV and JSON are the frame itself.

pandas writes LaTeX, HTML and CSV, rich draws on a terminal. Each format escapes its own text.
"""

import json
from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from leval_harness.report.tables import BEST, NONE, QUIET, SECOND, Table
from leval_harness.report.verdict import lines, verdict
from leval_harness.results.layout import FORMATS
from resonance_vllm.common.errors import check_choice

if TYPE_CHECKING:
    from pandas.io.formats.style import Styler
    from rich.console import Console

TEXT_WIDTH = 345.0
"""Points of a line of LaTeX's `article`."""

LETTER, GAP = 5.0, 12.0
"""Points of a letter, and between two columns."""

PARAGRAPH = 140.0
"""Points of a column of long cells."""

LATEX_LETTERS = str.maketrans(
    {"−": "-", "–": "--", "×": r"$\times$", "…": "...", "·": r"$\cdot$", "±": r"$\pm$",
     "↓": r"$\downarrow$"}
)  # fmt: skip

SPECIAL = str.maketrans(
    {**{each: f"\\{each}" for each in "&%$#_{}"}, "\\": r"\textbackslash{}", "^": r"\^{}",
     "~": r"\~{}", "<": r"$<$", ">": r"$>$", "|": r"$|$"}
)  # fmt: skip
"""What LaTeX would read as markup."""


def render(tables: Sequence[Table], compared: pd.DataFrame, form: str) -> str:
    """The tables as text; `csv` and `json` are the compared frame itself.

    Raises:
        SettingError: there is no such form.
    """
    check_choice("form", form, FORMATS)
    if form in ("csv", "json"):
        numbers = compared.drop(columns=["folder", "files", "versions"], errors="ignore")
        if form == "csv":
            return numbers.to_csv(index=False)
        return records(numbers)
    if form == "md":
        said = verdict(compared)
        return lines(said) + "\n" * bool(said) + "\n".join(map(markdown, tables))
    return "\n".join(map({"tex": latex, "html": html}[form], tables))


def records(numbers: pd.DataFrame) -> str:
    """A frame as a JSON list of its rows; what is missing is null."""
    rows = numbers.astype(object).where(numbers.notna(), None).to_dict("records")
    return json.dumps(rows, indent=1, ensure_ascii=False, default=str) + "\n"


def markdown(table: Table) -> str:
    """GitHub-flavoured Markdown."""
    marks = {BEST: "**{}**", SECOND: "<u>{}</u>", QUIET: "*{}*", "": "{}"}
    shown = table.cells.map(_escaped)
    for column in shown:
        styles = table.css[column].map(marks)
        pairs = zip(styles, shown[column], strict=True)
        shown[column] = [style.format(text) if text else "" for style, text in pairs]
    names = table.cells.index.to_frame(index=False).map(_escaped)
    rows = np.hstack([names.to_numpy(), shown.to_numpy()])
    heads = list(map(_escaped, [*names, *shown]))
    grid = ["| " + " | ".join(line) + " |" for line in (heads, ["---"] * len(heads), *rows)]
    notes = [f"- {_escaped(note)}" for note in table.notes]
    return "\n".join([f"### {_escaped(table.title)}", "", *grid, "", *notes, ""])


def _escaped(text: object) -> str:
    return "".join("\\" + c if c in "\\`*_[]#|~$<>" else c for c in str(text))


def html(table: Table) -> str:
    """An HTML table with its title and notes; every text is escaped."""
    notes = "".join(f"<p class='note'>{escape(note)}</p>" for note in table.notes)
    grid = _styled(table.cells, table.css, "html").to_html(table_attributes='class="sortable"')
    return f"<h3>{escape(table.title)}</h3>\n<div class='wide'>{grid}</div>\n{notes}\n"


def latex(table: Table) -> str:
    """LaTeX with booktabs, in as many pieces as the text width of `article` needs."""
    pieces = list(_pieces(table))
    parts = []
    for at, piece in enumerate(pieces):
        marks = {BEST: "bfseries: ", SECOND: "underline: --rwrap", QUIET: "itshape: ", "": ""}
        body = _styled(piece.cells, piece.css.map(marks.get), "latex").to_latex(
            hrules=True,
            caption=piece.title.translate(SPECIAL)
            + f" ({at + 1} of {len(pieces)})" * (len(pieces) > 1),
            position="!htbp",
            position_float="centering",
            column_format=_columns(piece.cells.index.to_frame(), "l") + _columns(piece.cells, "r"),
        )
        notes = "".join(rf"\par {note.translate(SPECIAL)}" + "\n" for note in piece.notes)
        end = rf"{{\raggedright\footnotesize {notes}\par}}" + "\n" if notes else ""
        body = body.replace(r"\centering", r"\centering\footnotesize", 1)
        parts.append(body.replace(r"\end{table}", end + r"\end{table}").translate(LATEX_LETTERS))
    return "\n".join(parts)


def _pieces(table: Table) -> Iterator[Table]:
    """A table in parts: by model, whose name needs a line, and by columns as the width allows."""
    cells, css = table.cells, table.css
    if "Model" in cells.index.names:
        models = cells.index.get_level_values("Model")
        for model in dict.fromkeys(models[models != ""]):
            own = [each in (model, "") for each in models]
            parts = cells[own].droplevel("Model"), css[own].droplevel("Model")
            used = parts[0].columns[(parts[0] != NONE).any()]
            title = f"{table.title}, {model}"
            yield from _pieces(Table(title, parts[0][used], parts[1][used], table.notes))
        return
    names = cells.index.to_frame()
    room = TEXT_WIDTH - sum(_width(names[name]) for name in names)
    widths = {name: _width(cells[name]) * (1.15 if BEST in set(css[name]) else 1) for name in cells}
    groups: list[list[Any]] = [[]]
    for name in cells:
        if groups[-1] and sum(widths[each] for each in [*groups[-1], name]) > room:
            groups.append([])
        groups[-1].append(name)
    for at, group in enumerate(groups):
        notes = table.notes if at == len(groups) - 1 else ()
        yield Table(table.title, cells[group], css[group], notes)


def _width(column: pd.Series) -> float:
    """Points of a column in `footnotesize`, with the gap beside it; rather too many."""
    longest = max(len(str(text)) for text in [column.name, *column])
    return min(LETTER * longest, PARAGRAPH) + GAP


def _columns(cells: pd.DataFrame, kind: str) -> str:
    """Columns of LaTeX: of a kind, long cells in a paragraph."""
    wide = [_width(cells[name]) >= PARAGRAPH + GAP for name in cells]
    return "".join(f"p{{{PARAGRAPH:.0f}pt}}" if each else kind for each in wide)


def _styled(cells: pd.DataFrame, css: pd.DataFrame, escape: str) -> "Styler":
    """The frame as a pandas Styler, names of the rows as columns; no text is read as markup."""
    rows, marks = cells.reset_index(), css.reset_index(drop=True).reindex(columns=[*cells])
    marks = pd.concat([rows.iloc[:, : cells.index.nlevels].map(lambda _: ""), marks], axis=1)
    style = rows.style.hide(axis="index").format(escape=escape)
    return style.format_index(escape=escape, axis=1).apply(lambda _: marks, axis=None)


def draw(table: Table, console: "Console") -> None:
    """Draw a table in a terminal; runs of a wide one wrap."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(box=SIMPLE_HEAD, title=Text(table.title), title_justify="left", pad_edge=False)
    rows, names = table.cells.reset_index(), table.cells.index.nlevels
    for at, name in enumerate(rows):
        grid.add_column(Text(str(name)), justify="left" if at < names else "right", overflow="fold")
    styles = {BEST: "bold", SECOND: "underline", QUIET: "dim", "": ""}
    css = table.css.to_numpy()
    for at, line in enumerate(rows.to_numpy()):
        marks = ["", "", ""][:names] + [styles[each] for each in css[at]]
        grid.add_row(*(Text(str(t), style=s) for t, s in zip(line, marks, strict=True)))
    console.print(grid)
    for note in table.notes:
        console.print(Text(note, style="dim"))
