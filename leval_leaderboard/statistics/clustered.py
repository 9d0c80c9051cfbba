"""Means and ratios with intervals when questions share a document.

The standard error is `leval_tasks.statistics`', as in lm-eval's own field of our tasks.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from leval_leaderboard.statistics.exact import clopper_pearson
from leval_tasks.statistics import Floats, linearised_ratio

Labels = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Estimate:
    """A value with what is known about its uncertainty.

    `stderr`, `low` and `high` are NaN where the data cannot give them (too few documents).
    `method` is one of `clustered`, `exact`, `none`.
    """

    value: float
    stderr: float
    low: float
    high: float
    n: int
    clusters: int
    df: float
    method: str


def estimate_mean(values: Floats, clusters: Labels, confidence: float = 0.95) -> Estimate:
    """Mean score with an interval that respects documents.

    Where every cluster is one question and the score is 0 or 1, the interval is the exact binomial
    one. Where all scores are 0 or all are 1 the sandwich would claim certainty; the exact interval
    for one observation a document is given instead.

    Args:
        values: one score in 0..1 a question.
        clusters: integer cluster labels, same length.
        confidence: of the two-sided interval.

    Raises:
        ValueError: no question, or a score that is not finite.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.size == 0:
        raise ValueError("values: no question to average; at least one score is needed")
    if not np.isfinite(values).all():
        raise ValueError("values: a score is NaN or infinite; scores are numbers from 0 to 1")
    _, index = np.unique(clusters, return_inverse=True)
    groups = int(index.max()) + 1
    sizes = np.bincount(index, minlength=groups).astype(np.float64)
    totals: Floats = np.bincount(index, weights=values, minlength=groups).astype(np.float64)
    n, mean = values.size, float(values.mean())
    _, stderr, df = (float(x) for x in linearised_ratio(totals, sizes))
    binary = bool(np.isin(values, (0.0, 1.0)).all())
    if binary and groups == n:
        low, high = clopper_pearson(int(values.sum()), n, confidence)
        return Estimate(mean, stderr, low, high, n, groups, math.nan, "exact")
    if binary and mean in (0.0, 1.0):
        low, high = clopper_pearson(groups if mean == 1.0 else 0, groups, confidence)
        return Estimate(mean, stderr, low, high, n, groups, math.nan, "exact")
    if groups < 2:
        return Estimate(mean, math.nan, math.nan, math.nan, n, groups, math.nan, "none")
    half = float(stats.t.ppf((1 + confidence) / 2, df)) * stderr
    low, high = max(0.0, mean - half), min(1.0, mean + half)
    return Estimate(mean, stderr, low, high, n, groups, df, "clustered")


def estimate_ratio(
    totals: Floats, sizes: Floats, exponent: float | None = 1.0, confidence: float = 0.95
) -> Estimate:
    """Token-weighted perplexity (or a rate) with a document-clustered interval.

    `value = exp(exponent * sum(nll)/sum(tokens))`; the standard error is the delta method's, the
    interval is taken for the log and then exponentiated, so it is asymmetric and positive.

    Args:
        totals: `[G]`, negative log-likelihood of each document in nats.
        sizes: `[G]`, tokens (words, bytes) of each document.
        exponent: 1 for a perplexity; None for the ratio itself.
        confidence: of the two-sided interval; neither it nor a standard error is given below three
            documents, as lm-eval's own field of our tasks has none there.

    Raises:
        ValueError: no document, a number that is not finite, or no tokens.
    """
    totals, sizes = np.asarray(totals, float), np.asarray(sizes, float)
    if totals.size == 0 or not (np.isfinite(totals).all() and np.isfinite(sizes).all()):
        raise ValueError("totals, sizes: at least one document and finite numbers are needed")
    if (sizes <= 0).any():
        raise ValueError("sizes: every document needs at least one token")
    ratio, stderr, df = (float(x) for x in linearised_ratio(totals, sizes))
    groups = totals.size
    method = "clustered" if groups >= 3 else "none"
    stderr = stderr if groups >= 3 else math.nan
    half = float(stats.t.ppf((1 + confidence) / 2, df)) * stderr
    ends = (ratio - half, ratio + half)
    if exponent is None:
        return Estimate(ratio, stderr, *ends, int(sizes.sum()), groups, df, method)
    with np.errstate(over="ignore"):
        value = float(np.exp(exponent * ratio))
        low, high = (float(np.exp(exponent * end)) for end in ends)
    if not math.isfinite(value):
        raise ValueError(f"totals: {ratio:g} nats a token is more than a float can exponentiate")
    return Estimate(
        value, value * exponent * stderr, low, high, int(sizes.sum()), groups, df, method
    )
