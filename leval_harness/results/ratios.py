"""A metric's numbers of single questions, and two runs' of the questions that both have."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from leval_tasks.statistics.clustered import sums_by_cluster

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Ratios:
    """A metric of some questions: `numerator / denominator`, the latter 1 for scores; all `[n]`."""

    questions: Codes
    clusters: Codes
    numerator: Floats
    denominator: Floats

    @property
    def are_scores(self) -> bool:
        """Whether each is a number of its own, and no ratio."""
        return bool((self.denominator == 1).all())

    def take(self, places: npt.NDArray[Any]) -> "Ratios":
        """Those at some places, or where a mask holds."""
        parts = (self.questions, self.clusters, self.numerator, self.denominator)
        return Ratios(*(part[places] for part in parts))

    def by_cluster(self) -> tuple[npt.NDArray[Any], ...]:
        """Clusters ascending, and the sums of each: `[G]` three times."""
        return sums_by_cluster(self.clusters, self.numerator, self.denominator)


def same_questions(one: Ratios, other: Ratios) -> bool:
    """Whether both are of the same questions, in whatever order."""
    return np.array_equal(np.sort(one.questions), np.sort(other.questions))


def in_common(one: Ratios, other: Ratios) -> tuple[Ratios, Ratios]:
    """Both on the questions that were asked in both, in one order."""
    if np.array_equal(one.questions, other.questions):
        return one, other
    _, left, right = np.intersect1d(one.questions, other.questions, return_indices=True)
    return one.take(left), other.take(right)
