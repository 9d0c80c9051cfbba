"""Effective context length: up to which position a model predicts a document as well as a reference.

The difference of a token is its loss under the method, given the whole document before it, minus
its loss
under the reference, clipped to ±1 nat. Positive is worse. The functions here take sums of these
differences over blocks of 64 tokens.

The rule. Positions are divided into six equal bins. Each bin has a mean difference and a plain t
interval
over the blocks of all documents, at a level of 0.5% over all six bins (Bonferroni). The bounds of
the
effective context length are read off these intervals. Each bound is wrong in at most 3% of samples
(5% with
one document), more than the nominal level, because neighbouring blocks are not quite independent
and their sums are skewed (docs/reference/effective-context.md).
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special  # `stdtrit` is the quantile of Student's t; importing scipy.stats is slow

Floats = npt.NDArray[np.float64]

BINS = 6
"""Number of bins of equal width that positions are divided into."""

BLOCK = 64
"""Tokens in a block. Blocks are the sampling units of all intervals."""

CLIP = 1.0
"""Nats to which the difference of a token is clipped, because differences are heavy-tailed."""

LEVEL = 0.005
"""Level of the intervals, over all bins together."""

ERROR_RATE = "3%"
"""Share of samples in which a bound is wrong at most, measured on two models, with two documents or more."""

ERROR_RATE_OF_ONE_DOCUMENT = "5%"
"""The same with a single document."""

MARGIN = 0.05
"""Differences below this, in nats/token, are negligible. It is a perplexity that is 5% higher."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean difference with its confidence interval, in nats/token.

    Attributes:
        mean: the mean difference, method minus reference.
        low: lower end of the interval.
        high: upper end of the interval.
    """

    mean: float
    low: float
    high: float

    @property
    def contains_zero(self) -> bool:
        """Return whether the interval contains zero, so that no difference is shown."""
        return self.low <= 0 <= self.high


@dataclass(frozen=True, slots=True)
class Bin(Interval):
    """The mean difference between two positions.

    Attributes:
        start: first position of the bin, in tokens from the start of a document, BOS counted.
        end: position after the last one of the bin.
    """

    start: int
    end: int


def clipped_difference(method: npt.NDArray[Any], reference: npt.NDArray[Any]) -> Floats:
    """Return the clipped difference of each token, method minus reference.

    Args:
        method: losses of the tokens under the method, nats, `[T]`.
        reference: losses of the same tokens under the reference, nats, `[T]`.

    Returns:
        differences within ±`CLIP` nats, float64, `[T]`; positive is worse.
    """
    differences = np.asarray(method, np.float64) - np.asarray(reference, np.float64)
    return np.clip(differences, -CLIP, CLIP)


def block_sums(values: Floats) -> tuple[Floats, Floats]:
    """Return the sum of each block of consecutive values, and the number of tokens in it.

    This is the only division into blocks: tasks, sweeps, reports and `diff` all use it. Blocks
    begin at
    multiples of `BLOCK`. A remainder of less than half a block is added to the last block, since a
    unit that small would make the sampling units unequal.

    Args:
        values: one value per token, `[T]` with at least one token.

    Returns:
        sums `[B]` and numbers of tokens `[B]`, both float64.
    """
    starts = list(range(0, values.size, BLOCK))
    if len(starts) > 1 and values.size - starts[-1] < BLOCK / 2:
        starts.pop()
    sizes = np.diff([*starts, values.size]).astype(np.float64)
    return np.add.reduceat(values, starts), sizes


def interval(sums: Floats, tokens: Floats, level: float = LEVEL) -> Interval:
    """Return the mean over some blocks with its two-sided t interval.

    The standard error is that of a ratio of sums, with blocks as sampling units.

    Args:
        sums: sums of the differences of the blocks, nats, `[B]`.
        tokens: numbers of tokens in the blocks, `[B]`.
        level: probability that the interval misses the mean.

    Returns:
        the interval in nats/token; an infinite one for a single block.
    """
    blocks = sums.size
    mean = float(sums.sum() / tokens.sum())
    if blocks < 2:
        return Interval(mean, -np.inf, np.inf)
    residuals = sums - mean * tokens
    variance = blocks / (blocks - 1) * float((residuals**2).sum())
    standard_error = variance**0.5 / float(tokens.sum())
    quantile = -float(special.stdtrit(blocks - 1, level / 2))
    return Interval(mean, mean - quantile * standard_error, mean + quantile * standard_error)


def bin_edges(start: int, longest: int) -> list[int]:
    """Return the positions that bound the bins.

    Bins are of equal width as far as whole blocks allow. Where there are fewer blocks than `BINS`,
    every block is a bin.

    Args:
        start: first scored position.
        longest: position after the last one that was scored.
    """
    blocks = max(1, (longest - start) // BLOCK)
    bins = min(BINS, blocks)
    in_blocks = np.linspace(0, blocks, bins + 1).round().astype(int)
    inner_edges = [start + BLOCK * int(number) for number in in_blocks[1:-1]]
    return [start, *inner_edges, longest]


def bin_intervals(middles: Floats, sums: Floats, tokens: Floats, edges: Sequence[int]) -> list[Bin]:
    """Return the mean difference in each bin, with nominally 99.5% simultaneous coverage.

    Args:
        middles: positions of the middles of the blocks, `[B]`.
        sums: sums of the differences of the blocks, nats, `[B]`.
        tokens: numbers of tokens in the blocks, `[B]`.
        edges: result of `bin_edges`.

    Returns:
        the bins in which a block lies, by position.
    """
    level = LEVEL / (len(edges) - 1)  # Bonferroni
    bins = []
    for start, end in itertools.pairwise(edges):
        inside = (middles > start) & (middles <= end)
        if inside.any():
            of_bin = interval(sums[inside], tokens[inside], level)
            bins.append(Bin(of_bin.mean, of_bin.low, of_bin.high, start, end))
    return bins


def context_bounds(bins: Sequence[Bin], margin: float = MARGIN) -> tuple[int | None, int | None]:
    """Return the lower and the upper bound of the effective context length.

    A bin shows degradation where its interval lies above the margin, and none where it lies below
    it. Bins after the first one with degradation do not count.

    Args:
        bins: result of `bin_intervals`.
        margin: the smallest difference that counts, nats/token.

    Returns:
        the end of the last bin that shows no degradation, and the end of the first bin that shows
        some; None where there is no such bin.
    """
    upper = None
    before_degradation = list(bins)
    for number, one_bin in enumerate(bins):
        if one_bin.low > margin:
            upper = one_bin.end
            before_degradation = list(bins[:number])
            break
    without_degradation = [one_bin.end for one_bin in before_degradation if one_bin.high < margin]
    lower = without_degradation[-1] if without_degradation else None
    return lower, upper


def onset(ends: Floats, sums: Floats, tokens: Floats, margin: float = MARGIN) -> int | None:
    """Return the position at which the cumulative sum of (difference − margin) is lowest.

    This is a point estimate of where a method starts to degrade. It has a meaning only where
    degradation is shown.

    Args:
        ends: positions at which the blocks of all documents end, `[B]`.
        sums: sums of the differences of the blocks, nats, `[B]`.
        tokens: numbers of tokens in the blocks, `[B]`.
        margin: the smallest difference that counts, nats/token.

    Returns:
        a position, or None where the sum is never negative: the method degrades from the first
        position.
    """
    positions, position_of_block = np.unique(ends, return_inverse=True)
    excess = np.bincount(position_of_block, sums - margin * tokens)
    cumulative = np.cumsum(excess)
    lowest = int(cumulative.argmin())
    return int(positions[lowest]) if cumulative[lowest] < 0 else None
