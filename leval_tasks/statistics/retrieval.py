"""How far a model retrieves: the largest length up to which every score is at least a threshold.

Both bounds come from one-sided tests. Lower bound: lengths are accepted in order, up to the first
that the test
does not accept. Only the first length whose true score is too low can be accepted wrongly, so no
correction is
needed. Upper bound: the hypothesis that the model retrieves up to the `k`-th length is rejected
where any of the
first `k` scores is shown to be too low, at the `k`-th part of the level (Bonferroni). The upper
bound is the largest length that is not rejected.

Scores lie in 0..1 and need not be 0 or 1. Their sum varies most where they are 0 or 1 and all
questions are equally hard, so the binomial tails of the sum are conservative.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from scipy import special  # importing scipy.stats is slow

LEVEL = 0.025
"""Level of each bound. Together they miss the true length in at most 5% of samples."""

THRESHOLD = 0.856
"""The threshold of RULER (Hsieh et al. 2024): the score of Llama-2-7B at 4,096 tokens."""


class RetrievalLength(NamedTuple):
    """The bounds of a retrieval length, among the lengths that were measured.

    Attributes:
        low: the largest length that is accepted; None where not even the shortest is, though it is
            not rejected.
        high: the largest length that is not rejected; 0 where the shortest is.
        refused: the length after `high`; None where there is none.
    """

    low: int | None
    high: int
    refused: int | None = None


class Retrieved(NamedTuple):
    """Questions at one length.

    Attributes:
        length: the context length in tokens.
        right: sum of the questions' scores, each from 0 to 1.
        asked: number of questions.
    """

    length: int
    right: float
    asked: int


def length_above(counts: Sequence[Retrieved]) -> RetrievalLength:
    """Return the bounds of the largest length up to which every true score is at least `THRESHOLD`.

    Args:
        counts: the questions of each length, by ascending length.
    """
    p_too_low = []  # one-sided p of the hypothesis that the true score is below the threshold
    p_high_enough = []  # and of the hypothesis that it is not
    for count in counts:
        right_at_least = math.floor(count.right + 1e-9)
        right_at_most = math.ceil(count.right - 1e-9)
        p_too_low.append(special.bdtrc(right_at_least - 1, count.asked, THRESHOLD))
        p_high_enough.append(special.bdtr(right_at_most, count.asked, THRESHOLD))
    lengths = [0, *(count.length for count in counts)]

    accepted = 0
    while accepted < len(counts) and p_too_low[accepted] <= LEVEL:
        accepted += 1
    not_rejected = 0
    for number in range(1, len(counts) + 1):
        if min(p_high_enough[:number]) > LEVEL / number:
            not_rejected = number

    low: int | None = lengths[accepted]
    if accepted == 0 and not_rejected > 0:
        low = None
    refused = None
    if not_rejected + 1 < len(lengths):
        refused = lengths[not_rejected + 1]
    return RetrievalLength(low, lengths[not_rejected], refused)
