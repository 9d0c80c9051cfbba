"""Effective context length: up to where a model reads a text as well as its reference does.

A difference is the loss of a token under the method, after the whole text before it, minus that
under the reference, clipped to ±1 nat; negative is better for the method. The functions here take
its sums over blocks of 64 tokens.

The rule. Positions are cut into six equal bins, each with its mean difference and a plain t
interval over the blocks of all documents, at a level of 0.5% over all six (Bonferroni): so the answer,
read off the intervals, is wrong in at most 3% of samples at either end (5% with one text), for the
blocks are not quite independent, and their sums are skewed (docs/reference/effective-context.md).
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special  # its stdtrit is the quantile of Student's t; stats imports slowly

Floats = npt.NDArray[np.float64]

BINS = 6
"""Equal bins of position."""

BLOCK = 64
"""Tokens of a block, the unit of chance."""

CLIP = 1.0
"""Nats to which the difference of a token is clipped: differences are heavy-tailed."""

LEVEL = 0.005
"""Level of the intervals, over all bins together."""

ERRS, ERRS_WITH_ONE = "3%", "5%"
"""Most samples in which the answer is wrong, at either end, on two models: of two documents or more, of
one."""

MARGIN = 0.05
"""Nats a token: less is no degradation. A perplexity that is 5% higher."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean difference, nats/token, and the two ends of its interval."""

    mean: float
    low: float
    high: float

    @property
    def holds_zero(self) -> bool:
        """Whether no difference is shown."""
        return self.low <= 0 <= self.high


@dataclass(frozen=True, slots=True)
class Bin(Interval):
    """The same between two positions, in tokens from the start of a text."""

    start: int
    end: int


def clipped_difference(full: npt.NDArray[Any], reference: npt.NDArray[Any]) -> Floats:
    """Loss of each token under the method minus that under the reference, clipped, `[T]` nats."""
    return np.clip(np.asarray(full, np.float64) - np.asarray(reference, np.float64), -CLIP, CLIP)


def block_sums(values: Floats) -> tuple[Floats, Floats]:
    """Sums of the values of consecutive tokens `[T]` over blocks, and tokens in them, `[B]` each.

    A last block of less than half the size is joined to the one before.
    """
    edges = list(range(0, values.size, BLOCK))
    if len(edges) > 1 and values.size - edges[-1] < BLOCK / 2:
        edges.pop()
    return np.add.reduceat(values, edges), np.diff([*edges, values.size]).astype(np.float64)


def interval(sums: Floats, tokens: Floats, level: float = LEVEL) -> Interval:
    """Mean over some blocks and its two-sided t interval, blocks as units.

    `sums` are the differences of the blocks, nats, `[B]`, `tokens` what is in them. The standard
    error is that of a ratio of sums. One block alone has an interval without ends.
    """
    n, mean = sums.size, float(sums.sum() / tokens.sum())
    if n < 2:
        return Interval(mean, -np.inf, np.inf)
    variance = n / (n - 1) * float(((sums - mean * tokens) ** 2).sum())
    half = -float(special.stdtrit(n - 1, level / 2)) * variance**0.5 / float(tokens.sum())
    return Interval(mean, mean - half, mean + half)


def bin_edges(start: int, longest: int) -> list[int]:
    """Positions that bound the bins: equal, as far as whole blocks allow.

    Documents that have fewer blocks than there are bins get a bin for each block.
    """
    blocks = max(1, (longest - start) // BLOCK)
    inner = np.linspace(0, blocks, min(BINS, blocks) + 1).round().astype(int)[1:-1]
    return [start, *(start + BLOCK * int(each) for each in inner), longest]


def bins(middles: Floats, sums: Floats, tokens: Floats, edges: Sequence[int]) -> list[Bin]:
    """The mean difference in each bin, with intervals that hold nominally 99.5% together.

    `middles` are the positions of the blocks' middles, `[B]`; `edges` come from `bin_edges`.
    """
    found = []
    for start, end in itertools.pairwise(edges):
        at = (middles > start) & (middles <= end)
        if at.any():
            of_bin = interval(sums[at], tokens[at], LEVEL / (len(edges) - 1))
            found.append(Bin(of_bin.mean, of_bin.low, of_bin.high, start, end))
    return found


def answer(found: Sequence[Bin], margin: float = MARGIN) -> tuple[int | None, int | None]:
    """The end of the last bin that shows no degradation, and that of the first that shows some.

    A bin shows none where its interval lies below the margin, and some where it lies above it; bins
    after the first such one do not count. None where there is no such bin.
    """
    above = next((at for at, each in enumerate(found) if each.low > margin), len(found))
    below = [each.end for each in found[:above] if each.high < margin]
    return below[-1] if below else None, found[above].end if above < len(found) else None


def breaks_near(ends: Floats, sums: Floats, tokens: Floats, margin: float = MARGIN) -> int | None:
    """Where the running sum of difference minus margin, over all documents, is lowest.

    A point estimate of where a method starts to lose, to be read only where degradation is shown.
    None where the sum is never below zero: it loses from the first position on. `ends` are the
    positions at which the blocks of all documents end, `[B]`.
    """
    places, of_place = np.unique(ends, return_inverse=True)
    running = np.cumsum(np.bincount(of_place, sums - margin * tokens))
    lowest = int(running.argmin())
    return int(places[lowest]) if running[lowest] < 0 else None
