"""Text that must not move a terminal's cursor or reorder a line, whatever format it stands in."""

import unicodedata

_BIDI = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


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
