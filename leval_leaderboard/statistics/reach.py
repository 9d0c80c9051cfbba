"""How far a model reads, from the same texts at growing lengths: a length with an interval.

Lengths `c_0 < c_1 < ...`; step `k` is what changes from `c_(k-1)` to `c_k` on the same texts. The
true reach is the largest `c_k` up to which every step's true effect is below a threshold: for the
reach without loss `+margin`, for the reach with gain `-margin`. It is a fact about the model, so
that fewer texts can widen what is known of it and never lengthen it.

Its ends by one-sided t tests of the steps, each at half of the level. Low: steps are shown to be
below the threshold in order, up to the first that is not; only the first step that truly is not can
be shown wrongly, so that no correction is due. High: the hypothesis that the reach is at least
`c_k` is refused where any of its `k` steps is shown to be above, at the k-th part of the level
(Bonferroni); the high end is the largest `c_k` that is not refused.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from leval_tasks.statistics import Floats, linearised_ratio

MARGIN = 0.01
"""Nats a token: a smaller difference is none."""

FEWEST = 3
"""Texts below which no interval is given."""


@dataclass(frozen=True, slots=True)
class Step:
    """What changed from one length to the next, negative where it got better.

    `low` and `high` end the two-sided interval of this step alone; None where texts are too few.
    """

    shorter: int
    longer: int
    difference: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Reach:
    """A length with an interval, of the lengths that were asked.

    Attributes:
        low: the largest length that is shown; None where nothing is, beyond the shortest asked.
        high: the largest length that is not refused.
        longest: the longest that was asked.
    """

    low: int | None
    high: int
    longest: int

    @property
    def known(self) -> int | None:
        """The reach, where the interval is one length short of the longest; else None."""
        return self.high if self.low == self.high < self.longest else None

    @property
    def text(self) -> str:
        """`8192`, `at least 8192` or `cannot tell`."""
        if self.known is not None:
            return str(self.known)
        return "cannot tell" if self.low is None else f"at least {self.low}"


def steps_of(
    nats: Floats, tokens: Floats, lengths: Sequence[int], level: float = 0.05
) -> list[Step]:
    """The steps between neighbouring lengths, paired by text.

    Args:
        nats: `[K + 1, G]`, negative log-likelihood of each text at each length.
        tokens: `[G]`, tokens scored in each text, the same at every length.
        lengths: the `K + 1` lengths, ascending.
        level: of each step's two-sided interval.
    """
    found = []
    for at in range(1, len(lengths)):
        mean, stderr, df = _paired(nats[at] - nats[at - 1], tokens)
        half = float(stats.t.ppf(1 - level / 2, df)) * stderr
        ends = (mean - half, mean + half) if math.isfinite(half) else (None, None)
        found.append(Step(lengths[at - 1], lengths[at], mean, *ends))
    return found


def reach_of(
    nats: Floats,
    tokens: Floats,
    lengths: Sequence[int],
    threshold: float = MARGIN,
    level: float = 0.05,
) -> Reach:
    """The largest length up to which every step is below a threshold, with its interval.

    Args:
        nats: `[K + 1, G]`, as for `steps_of`.
        tokens: `[G]`.
        lengths: the `K + 1` lengths, ascending.
        threshold: nats a token; `MARGIN` for the reach without loss, `-MARGIN` for that with gain.
        level: the interval misses the true reach in at most this share of samples of texts.
    """
    below = not_below(np.diff(nats, axis=0), tokens, threshold)
    return reach_by(below.tolist(), lengths, level)


def not_below(steps: Floats, tokens: Floats, threshold: float) -> Floats:
    """One-sided p of each step against a true effect at the threshold or above it.

    Args:
        steps: `[..., G]`, what the negative log-likelihood of each text changed by.
        tokens: `[G]`.
        threshold: nats a token.

    Returns:
        `[...]`; one minus it is the p against an effect below. One half where texts are too few.
    """
    mean, stderr, df = linearised_ratio(steps, tokens)
    distance = mean - threshold
    if steps.shape[-1] < FEWEST:
        return np.full(mean.shape, 0.5)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = stats.t.cdf(distance / stderr, df)
    # Where all texts agree to the last bit there is no spread to divide by.
    known: Floats = np.where(stderr > 0, p, np.heaviside(distance, 0.5))
    return known


def reach_by(not_below: Sequence[float], lengths: Sequence[int], level: float = 0.05) -> Reach:
    """The reach and its interval from the p of `not_below`, one a step."""
    low = 0
    while low < len(not_below) and not_below[low] <= level / 2:
        low += 1
    refused = [
        any(1 - p <= level / 2 / count for p in not_below[:count])
        for count in range(1, len(not_below) + 1)
    ]
    high = max(at for at, each in enumerate([False, *refused]) if not each)
    nothing = low == 0 and high > 0
    return Reach(None if nothing else lengths[low], lengths[high], lengths[-1])


def _paired(totals: Floats, sizes: Floats) -> tuple[float, float, float]:
    """Ratio, standard error and degrees of freedom; the last two NaN for too few texts."""
    mean, stderr, df = (float(each) for each in linearised_ratio(totals, sizes))
    return (mean, stderr, df) if totals.size >= FEWEST else (mean, math.nan, math.nan)
