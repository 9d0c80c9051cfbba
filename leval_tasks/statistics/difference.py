"""Does setup B read like setup A? Intervals of the difference of their losses, by position.

`difference = loss of B - loss of A` for each token, nats; positive is worse. The interval is that
of effective
context length, with 95% simultaneous coverage over all bins. The bins begin where the losses stop
being bitwise
identical, and double in width, so that a fault which begins at one position is not diluted by what
follows.

A bin whose interval lies within the margin is *same*. Otherwise it is *worse* or *better* if its
interval excludes zero, and *not decided* if it contains zero. Error rates are in
reports/diff.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from leval_tasks.statistics.effective_context import Floats, block_sums, interval

LEVEL = 0.05
"""Level of the intervals, over all bins together."""

MARGIN = 0.01
"""Differences below this, in nats/token, are negligible."""

FIRST_BIN = 256
"""Tokens of the first bin; fewer where all the differing tokens are less than four times as many."""

SAME = "same"
WORSE = "worse"
BETTER = "better"
OPEN = "not decided"


@dataclass(frozen=True, slots=True)
class Bin:
    """The mean difference between two positions, in tokens from the start of the text.

    `difference` is loss of B minus loss of A, nats/token, and `low` to `high` its interval.
    """

    start: int
    end: int
    difference: float
    low: float
    high: float
    margin: float

    @property
    def verdict(self) -> str:
        """Return `same`, `worse`, `better` or `not decided`."""
        if -self.margin < self.low and self.high < self.margin:
            return SAME
        if self.low > 0:
            return WORSE
        if self.high < 0:
            return BETTER
        return OPEN

    def more(self) -> float:
        """Return how many times as many documents would decide, if mean and spread stayed as they are."""
        half_width = (self.high - self.low) / 2
        mean = abs(self.difference)
        largest_half_width = max(self.margin - mean, mean)  # at which the bin is decided
        if largest_half_width <= 0:
            return math.inf
        return (half_width / largest_half_width) ** 2


def equal_up_to(a: Floats, b: Floats) -> int:
    """Return the position up to which the losses `[G, T]` of all documents are bitwise identical."""
    different = np.flatnonzero((a != b).any(axis=0))
    return int(different[0]) if different.size else a.shape[1]


def doubling_edges(start: int, end: int) -> list[int]:
    """Return the bounds of bins of 256, 512, … tokens; a last one of less than half joins the one before."""
    width = min(FIRST_BIN, max(1, (end - start) // 4))
    edges = [start]
    while edges[-1] < end:
        edges.append(min(edges[-1] + width, end))
        if edges[-1] == end and len(edges) > 2 and end - edges[-2] < width / 2:
            del edges[-2]
        width *= 2
    return edges


def difference_bins(differences: Floats, start: int, margin: float = MARGIN) -> tuple[Bin, ...]:
    """Return the bins of documents, from `start` on; none where all losses are equal.

    `differences` are loss of B minus loss of A, `[G, T]`; `start` is from `equal_up_to`.
    """
    edges = doubling_edges(start, differences.shape[1])
    level = LEVEL / max(1, len(edges) - 1)
    bins = []
    for begin, end in itertools.pairwise(edges):
        blocks = [block_sums(document[begin:end]) for document in differences]
        sums = np.concatenate([sums for sums, _ in blocks])
        tokens = np.concatenate([tokens for _, tokens in blocks])
        of_bin = interval(sums, tokens, level)
        bins.append(Bin(begin, end, of_bin.mean, of_bin.low, of_bin.high, margin))
    return tuple(bins)


def verdict_of(bins: Sequence[Bin]) -> str:
    """Return the verdict of all bins: worse if any is, else better, else not decided, else same."""
    verdicts = {one_bin.verdict for one_bin in bins}
    for verdict in (WORSE, BETTER, OPEN):
        if verdict in verdicts:
            return verdict
    return SAME
