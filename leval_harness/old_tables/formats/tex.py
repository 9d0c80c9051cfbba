"""LaTeX for pdflatex, with the rules of booktabs."""

import unicodedata
from collections.abc import Sequence

from leval_harness.old_tables.formats import Format, decorated
from leval_harness.old_tables.model import Table
from resonance_vllm.errors import plain

_CHARACTERS = "\\~^<>|\"'`–—…†·’‘“”"
_COMMANDS = (
    "textbackslash textasciitilde textasciicircum textless textgreater textbar textquotedbl "
    "textquotesingle textasciigrave textendash textemdash ldots textdagger textperiodcentered "
    "textquoteright textquoteleft textquotedblleft textquotedblright"
)
_MATHS = {"±": "\\pm", "×": "\\times", "−": "-", "≤": "\\leq", "≥": "\\geq", "→": "\\rightarrow"}
ESCAPES = {
    **{c: f"\\{c}" for c in "{}$&#%_"},
    **{c: f"{{{c}}}" for c in "-[]*?!"},
    **{c: f"\\{name}{{}}" for c, name in zip(_CHARACTERS, _COMMANDS.split(), strict=True)},
    **{c: f"${maths}$" for c, maths in _MATHS.items()},
}
# of the combining grave, acute, circumflex, tilde, diaeresis, caron and cedilla
_ACCENTS = dict(zip("\u0300\u0301\u0302\u0303\u0308\u030c\u0327", "`'^~\"vc", strict=True))
PREAMBLE = "% needs \\usepackage[T1]{fontenc}, \\usepackage{textcomp} and \\usepackage{booktabs}\n"


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


def latex(tables: Sequence[Table]) -> str:
    """Tables with booktabs rules for pdflatex, to be included in a document."""
    return PREAMBLE + "\n".join(map(_table, tables))


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
    if table.below:
        lines.append(r"\par\smallskip\raggedright\footnotesize")
        lines += [escape(note) + r"\par" for note in table.below]
    return "\n".join([*lines, r"\end{table}", ""])


FORMAT = Format(latex, suffix="tex")
