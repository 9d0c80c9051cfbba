"""How much a text repeats itself, and a text without what it repeats.

A model predicts a passage that it read before from its first copy. A text with such passages
measures copying in place of what a long context is worth.
"""

from collections.abc import Iterable, Sequence
from typing import Any

NGRAM = 32
"""Tokens of a passage that counts as repeated."""

APART = 1000
"""Tokens between two copies beyond which a short window holds one of them only."""

WORDS = 8
"""Words of the sequences by which paragraphs are compared."""


def repeated_share(tokens: Sequence[Any], ngram: int = NGRAM, apart: int = APART) -> float:
    """Share of the positions that start a sequence seen more than `apart` tokens before, 0 to 1.

    Args:
        tokens: ids, or words.
        ngram: tokens of a sequence.
        apart: tokens from the start of the first copy to the start of a repeated one.
    """
    first: dict[tuple[Any, ...], int] = {}
    starts = range(len(tokens) - ngram + 1)
    repeated = 0
    for at in starts:
        repeated += at - first.setdefault(tuple(tokens[at : at + ngram]), at) > apart
    return repeated / len(starts) if starts else 0.0


def without_repeats(paragraphs: Iterable[str]) -> list[str]:
    """The paragraphs, in order, less those of which more than half was seen before.

    A paragraph is compared by its sequences of `WORDS` words; a shorter one by all of its words.
    """
    seen: set[tuple[str, ...]] = set()
    kept = []
    for paragraph in paragraphs:
        parts = paragraph.split()
        grams = [tuple(parts[at : at + WORDS]) for at in range(max(1, len(parts) - WORDS + 1))]
        if parts and 2 * sum(gram in seen for gram in grams) <= len(grams):
            kept.append(paragraph)
        seen.update(grams)
    return kept
