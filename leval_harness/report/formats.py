"""Formats of verdict and tables: Markdown, LaTeX, HTML and a terminal; CSV and JSON are the frame.

pandas writes LaTeX, HTML and CSV, rich draws on a terminal. Each format escapes its own text.
"""

import json
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from leval_harness.report.table import BEST, QUIET, SECOND, Table
from leval_harness.report.uncompared import uncompared_sentences
from leval_harness.report.verdict import Verdict, verdicts
from leval_harness.results.layout import FORMATS
from resonance_vllm.common.errors import check_choice

if TYPE_CHECKING:
    from pandas.io.formats.style import Styler
    from rich.console import Console
    from rich.table import Table as Grid

COLUMN_GAP = "    "

PACKAGES = "% Packages: booktabs, graphicx\n"

LATEX_MARKS = {BEST: "bfseries: ", SECOND: "underline: --rwrap", QUIET: "itshape: ", "": ""}
MARKDOWN_MARKS = {BEST: "**{}**", SECOND: "<u>{}</u>", QUIET: "*{}*", "": "{}"}
TERMINAL_MARKS = {BEST: "bold", SECOND: "underline", QUIET: "dim", "": ""}

LATEX_LETTERS = str.maketrans(
    {
        "−": "$-$",
        "–": "--",
        "≥": r"$\geq$",
        "×": r"$\times$",
        "…": "...",
        "·": r"$\cdot$",
        "±": r"$\pm$",
        "↓": r"$\downarrow$",
    }
)
"""Letters that pdfLaTeX's default fonts lack."""

