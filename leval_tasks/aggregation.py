"""From the numbers of single questions and documents to a task's figure and its standard error.

A perplexity is a ratio of two sums over documents, so documents carry `(numerator, denominator)`
pairs and one division is made at the end. Natural logarithms throughout. The aggregated functions
give lm-eval's `N/A` in place of a NaN, which is no JSON.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from leval_tasks.metrics import NOT_AVAILABLE
from leval_tasks.statistics.by_document import clustered_stderr, known_error

Pair = Sequence[float]  # (numerator, denominator) of one document
MIN_CLUSTERS = 3


def or_not_available(value: float) -> float | str:
    """The figure, `NOT_AVAILABLE` for NaN."""
    return NOT_AVAILABLE if math.isnan(value) else value


def stderr_of_mean(items: Iterable[tuple[Hashable, float]]) -> float | str:
    """Clustered standard error of a mean of scores, from (cluster, score) pairs."""
    return or_not_available(clustered_stderr(items))


def with_stderr(values: Mapping[str, Any]) -> dict[str, Any]:
    """Each metric once more, aggregated after it into lm-eval's own field of standard errors."""
    return {each: value for name, value in values.items() for each in (name, f"{name}_stderr")}


def ratio(pairs: Sequence[Pair]) -> float:
    """Sum of the numerators over the sum of the denominators; NaN where nothing was counted."""
    denominator = math.fsum(pair[1] for pair in pairs)
    return math.fsum(pair[0] for pair in pairs) / denominator if denominator else math.nan


def ratio_stderr(pairs: Sequence[Pair]) -> float:
    """Standard error of `ratio` over documents; NaN below three, and where all are equal."""
    clusters = [pair for pair in pairs if pair[1]]
    if len(clusters) < MIN_CLUSTERS:
        return math.nan
    totals, sizes = np.array(clusters, dtype=np.float64).T
    return known_error(totals, sizes)


def _perplexity(pairs: Sequence[Pair]) -> float:
    try:
        return math.exp(ratio(pairs))
    except OverflowError:
        return math.inf


def aggregations(how: str) -> tuple[Callable[..., float | str], Callable[..., float | str]]:
    """How a figure and its standard error come from pairs.

    The standard error of a perplexity is by the delta method: `exp(R)` times that of `R`.

    Args:
        how: `aggregation` of a metric: `perplexity` or `bits`; any other is the ratio itself.
    """

    def value(pairs: Sequence[Pair]) -> float | str:
        if how == "perplexity":
            return or_not_available(_perplexity(pairs))
        return or_not_available(ratio(pairs) / (math.log(2) if how == "bits" else 1))

    def stderr(pairs: Sequence[Pair]) -> float | str:
        error = ratio_stderr(pairs)
        if how == "perplexity":
            return or_not_available(_perplexity(pairs) * error)
        return or_not_available(error / (math.log(2) if how == "bits" else 1))

    return value, stderr
