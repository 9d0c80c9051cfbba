"""Does setup B read like setup A? Intervals of the difference of their losses, by position.

`difference = loss of B - loss of A` for each token, nats; negative is better for B. The interval is
that of effective context length, at 95% over all bins together. The bins begin where the losses
stop being equal bit for bit, and double in width, so that a fault which begins at one position is
not diluted by what follows.

A bin whose interval lies within the margin is *same*. Otherwise it is *worse* or *better* if its
interval lies on one side of zero, and *not decided* if it holds zero. Error rates are in
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
"""Nats a token: a smaller difference is none."""

FIRST_BIN = 256
"""Tokens of the first bin, or a quarter of what there is where that is less."""

SAME, WORSE, BETTER, OPEN = "same", "worse", "better", "not decided"


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
        """`same`, `worse`, `better` or `not decided`."""
        if -self.margin < self.low and self.high < self.margin:
            return SAME
        if self.low > 0:
            return WORSE
        return BETTER if self.high < 0 else OPEN

    def more(self) -> float:
        """How many times the documents would decide, if mean and spread stayed as they are."""
        half, mean = (self.high - self.low) / 2, abs(self.difference)
        room = max(self.margin - mean, mean)
        return (half / room) ** 2 if room > 0 else math.inf


def equal_up_to(a: Floats, b: Floats) -> int:
    """Position up to which the losses `[G, T]` of all documents are equal bit for bit."""
    apart = np.flatnonzero((a != b).any(axis=0))
    return int(apart[0]) if apart.size else a.shape[1]


def doubling_edges(start: int, end: int) -> list[int]:
    """Bounds of bins of 256, 512, … tokens; a last one of less than half joins the one before."""
    width = min(FIRST_BIN, max(1, (end - start) // 4))
    edges = [start]
    while edges[-1] < end:
        edges.append(min(edges[-1] + width, end))
        if edges[-1] == end and len(edges) > 2 and end - edges[-2] < width / 2:
            del edges[-2]
        width *= 2
    return edges


def difference_bins(differences: Floats, start: int, margin: float = MARGIN) -> tuple[Bin, ...]:
    """The bins of documents, from `start` on; none where all losses are equal.

    `differences` are loss of B minus loss of A, `[G, T]`; `start` is from `equal_up_to`.
    """
    edges = doubling_edges(start, differences.shape[1])
    level = LEVEL / max(1, len(edges) - 1)
    found = []
    for begin, end in itertools.pairwise(edges):
        parts = [block_sums(text[begin:end]) for text in differences]
        sums, tokens = (np.concatenate(each) for each in zip(*parts, strict=True))
        of_bin = interval(sums, tokens, level)
        found.append(Bin(begin, end, of_bin.mean, of_bin.low, of_bin.high, margin))
    return tuple(found)


def verdict_of(bins: Sequence[Bin]) -> str:
    """Of all bins of a length: worse if any is, else better, else not decided, else same."""
    found = {each.verdict for each in bins}
    return next((each for each in (WORSE, BETTER, OPEN) if each in found), SAME)
