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


def aggregations(how: str) -> tuple[Callable[..., float | str], Callable[..., float | str]]:
    """How a figure and its standard error over documents come from pairs.

    The figure is N/A where nothing was counted, the error also below three documents and where all
    are equal. The error of a perplexity is by the delta method: `exp(R)` times that of `R`.

    Args:
        how: `aggregation` of a metric: `perplexity` or `bits`; any other is the ratio itself.
    """
    unit = math.log(2) if how == "bits" else 1.0

    def figure(ratio: float) -> float:
        with np.errstate(over="ignore"):
            return float(np.exp(ratio)) if how == "perplexity" else ratio / unit

    def value(pairs: Sequence[Pair]) -> float | str:
        return or_not_available(figure(_ratio(pairs)))

    def stderr(pairs: Sequence[Pair]) -> float | str:
        counted = [pair for pair in pairs if pair[1]]
        if len(counted) < MIN_CLUSTERS:
            return NOT_AVAILABLE
        error = known_error(*np.array(counted, dtype=np.float64).T)
        scale = figure(_ratio(pairs)) if how == "perplexity" else 1 / unit
        return or_not_available(scale * error)

    return value, stderr


def _ratio(pairs: Sequence[Pair]) -> float:
    denominator = math.fsum(pair[1] for pair in pairs)
    return math.fsum(pair[0] for pair in pairs) / denominator if denominator else math.nan
