"""Means and ratios with intervals when questions share a document.

The standard error is that of `standard_error.py`, as in lm-eval's own field of our tasks.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from leval_tasks.statistics.standard_error import Floats, linearised_ratio

Labels = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Estimate:
    """A value with what is known about its uncertainty.

    `stderr`, `low` and `high` are None where the data cannot give them (too few documents).
    `method` is one of `clustered`, `exact`, `none`.
    """

    value: float
    stderr: float | None
    low: float | None
    high: float | None
    clusters: int
    method: str


def known(number: float) -> float | None:
    """None where a number could not be computed."""
    return float(number) if math.isfinite(number) else None


def shows_no_spread(stderr: float, value: float) -> bool:
    """Whether documents are all alike, up to rounding: their spread is not known to be zero."""
    return stderr <= 1e-12 + 1e-9 * abs(value)


def sums_by_cluster(clusters: Labels, *values: Floats) -> tuple[npt.NDArray[Any], ...]:
    """Clusters ascending, and the sums of each value in them: `[G]` each."""
    names, index = np.unique(clusters, return_inverse=True)
    return names, *(np.bincount(index, weights=each).astype(np.float64) for each in values)


def clopper_pearson(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact two-sided binomial interval (Clopper and Pearson 1934); 0 <= successes <= n."""
    tail = (1 - confidence) / 2
    low = 0.0 if successes == 0 else float(stats.beta.ppf(tail, successes, n - successes + 1))
    high = 1.0 if successes == n else float(stats.beta.ppf(1 - tail, successes + 1, n - successes))
    return low, high


def estimate_mean(values: Floats, clusters: Labels, confidence: float = 0.95) -> Estimate:
    """Mean score with an interval that respects documents.

    Student's t on the logit scale where scores lie in 0..1. Where every cluster is one question and
    the score is 0 or 1, the exact binomial one. Where all documents score alike the sandwich would
    claim certainty, and there is no standard error; where all scores are 0 or all are 1 the exact
    interval for one observation a document is given instead.

    Args:
        values: one score a question; an interval of scores in 0..1 stays within.
        clusters: integer cluster labels, same length.
        confidence: of the two-sided interval.

    Raises:
        ValueError: no question, or a score that is not finite.
    """
    if values.size == 0 or not np.isfinite(values).all():
        raise ValueError("values: at least one score is needed, and each a number from 0 to 1")
    _, totals, sizes = sums_by_cluster(clusters, values, np.ones(values.size))
    groups, n, mean = totals.size, values.size, float(values.mean())
    _, stderr, df = (float(x) for x in linearised_ratio(totals, sizes))
    binary = bool(np.isin(values, (0.0, 1.0)).all())
    if binary and (groups == n or mean in (0.0, 1.0)):
        successes = int(values.sum()) if groups == n else round(groups * mean)
        low, high = clopper_pearson(successes, groups, confidence)
        spread = None if mean in (0.0, 1.0) else known(stderr)  # which all that is alike hides
        return Estimate(mean, spread, low, high, groups, "exact")
    if groups < 2 or shows_no_spread(stderr, mean):
        return Estimate(mean, None, None, None, groups, "none")
    half = float(stats.t.ppf((1 + confidence) / 2, df)) * stderr
    low, high = mean - half, mean + half
    if ((values >= 0) & (values <= 1)).all() and 0 < mean < 1:
        low, high = logit_interval(mean, half)
    return Estimate(mean, known(stderr), known(low), known(high), groups, "clustered")


def logit_interval(mean: float, half: float) -> tuple[float, float]:
    """`mean ± half` taken on the logit scale: within 0..1, and asymmetric where the mean is.

    A mean near 0 or 1 of a few documents is skewed: at 85% of 7 documents whose questions are
    correlated at 0.2 the symmetric interval covers 88%, this one 95%
    (`benchmarks/statistics_simulation.py`).
    """
    middle, width = math.log(mean / (1 - mean)), half / (mean * (1 - mean))
    if not math.isfinite(width):
        return math.nan, math.nan
    return float(special.expit(middle - width)), float(special.expit(middle + width))


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
            documents, as lm-eval's own field of our tasks has none there, nor of documents that are
            all alike.

    Raises:
        ValueError: no document, a number that is not finite, or no tokens.
    """
    if totals.size == 0 or not (np.isfinite(totals).all() and np.isfinite(sizes).all()):
        raise ValueError("totals, sizes: at least one document and finite numbers are needed")
    if (sizes <= 0).any():
        raise ValueError("sizes: every document needs at least one token")
    ratio, stderr, df = (float(x) for x in linearised_ratio(totals, sizes))
    groups = totals.size
    known_spread = groups >= 3 and not shows_no_spread(stderr, ratio)
    method = "clustered" if known_spread else "none"
    stderr = stderr if known_spread else math.nan
    half = float(stats.t.ppf((1 + confidence) / 2, df)) * stderr
    value, low, high = ratio, ratio - half, ratio + half
    if exponent is not None:
        with np.errstate(over="ignore"):
            value, low, high = (float(np.exp(exponent * each)) for each in (value, low, high))
        if not math.isfinite(value):
            raise ValueError(f"totals: {ratio:g} nats a token is more than a float can hold")
        stderr *= value * exponent
    return Estimate(value, known(stderr), known(low), known(high), groups, method)
