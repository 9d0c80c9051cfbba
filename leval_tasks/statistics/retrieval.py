"""How far a model retrieves: the largest length up to which every score is at least a threshold.

Its ends by one-sided tests. Low: lengths are shown in order, up to the first that is not; only the
first one that truly is not can be shown wrongly, so that no correction is due. High: the hypothesis
that the `k`-th length is held is refused where any of the first `k` is shown not to be, at the k-th
part of the level (Bonferroni); the high end is the largest length that is not refused.

Scores lie in 0..1 and need not be 0 or 1: their sum varies most where they are and all questions
are equally hard, so that the binomial tails of the sum are safe.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from scipy import special  # stats imports slowly

LEVEL = 0.025
"""Of each end: together they miss the true length in at most 5% of samples."""

THRESHOLD = 0.856
"""Of RULER (Hsieh et al. 2024): the score of Llama-2-7B at 4,096 tokens."""


class RetrievalLength(NamedTuple):
    """A length with an interval, of the lengths that were asked.

    `low` is the largest length that is shown, None where nothing is, beyond the shortest asked;
    `high` the largest that is not refused, and `refused` the one after it.
    """

    low: int | None
    high: int
    refused: int | None = None


class Retrieved(NamedTuple):
    """Questions at one length: the sum of their scores, each from 0 to 1, and their number."""

    length: int
    right: float
    asked: int


def length_above(counts: Sequence[Retrieved]) -> RetrievalLength:
    """The largest length up to which every true score is at least `THRESHOLD`; 0 if none is.

    `counts` are by length, ascending.
    """
    shown, refused = [], []  # one-sided p against a score that is not held, and against one that is
    for each in counts:
        right, wrong = math.floor(each.right + 1e-9), math.ceil(each.right - 1e-9)
        shown.append(special.bdtrc(right - 1, each.asked, THRESHOLD))
        refused.append(special.bdtr(wrong, each.asked, THRESHOLD))
    low = next((at for at, p in enumerate(shown) if p > LEVEL), len(shown))
    numbers = range(1, len(refused) + 1)
    high = max((n for n in numbers if min(refused[:n]) > LEVEL / n), default=0)
    lengths = (0, *(each.length for each in counts))
    after = lengths[high + 1] if high + 1 < len(lengths) else None
    return RetrievalLength(None if low == 0 < high else lengths[low], lengths[high], after)
