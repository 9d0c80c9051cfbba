"""How far a model retrieves: scores of separate questions at growing lengths.

Two answers. Against RULER's threshold: the largest length up to which every score is at least 85.6%
(that of Llama-2-7B at 4,096 tokens). Against the model's own score at the shortest length: the
largest up to which none is `DROP` or more below it. As in `statistics.reach` both are facts about
the model, told by an interval.

Scores lie in 0..1 and need not be 0 or 1. Their sum varies most where they are, and where all
questions are equally hard, so that the binomial tails of the sum are safe.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats

from leval_tasks.statistics.reach import Reach, reach_by

THRESHOLD = 0.856
"""RULER's (Hsieh et al. 2024)."""

DROP = 0.05
"""A smaller loss against the shortest length is none."""


@dataclass(frozen=True, slots=True)
class Retrieved:
    """Questions at one length: the sum of their scores, each from 0 to 1, and their number."""

    length: int
    right: float
    asked: int

    @property
    def share(self) -> float:
        """The mean score."""
        return self.right / self.asked


def reach_above(counts: Sequence[Retrieved], threshold: float = THRESHOLD) -> Reach:
    """The largest length up to which every true score is at least a threshold.

    A length of 0 in the result stands for none that was asked. `counts` are by length, ascending.
    """
    shown, refused = [], []
    for each in counts:
        right, wrong = math.floor(each.right + 1e-9), math.ceil(each.right - 1e-9)
        shown.append(float(stats.binom.sf(right - 1, each.asked, threshold)))
        refused.append(float(stats.binom.cdf(wrong, each.asked, threshold)))
    return reach_by(shown, refused, (0, *(each.length for each in counts)))


def reach_kept(counts: Sequence[Retrieved], drop: float = DROP) -> Reach:
    """The largest length up to which no true score is `drop` or more below that of the shortest.

    Agresti and Caffo's interval of a difference of proportions (2000), one-sided. `counts` are by
    length, ascending.
    """
    first, shown, refused = counts[0], [], []
    for each in counts[1:]:
        lost, spread = _share(first) - _share(each), math.hypot(_error(first), _error(each))
        z = (lost - drop) / spread
        shown.append(float(stats.norm.cdf(z)))
        refused.append(float(stats.norm.sf(z)))
    return reach_by(shown, refused, [each.length for each in counts])


def _share(each: Retrieved) -> float:
    return (each.right + 1) / (each.asked + 2)


def _error(each: Retrieved) -> float:
    return math.sqrt(_share(each) * (1 - _share(each)) / (each.asked + 2))
