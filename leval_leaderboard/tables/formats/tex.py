"""LaTeX for pdflatex, with the rules of booktabs."""

import unicodedata
from collections.abc import Sequence

from leval_leaderboard.tables.escape import plain
from leval_leaderboard.tables.formats import Format, decorated
from leval_leaderboard.tables.model import Table

ESCAPES = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "'": r"\textquotesingle{}",
    "`": r"\textasciigrave{}",
    "-": r"{-}",
    "[": r"{[}",
    "]": r"{]}",
    "*": r"{*}",
    "?": r"{?}",
    "!": r"{!}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": r"$-$",
    "–": r"\textendash{}",
    "—": r"\textemdash{}",
    "…": r"\ldots{}",
    "†": r"\textdagger{}",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "·": r"\textperiodcentered{}",
    "→": r"$\rightarrow$",
    "’": r"\textquoteright{}",
    "‘": r"\textquoteleft{}",
    "“": r"\textquotedblleft{}",
    "”": r"\textquotedblright{}",
}

_ACCENTS = {
    "\N{COMBINING GRAVE ACCENT}": "`",
    "\N{COMBINING ACUTE ACCENT}": "'",
    "\N{COMBINING CIRCUMFLEX ACCENT}": "^",
    "\N{COMBINING TILDE}": "~",
    "\N{COMBINING DIAERESIS}": '"',
    "\N{COMBINING CARON}": "v",
    "\N{COMBINING CEDILLA}": "c",
}


def escape(text: str) -> str:
    r"""For LaTeX text under pdflatex; a letter it has no glyph for is written as `[U+4E2D]`."""
    return "".join(_latex_character(c) for c in plain(text))


def _latex_character(c: str) -> str:
    if c in ESCAPES:
        return ESCAPES[c]
    if c.isascii():
        return c
    if "\N{LATIN CAPITAL LETTER A WITH GRAVE}" <= c <= "\N{LATIN SMALL LETTER Z WITH CARON}":
        base = unicodedata.normalize("NFKD", c)
        if len(base) == 2 and base[1] in _ACCENTS and base[0].isascii():
            letter = {"i": r"\i", "j": r"\j"}.get(base[0], base[0])
            return rf"\{_ACCENTS[base[1]]}{{{letter}}}"
    return f"{{[}}U+{ord(c):04X}{{]}}"


PREAMBLE = "% needs \\usepackage[T1]{fontenc}, \\usepackage{textcomp} and \\usepackage{booktabs}\n"


def latex(tables: Sequence[Table]) -> str:
    """Tables with booktabs rules for pdflatex, to be included in a document."""
    return PREAMBLE + "\n".join(_table(table) for table in tables)


def _table(table: Table) -> str:
    width = len(table.columns)
    spec = "".join("r" if column.numeric else "l" for column in table.columns)
    lines = [
        r"\begin{table}[htbp]\centering\small",
        rf"\caption{{{escape(table.title)}}}",
        rf"\begin{{tabular}}{{{spec}}}",
        r"\toprule",
        " & ".join(escape(column.label) for column in table.columns) + r" \\",
    ]
    for block in table.blocks:
        lines.append(r"\midrule")
        if block.title:
            lines.append(rf"\multicolumn{{{width}}}{{l}}{{\textbf{{{escape(block.title)}}}}} \\")
        for row in block.rows:
            cells = [decorated(c, escape, r"\textbf{@}", r"\underline{@}") for c in row.cells]
            if row.kind in {"published", "info"}:
                cells[0] = rf"\textit{{{cells[0]}}}"
            lines.append(" & ".join(cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    if table.notes:
        lines.append(r"\par\smallskip\raggedright\footnotesize")
        lines += [escape(note) + r"\par" for note in table.notes]
    return "\n".join([*lines, r"\end{table}", ""])


FORMAT = Format(latex, suffix="tex")
