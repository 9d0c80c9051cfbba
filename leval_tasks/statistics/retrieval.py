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

The threshold is a score, or a share of the model's own score at the shortest length. The latter is
not known but measured. A test therefore takes the least favourable own score within an exact
interval, and adds the probability that the interval misses it (Berger and Boos 1994).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from scipy import special  # importing scipy.stats is slow

from leval_tasks.statistics.by_document import clopper_pearson

LEVEL = 0.025
"""Level of each bound. Together they miss the true length in at most 5% of samples."""

THRESHOLD = 0.856
"""The threshold of RULER (Hsieh et al. 2024): the score of Llama-2-7B at 4,096 tokens."""

MISSED = 0.001
"""Probability with which each bound of the model's own score may miss it."""


class RetrievalLength(NamedTuple):
    """The bounds of a retrieval length, among the lengths that were measured.

    Attributes:
        low: the largest length that is accepted; None where not even the shortest is, though it is
            not rejected.
        high: the largest length that is not rejected; 0 where the shortest is.
        refused: the length after `high`; None where there is none.
        undecided: the lengths above `low`, up to `high`: too few questions to accept or reject.
    """

    low: int | None
    high: int
    refused: int | None = None
    undecided: tuple[int, ...] = ()


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

    @property
    def right_at_least(self) -> int:
        """Return the sum of the scores, rounded down."""
        return math.floor(self.right + 1e-9)

    @property
    def right_at_most(self) -> int:
        """Return the sum of the scores, rounded up."""
        return math.ceil(self.right - 1e-9)


class Tails(NamedTuple):
    """One-sided p-values of one length.

    Attributes:
        too_low: of the hypothesis that the true score is below the threshold.
        high_enough: of the hypothesis that it is not.
    """

    too_low: float
    high_enough: float


def place_row(count: Retrieved) -> dict[str, float]:
    """Return the counts of one place or length with the exact 95% interval of its accuracy.

    Args:
        count: questions, each of which is right or wrong.

    Returns:
        `right`, `asked`, and the bounds `low` and `high` of Clopper and Pearson.
    """
    low, high = clopper_pearson(count.right, count.asked)
    return {
        "right": int(count.right),
        "asked": count.asked,
        "low": float(low),
        "high": float(high),
    }


def length_above(
    counts: Sequence[Retrieved], threshold: float = THRESHOLD, *, of_own: bool = False
) -> RetrievalLength:
    """Return the bounds of the largest length up to which every true score is at least a threshold.

    Args:
        counts: the questions of each length, by ascending length.
        threshold: a score, or a share of the own score; from 0 to 1.
        of_own: whether the threshold is a share of the own score at the shortest length. That
            length itself then holds.
    """
    if of_own:
        tails = _tails_of_own(counts, threshold)
    else:
        tails = [_tails(count, threshold, threshold) for count in counts]
    lengths = [0, *(count.length for count in counts)]

    accepted = 0
    while accepted < len(counts) and tails[accepted].too_low <= LEVEL:
        accepted += 1
    not_rejected = 0
    for number in range(1, len(counts) + 1):
        if min(tail.high_enough for tail in tails[:number]) > LEVEL / number:
            not_rejected = number

    low: int | None = lengths[accepted]
    if accepted == 0 and not_rejected > 0:
        low = None
    refused = None
    if not_rejected + 1 < len(lengths):
        refused = lengths[not_rejected + 1]
    undecided = tuple(lengths[accepted + 1 : not_rejected + 1])
    return RetrievalLength(low, lengths[not_rejected], refused, undecided)


def _tails(count: Retrieved, least: float, most: float) -> Tails:
    """Return the p-values of one length for a threshold between `least` and `most`."""
    return Tails(
        too_low=float(special.bdtrc(count.right_at_least - 1, count.asked, most)),
        high_enough=float(special.bdtr(count.right_at_most, count.asked, least)),
    )


def _tails_of_own(counts: Sequence[Retrieved], share: float) -> list[Tails]:
    """Return the p-values of all lengths for a share of the own score at the shortest."""
    if not counts:
        return []
    shortest, *longer = counts
    least, most = own_score_bounds(shortest)
    tails = [Tails(too_low=0.0, high_enough=1.0)]
    for count in longer:
        of_worst = _tails(count, share * least, share * most)
        tails.append(Tails(of_worst.too_low + MISSED, of_worst.high_enough + MISSED))
    return tails


def own_score_bounds(shortest: Retrieved) -> tuple[float, float]:
    """Return bounds of the own score, each of which misses it with probability `MISSED` at most."""
    wrong_at_least = shortest.asked - shortest.right_at_most
    least = 0.0
    if shortest.right_at_least > 0:
        right = shortest.right_at_least
        least = float(special.betaincinv(right, shortest.asked - right + 1, MISSED))
    most = 1.0
    if wrong_at_least > 0:
        right = shortest.right_at_most
        most = float(special.betaincinv(right + 1, shortest.asked - right, 1 - MISSED))
    return least, most
