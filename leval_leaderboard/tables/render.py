"""Tables as Markdown, CSV, LaTeX and HTML."""

import csv
import io
from collections.abc import Callable, Sequence

from leval_leaderboard.tables import escape
from leval_leaderboard.tables.model import Cell, Column, Row, Table


def _decorated(cell: Cell, text: Callable[[str], str], bold: str, under: str) -> str:
    """Escaped cell text with emphasis around the number and the rest after it."""
    body = text(cell.text)
    if cell.emphasis and body:
        body = (bold if cell.emphasis == "best" else under).replace("@", body)
    spread = f" {text('± ' + cell.stderr_text)}" if cell.stderr_text else ""
    return body + text(cell.mark) + spread


def markdown(tables: Sequence[Table]) -> str:
    """GitHub-flavoured Markdown; best bold, second underlined."""
    parts = []
    for table in tables:
        columns = [escape.markdown(column.label) for column in table.columns]
        rule = ["---:" if column.numeric else "---" for column in table.columns]
        lines = [f"### {escape.markdown(table.title)}", ""]
        lines += [_line(columns), _line(rule)]
        for block in table.blocks:
            if block.title:
                title = f"**{escape.markdown(block.title)}**"
                lines.append(_line([title, *[""] * (len(columns) - 1)]))
            for row in block.rows:
                cells = [_decorated(c, escape.markdown, "**@**", "<u>@</u>") for c in row.cells]
                if row.kind in {"published", "info"}:
                    cells[0] = f"*{cells[0]}*"
                lines.append(_line(cells))
        lines += [""] + [f"- {escape.markdown(note)}" for note in table.notes]
        parts.append("\n".join(lines).rstrip() + "\n")
    return "\n".join(parts)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def csv_text(tables: Sequence[Table]) -> str:
    """RFC 4180 CSV of full-precision values, one header; tables must share their columns.

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
            writer.writerow([escape.csv(column.label) for column in table.columns])
        for block in table.blocks:
            for row in block.rows:
                writer.writerow([_csv_cell(cell) for cell in row.cells])
    return out.getvalue()


def records(table: Table) -> list[dict[str, object]]:
    """A table as objects for JSON, a row each: numbers of full precision, null where missing."""
    return [
        {
            column.label: (cell.value if column.numeric else cell.text)
            for column, cell in zip(table.columns, row.cells, strict=True)
        }
        for block in table.blocks
        for row in block.rows
    ]


def _csv_cell(cell: Cell) -> str:
    if isinstance(cell.value, float):
        return repr(cell.value)
    return escape.csv(cell.text if cell.value is None else cell.value)


LATEX_PREAMBLE = (
    "% needs \\usepackage[T1]{fontenc}, \\usepackage{textcomp} and \\usepackage{booktabs}\n"
)


def latex(tables: Sequence[Table]) -> str:
    """Tables with booktabs rules for pdflatex, to be included in a document."""
    return LATEX_PREAMBLE + "\n".join(_latex_table(table) for table in tables)


def _latex_table(table: Table) -> str:
    width = len(table.columns)
    spec = "".join("r" if column.numeric else "l" for column in table.columns)
    lines = [
        r"\begin{table}[htbp]\centering\small",
        rf"\caption{{{escape.latex(table.title)}}}",
        rf"\begin{{tabular}}{{{spec}}}",
        r"\toprule",
        " & ".join(escape.latex(column.label) for column in table.columns) + r" \\",
    ]
    for block in table.blocks:
        lines.append(r"\midrule")
        if block.title:
            lines.append(
                rf"\multicolumn{{{width}}}{{l}}{{\textbf{{{escape.latex(block.title)}}}}} \\"
            )
        for row in block.rows:
            cells = [
                _decorated(c, escape.latex, r"\textbf{@}", r"\underline{@}") for c in row.cells
            ]
            if row.kind in {"published", "info"}:
                cells[0] = rf"\textit{{{cells[0]}}}"
            lines.append(" & ".join(cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    if table.notes:
        lines.append(r"\par\smallskip\raggedright\footnotesize")
        lines += [escape.latex(note) + r"\par" for note in table.notes]
    return "\n".join([*lines, r"\end{table}", ""])


def html(tables: Sequence[Table]) -> str:
    """A standalone page of plain tables."""
    body = "\n".join(_html_table(table) for table in tables)
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


def _html_table(table: Table) -> str:
    head = "".join(
        f'<th scope="col"{_number(column)}>{escape.html(column.label)}</th>'
        for column in table.columns
    )
    width = len(table.columns)
    bodies = []
    for block in table.blocks:
        rows = [_html_row(row, table.columns) for row in block.rows]
        if block.title:
            title = escape.html(block.title)
            rows.insert(0, f'<tr><th colspan="{width}" scope="rowgroup">{title}</th></tr>')
        bodies.append("<tbody>\n" + "\n".join(rows) + "\n</tbody>")
    notes = "".join(f"<li>{escape.html(note)}</li>" for note in table.notes)
    return (
        f'<h2>{escape.html(table.title)}</h2>\n<div class="scroll"><table>\n'
        f"<thead><tr>{head}</tr></thead>\n" + "\n".join(bodies) + "\n</table></div>\n"
        f"<ul>{notes}</ul>\n"
    )


def _number(column: Column) -> str:
    return ' class="number"' if column.numeric else ""


def _html_row(row: Row, columns: Sequence[Column]) -> str:
    cells = "".join(
        f"<td{_number(column)}>"
        + _decorated(
            cell, escape.html, '<span class="best">@</span>', '<span class="second">@</span>'
        )
        + "</td>"
        for cell, column in zip(row.cells, columns, strict=True)
    )
    return f'<tr class="{row.kind}">{cells}</tr>'


FORMATS: dict[str, Callable[[Sequence[Table]], str]] = {
    "md": markdown,
    "csv": csv_text,
    "tex": latex,
    "html": html,
}


def render(tables: Sequence[Table], output: str) -> str:
    """Tables in one of the formats `md`, `csv`, `tex`, `html`.

    Raises:
        ValueError: unknown format.
    """
    if output not in FORMATS:
        raise ValueError(f"format: '{output}' is unknown; one of {', '.join(FORMATS)}")
    return FORMATS[output](tables)
