"""Plain text made safe for one output format, by an explicit mapping of characters.

Control characters and direction overrides are shown as the replacement character in every format:
a name from a results folder must neither move a terminal's cursor nor reorder a line.
"""

import unicodedata

_BIDI = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}

MARKDOWN = {c: "\\" + c for c in "\\`*_[]#|~$"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"}

HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"}

LATEX = {
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


def plain(text: str) -> str:
    """One line without control characters and direction overrides."""
    return "".join(
        " "
        if c in "\n\r\t"
        else "\N{REPLACEMENT CHARACTER}"
        if unicodedata.category(c) in {"Cc", "Cs"} or unicodedata.bidirectional(c) in _BIDI
        else c
        for c in text
    )


def markdown(text: str) -> str:
    """For a cell or a line of GitHub-flavoured Markdown."""
    return "".join(MARKDOWN.get(c, c) for c in plain(text))


def html(text: str) -> str:
    """For an HTML text node or a quoted attribute."""
    return "".join(HTML.get(c, c) for c in plain(text))


def latex(text: str) -> str:
    r"""For LaTeX text under pdflatex; a letter it has no glyph for is written as `[U+4E2D]`."""
    return "".join(_latex_character(c) for c in plain(text))


def _latex_character(c: str) -> str:
    if c in LATEX:
        return LATEX[c]
    if c.isascii():
        return c
    if "\N{LATIN CAPITAL LETTER A WITH GRAVE}" <= c <= "\N{LATIN SMALL LETTER Z WITH CARON}":
        base = unicodedata.normalize("NFKD", c)
        if len(base) == 2 and base[1] in _ACCENTS and base[0].isascii():
            letter = {"i": r"\i", "j": r"\j"}.get(base[0], base[0])
            return rf"\{_ACCENTS[base[1]]}{{{letter}}}"
    return f"{{[}}U+{ord(c):04X}{{]}}"


_ACCENTS = {
    "\N{COMBINING GRAVE ACCENT}": "`",
    "\N{COMBINING ACUTE ACCENT}": "'",
    "\N{COMBINING CIRCUMFLEX ACCENT}": "^",
    "\N{COMBINING TILDE}": "~",
    "\N{COMBINING DIAERESIS}": '"',
    "\N{COMBINING CARON}": "v",
    "\N{COMBINING CEDILLA}": "c",
}


def csv(text: str) -> str:
    """For a CSV field: a text that a spreadsheet would run as a formula gets a leading quote."""
    cleaned = plain(text)
    return "'" + cleaned if cleaned[:1] in {"=", "+", "-", "@"} else cleaned
