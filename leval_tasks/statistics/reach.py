"""How far a model reads or retrieves: a length with an interval.

By loss, from the same texts at growing lengths.

Lengths `c_0 < c_1 < ...`; step `k` is what changes from `c_(k-1)` to `c_k` on the same texts. The
true reach is the largest `c_k` up to which every step's true effect is below a threshold: for the
reach without loss `+margin`, for the reach with gain `-margin`. It is a fact about the model, so
that fewer texts can widen what is known of it and never lengthen it.

Its ends by one-sided tests of the steps. Low: steps are shown to be below the threshold in order,
up to the first that is not; only the first step that truly is not can be shown wrongly, so that no
correction is due. High: the hypothesis that the reach is at least `c_k` is refused where any of its
`k` steps is shown to be above, at the k-th part of the level (Bonferroni); the high end is the
largest `c_k` that is not refused.

By retrieval, from scores of separate questions at growing lengths: the largest length up to which
every score is at least a threshold, or is less than `DROP` below that at the shortest length.
Scores lie in 0..1 and need not be 0 or 1: their sum varies most where they are and all questions
are equally hard, so that the binomial tails of the sum are safe.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from leval_tasks.statistics.clustered import Floats
from leval_tasks.statistics.skewed_t import (
    MARGIN,
    REFUSED_AT,
    SHOWN_AT,
    deciding_thresholds,
    one_sided,
)

THRESHOLD = 0.856
"""Of RULER (Hsieh et al. 2024): the score of Llama-2-7B at 4,096 tokens."""

DROP = 0.05
"""A smaller loss against the shortest length is none."""


@dataclass(frozen=True, slots=True)
class Step:
    """What changed from one length to the next, negative where it got better.

    `low` and `high` end the interval of this step alone: see `deciding_thresholds`. None where
    texts are too few.
    """

    shorter: int
    longer: int
    difference: float
    low: float | None
    high: float | None

    @property
    def gain(self) -> tuple[float, float | None, float | None]:
        """The change as a gain, positive where it got better, and the ends of its interval."""
        low = None if self.high is None else -self.high
        high = None if self.low is None else -self.low
        return -self.difference, low, high


@dataclass(frozen=True, slots=True)
class Reach:
    """A length with an interval, of the lengths that were asked.

    Attributes:
        low: the largest length that is shown; None where nothing is, beyond the shortest asked.
        high: the largest length that is not refused.
        longest: the longest that was asked.
        refused: the shortest length that is refused, the one after `high`; None where none is.
    """

    low: int | None
    high: int
    longest: int
    refused: int | None = None

    @property
    def known(self) -> int | None:
        """The reach, where the interval is one length short of the longest; else None."""
        return self.high if self.low == self.high < self.longest else None


def steps_of(nats: Floats, tokens: Floats, lengths: Sequence[int]) -> list[Step]:
    """The steps between neighbouring lengths, paired by text.

    Args:
        nats: `[K + 1, G]`, negative log-likelihood of each text at each length.
        tokens: `[G]`, tokens scored in each text, the same at every length.
        lengths: the `K + 1` lengths, ascending.
    """
    found = []
    for at, step in enumerate(np.diff(nats, axis=0), start=1):
        mean = float(step.sum() / tokens.sum())
        found.append(Step(lengths[at - 1], lengths[at], mean, *deciding_thresholds(step, tokens)))
    return found


def reach_of(
    nats: Floats,
    tokens: Floats,
    lengths: Sequence[int],
    threshold: float = MARGIN,
) -> Reach:
    """The largest length up to which every step is below a threshold, with its 95% interval.

    Args:
        nats: `[K + 1, G]`, as for `steps_of`.
        tokens: `[G]`.
        lengths: the `K + 1` lengths, ascending.
        threshold: nats a token; `MARGIN` for the reach without loss, `-MARGIN` for that with gain.
    """
    below, above = one_sided(np.diff(nats, axis=0), tokens, threshold)
    return reach_by(below.tolist(), above.tolist(), lengths, SHOWN_AT, REFUSED_AT)


def reach_by(
    below: Sequence[float],
    above: Sequence[float],
    lengths: Sequence[int],
    shown_at: float = 0.025,
    refused_at: float = 0.025,
) -> Reach:
    """The reach and its interval from two one-sided p a step, as `one_sided` gives them.

    The levels are for tests that err no more often than they say.
    """
    low = 0
    while low < len(below) and below[low] <= shown_at:
        low += 1
    refused = [
        any(p <= refused_at / count for p in above[:count]) for count in range(1, len(above) + 1)
    ]
    high = max(at for at, each in enumerate([False, *refused]) if not each)
    nothing = low == 0 and high > 0
    after = lengths[high + 1] if high + 1 < len(lengths) else None
    return Reach(None if nothing else lengths[low], lengths[high], lengths[-1], after)


@dataclass(frozen=True, slots=True)
class Retrieved:
    """Questions at one length: the sum of their scores, each from 0 to 1, and their number."""

    length: int
    right: float
    asked: int


def reach_above(counts: Sequence[Retrieved]) -> Reach:
    """The largest length up to which every true score is at least `THRESHOLD`; 0 if none is.

    `counts` are by length, ascending.
    """
    shown, refused = [], []
    for each in counts:
        right, wrong = math.floor(each.right + 1e-9), math.ceil(each.right - 1e-9)
        shown.append(float(stats.binom.sf(right - 1, each.asked, THRESHOLD)))
        refused.append(float(stats.binom.cdf(wrong, each.asked, THRESHOLD)))
    return reach_by(shown, refused, (0, *(each.length for each in counts)))


def reach_kept(counts: Sequence[Retrieved]) -> Reach:
    """The largest length up to which no true score is `DROP` or more below that of the shortest.

    Agresti and Caffo's interval of a difference of proportions (2000), one-sided. `counts` are by
    length, ascending.
    """
    first, shown, refused = counts[0], [], []
    for each in counts[1:]:
        lost, spread = _share(first) - _share(each), math.hypot(_error(first), _error(each))
        z = (lost - DROP) / spread
        shown.append(float(stats.norm.cdf(z)))
        refused.append(float(stats.norm.sf(z)))
    return reach_by(shown, refused, [each.length for each in counts])


def _share(each: Retrieved) -> float:
    return (each.right + 1) / (each.asked + 2)


def _error(each: Retrieved) -> float:
    return math.sqrt(_share(each) * (1 - _share(each)) / (each.asked + 2))