LATEX_MARKUP = str.maketrans(
    {
        **{letter: f"\\{letter}" for letter in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "^": r"\^{}",
        "~": r"\~{}",
        "<": r"$<$",
        ">": r"$>$",
        "|": r"$|$",
    }
)
"""What LaTeX would read as markup."""


def render(tables: Sequence[Table], compared: pd.DataFrame, form: str) -> str:
    """Return verdict and tables as text; `csv` and `json` are the compared frame itself.

    Args:
        tables: what `leval_harness.report.tables.build_tables` returns.
        compared: the compared frame.
        form: one of `FORMATS`, or `text`: the verdict as plain text, the tables as Markdown.

    Raises:
        SettingError: there is no such form.
    """
    check_choice("form", form, (*FORMATS, "text"))
    if form in ("csv", "json"):
        numbers = compared.drop(columns=["folder", "files", "versions"], errors="ignore")
        if form == "csv":
            return numbers.to_csv(index=False)
        return records(numbers)
    if form == "tex":
        return PACKAGES + "\n".join(map(latex, tables))
    if form == "html":
        return "\n".join(map(html, tables))
    write_verdict = {"md": verdict_markdown, "text": verdict_text}[form]
    parts = [write_verdict(verdict) for verdict in verdicts(compared)]
    parts += [f"{sentence}\n" for sentence in _uncompared(compared, form)]
    return "\n".join([*parts, *map(markdown, tables)])


def records(numbers: pd.DataFrame) -> str:
    """Return a frame as a JSON list of its rows; what is missing is null."""
    rows = numbers.astype(object).where(numbers.notna(), None).to_dict("records")
    return json.dumps(rows, indent=1, ensure_ascii=False, default=str) + "\n"


# ------------------------------------------------------------------ the verdict


def verdicts_text(compared: pd.DataFrame) -> str:
    """Return the verdicts on all models as plain text; empty without a number."""
    parts = [verdict_text(verdict) for verdict in verdicts(compared)]
    parts += [f"{sentence}\n" for sentence in uncompared_sentences(compared)]
    return "\n".join(parts)


def _uncompared(compared: pd.DataFrame, form: str) -> list[str]:
    """Return a line for everything that is not compared, with markup escaped in Markdown."""
    sentences = uncompared_sentences(compared)
    if form == "md":
        return [_markdown_sentence(sentence) for sentence in sentences]
    return sentences


def verdict_text(verdict: Verdict) -> str:
    """Return a verdict as plain text: heading, a line for each method, a line for each sentence."""
    parts = [f"{verdict.heading}\n"] if verdict.heading else []
    table = verdict.table()
    if table is not None:
        parts.append(_aligned(table))
    if verdict.all_sentences:
        parts.append("".join(f"{sentence}\n" for sentence in verdict.all_sentences))
    return "\n".join(parts)


def _aligned(table: pd.DataFrame) -> str:
    """Return a table in columns of spaces, with its heads."""
    columns = [[str(name), *table[name].astype(str)] for name in table]
    padded = []
    for column in columns:
        width = max(map(len, column))
        padded.append([text.ljust(width) for text in column])
    lines = [COLUMN_GAP.join(line).rstrip() for line in zip(*padded, strict=True)]
    return "".join(f"{line}\n" for line in lines)


def verdict_markdown(verdict: Verdict) -> str:
    """Return a verdict as Markdown: heading, table, and a list of sentences."""
    parts = [f"**{_markdown_text(verdict.heading)}**\n"] if verdict.heading else []
    table = verdict.table()
    if table is not None:
        parts.append(_markdown_grid(list(table), table.map(_markdown_text).to_numpy()))
    if verdict.all_sentences:
        lines = [f"- {_markdown_sentence(sentence)}\n" for sentence in verdict.all_sentences]
        parts.append("".join(lines))
    return "\n".join(parts)


def _markdown_sentence(sentence: str) -> str:
    """Return a sentence with its markup escaped, but for commands, which are in backticks."""
    parts = sentence.split("`")
    for at in range(0, len(parts), 2):
        parts[at] = _markdown_text(parts[at])
    return "`".join(parts)


def draw_verdict(verdict: Verdict, console: "Console") -> None:
    """Draw a verdict in a terminal."""
    from rich.text import Text

    if verdict.heading:
        console.print(Text(verdict.heading, style="bold"))
    table = verdict.table()
    if table is not None:
        grid = _grid("")
        for name in table:
            grid.add_column(Text(str(name)), overflow="fold")
        for row in table.to_numpy():
            grid.add_row(*(Text(str(text)) for text in row))
        console.print(grid)
    for at, sentence in enumerate(verdict.all_sentences):
        is_recommendation = at == 0 and bool(verdict.recommendation)
        console.print(Text(sentence, style="bold" if is_recommendation else ""))
    console.print()


# ------------------------------------------------------------------ tables


def markdown(table: Table) -> str:
    """Return a table as GitHub-flavoured Markdown, with title and notes."""
    cells = table.cells.map(_markdown_text)
    for column in cells:
        marks = table.css[column].map(MARKDOWN_MARKS)
        marked = zip(marks, cells[column], strict=True)
        cells[column] = [mark.format(text) if text else "" for mark, text in marked]
    names = table.cells.index.to_frame(index=False).map(_markdown_text)
    grid = _markdown_grid([*names, *cells], np.hstack([names.to_numpy(), cells.to_numpy()]))
    notes = [f"- {_markdown_text(note)}" for note in table.notes]
    return "\n".join([f"### {_markdown_text(table.title)}", "", grid, *notes, ""])


def _markdown_grid(heads: Sequence[str], rows: "np.typing.NDArray[np.object_]") -> str:
    """Return the lines of a Markdown table whose texts are escaped; `heads` are not yet."""
    lines = [list(map(_markdown_text, heads)), ["---"] * len(heads), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _markdown_text(text: object) -> str:
    """Escape what Markdown reads as markup."""
    return "".join("\\" + c if c in "\\`*_[]#|~$<>" else c for c in str(text))


def html(table: Table, heading: str = "h3") -> str:
    """Return an HTML table with its title and notes; every text is escaped.

    Args:
        table: what is written.
        heading: element of the title.
    """
    notes = "".join(f'<p class="note">{_with_code(note)}</p>' for note in table.notes)
    title = escape(table.title)
    grid = _styled(table.cells, table.css, "html").to_html(
        table_attributes=f'class="sortable" aria-label="{title}"'
    )
    # What scrolls sideways must be reachable by keyboard, and so needs a name.
    group = f'<div class="wide" role="group" tabindex="0" aria-label="{title}">'
    content = f"<{heading}>{title}</{heading}>\n{group}{grid}</div>\n{notes}"
    # on paper a title stays with its table
    return f'<div class="titled">{content}</div>\n'


def _with_code(note: str) -> str:
    """Return a sentence as HTML, in which text between backticks is code."""
    parts = escape(note).split("`")
    return "".join(f"<code>{part}</code>" if at % 2 else part for at, part in enumerate(parts))


def latex(table: Table) -> str:
    """Return a table as one LaTeX float with caption, for the packages booktabs and graphicx.

    It is as wide as the text: a wider one is scaled down.
    """
    body = _styled(table.cells, table.css.map(LATEX_MARKS.get), "latex").to_latex(
        hrules=True,
        caption=table.caption.translate(LATEX_MARKUP),
        position="!htbp",
        position_float="centering",
        column_format="l" * table.cells.index.nlevels + "r" * table.cells.shape[1],
    )
    begin = r"\begin{tabular}"
    end = r"\end{tabular}"
    body = body.replace(begin, SCALED_BEGIN + begin).replace(end, end + SCALED_END)
    return body.translate(LATEX_LETTERS)


SCALED_BEGIN = "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%\n"
"""Scale what is wider than the text down to its width, and leave the rest as it is."""

SCALED_END = "}"


def _styled(cells: pd.DataFrame, css: pd.DataFrame, escaping: str) -> "Styler":
    """Return the frame as a pandas Styler with row names as columns; no text is read as markup."""
    rows = cells.reset_index()
    names = rows.iloc[:, : cells.index.nlevels]
    no_marks = pd.DataFrame("", names.index, names.columns)
    marks = pd.concat([no_marks, css.reset_index(drop=True)], axis=1)
    style = rows.style.hide(axis="index").format(escape=escaping)
    return style.format_index(escape=escaping, axis=1).apply(lambda _: marks, axis=None)


def draw(table: Table, console: "Console") -> None:
    """Draw a table in a terminal; the cells of a wide one wrap."""
    from rich.text import Text

    grid = _grid(table.title)
    names = table.cells.index.nlevels
    rows = table.cells.reset_index()
    for at, name in enumerate(rows):
        is_name = at < names
        grid.add_column(Text(str(name)), justify="left" if is_name else "right", overflow="fold")
    css = table.css.to_numpy()
    for texts, marks in zip(rows.to_numpy(), css, strict=True):
        styles = [""] * names + [TERMINAL_MARKS[mark] for mark in marks]
        grid.add_row(*(Text(str(t), style=s) for t, s in zip(texts, styles, strict=True)))
    console.print(grid)
    for note in table.notes:
        console.print(Text(note, style="dim"))


def _grid(title: str) -> "Grid":
    """Return an empty table of rich, in the style of all of them."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as Grid
    from rich.text import Text

    return Grid(
        box=SIMPLE_HEAD, title=Text(title) if title else None, title_justify="left", pad_edge=False
    )
