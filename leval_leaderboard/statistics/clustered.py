"""Standard errors and intervals when questions share a document.

Questions about one document succeed and fail together, so the document (the cluster) is the unit of
chance. With 7 or 15 of them the textbook sandwich is too small; the estimator here is CR2 (Bell and
McCaffrey 2002) with Satterthwaite's degrees of freedom, in closed form for a mean or a ratio.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from leval_leaderboard.statistics.exact import clopper_pearson

Floats = npt.NDArray[np.float64]
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


def cluster_sums(values: Floats, clusters: npt.NDArray[np.int64], groups: int) -> Floats:
    """Sum `values [..., n]` over questions within each cluster: `[..., groups]`.

    Args:
        values: one number a question, any leading dimensions.
        clusters: cluster index of each question, `0 <= index < groups`.
        groups: number of clusters.
    """
    members = np.zeros((clusters.size, groups))
    members[np.arange(clusters.size), clusters] = 1.0
    sums: Floats = values @ members
    return sums


def linearised_ratio(totals: Floats, sizes: Floats) -> tuple[Floats, Floats, Floats]:
    """Ratio of sums with its CR2 standard error and degrees of freedom, vectorised.

    `r = sum(Y)/sum(N)`; the residual of cluster g is `Y_g - r N_g` (first-order Taylor expansion of
    the ratio). With leverage `h_g = N_g/N`, `V = sum((Y_g - r N_g)^2 / (1 - h_g)) / N^2`, which is
    unbiased when questions are exchangeable. Satterthwaite's `df = tr(M)^2 / tr(M^2)` with M the
    covariance of the adjusted residuals under that working model; equal sizes give exactly G - 1.

    Args:
        totals: `[..., G]`, sum of the scores (or of negative log-likelihoods) in each cluster.
        sizes: `[..., G]`, questions (or tokens) in each cluster; positive.

    Returns:
        ratio, standard error and degrees of freedom, each of shape `[...]`; the last two are NaN
        for fewer than two clusters.
    """
    totals, sizes = np.broadcast_arrays(
        np.asarray(totals, dtype=np.float64), np.asarray(sizes, dtype=np.float64)
    )
    n = sizes.sum(axis=-1)
    ratio = totals.sum(axis=-1) / n
    if totals.shape[-1] < 2:
        nothing = np.full(ratio.shape, np.nan)
        return ratio, nothing, nothing
    h = sizes / n[..., None]
    residuals = totals - ratio[..., None] * sizes
    variance = (residuals**2 / (1.0 - h)).sum(axis=-1) / n**2
    # M_gg = h_g and M_gk = -h_g h_k / sqrt((1-h_g)(1-h_k)), up to a factor that cancels
    scaled = h / np.sqrt(1.0 - h)
    squares = scaled**2
    trace_of_square = (h**2).sum(axis=-1) + (squares.sum(axis=-1) ** 2 - (squares**2).sum(axis=-1))
    return ratio, np.sqrt(variance), 1.0 / trace_of_square


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
    n = values.size
    binary = bool(np.isin(values, (0.0, 1.0)).all())
    mean = float(values.mean())
    if binary and groups == n:
        low, high = clopper_pearson(int(values.sum()), n, confidence)
        stderr = math.sqrt(mean * (1 - mean) / (n - 1)) if n > 1 else math.nan
        return Estimate(mean, stderr, low, high, n, groups, math.nan, "exact")
    if binary and mean in (0.0, 1.0):
        low, high = clopper_pearson(groups if mean == 1.0 else 0, groups, confidence)
        return Estimate(mean, 0.0, low, high, n, groups, math.nan, "exact")
    sizes = np.bincount(index, minlength=groups).astype(np.float64)
    totals: Floats = np.bincount(index, weights=values, minlength=groups).astype(np.float64)
    _, stderr_, df = (float(x) for x in linearised_ratio(totals, sizes))
    if groups < 2:
        return Estimate(mean, math.nan, math.nan, math.nan, n, groups, math.nan, "none")
    half = float(stats.t.ppf((1 + confidence) / 2, df)) * stderr_
    return Estimate(
        mean, stderr_, max(0.0, mean - half), min(1.0, mean + half), n, groups, df, "clustered"
    )


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
