"""Means and ratios of questions that share documents, with standard errors and intervals.

The standard error is that of a ratio of sums over documents. With 7 or 15 documents the textbook
sandwich estimator is too small, so it is CR2 (Bell and McCaffrey 2002) with Satterthwaite's degrees
of freedom, in closed form for a mean or a ratio.
"""

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special, stats

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.integer[Any]]
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A value with its uncertainty.

    `stderr`, `low` and `high` are None where the data cannot give them (too few documents).
    `method` is one of `clustered`, `exact`, `none`.
    """

    value: float
    stderr: float | None
    low: float | None
    high: float | None
    clusters: int
    method: str


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
        unknown = np.full(ratio.shape, np.nan)
        return ratio, unknown, unknown
    h = sizes / n[..., None]
    residuals = totals - ratio[..., None] * sizes
    variance = (residuals**2 / (1.0 - h)).sum(axis=-1) / n**2
    # M_gg = h_g and M_gk = -h_g h_k / sqrt((1-h_g)(1-h_k)), up to a factor that cancels
    scaled = h / np.sqrt(1.0 - h)
    squares = scaled**2
    trace_of_square = (h**2).sum(axis=-1) + (squares.sum(axis=-1) ** 2 - (squares**2).sum(axis=-1))
    return ratio, np.sqrt(variance), 1.0 / trace_of_square


def known_error(totals: Floats, sizes: Floats) -> float:
    """Standard error of a ratio of sums `[G]`; NaN where no spread between clusters is seen.

    That is so for fewer than two clusters, and where all of them are equal.
    """
    if totals.size < 2:
        return math.nan
    ratio, error, _ = (float(each) for each in linearised_ratio(totals, sizes))
    return math.nan if shows_no_spread(error, ratio) else error


def clustered_stderr(items: Iterable[tuple[Hashable, float]]) -> float:
    """Standard error of a mean score over questions that share documents.

    `items` are (cluster, score) pairs; with one question per cluster it is the usual `s / sqrt(n)`.
    NaN for fewer than two clusters, and where all clusters are equal: their spread is then unknown.
    """
    scores: dict[Hashable, list[float]] = {}
    for cluster, score in items:
        scores.setdefault(cluster, []).append(score)
    totals = np.array([math.fsum(group) for group in scores.values()])
    sizes = np.array([len(group) for group in scores.values()], dtype=np.float64)
    return known_error(totals, sizes)


def sums_by_cluster(clusters: Labels, *values: Floats) -> tuple[npt.NDArray[Any], ...]:
    """Clusters in ascending order and the sums of each value in them: `[G]` each."""
    names, index = np.unique(clusters, return_inverse=True)
    return names, *(np.bincount(index, weights=each).astype(np.float64) for each in values)


@dataclass(frozen=True, slots=True)
class Ratios:
    """A metric of single questions: `numerator / denominator`, the latter 1 for scores; all `[n]`.

    `questions` and `clusters` are integer labels that are the same in every run.
    """

    questions: Labels
    clusters: Labels
    numerator: Floats
    denominator: Floats

    @property
    def are_scores(self) -> bool:
        """Whether every denominator is 1."""
        return bool((self.denominator == 1).all())

    def take(self, places: npt.NDArray[Any]) -> "Ratios":
        """The questions at these places, or where a mask is True."""
        parts = (self.questions, self.clusters, self.numerator, self.denominator)
        return Ratios(*(part[places] for part in parts))

    def by_cluster(self) -> tuple[npt.NDArray[Any], ...]:
        """Clusters in ascending order, sums of numerators and of denominators: `[G]` each."""
        return sums_by_cluster(self.clusters, self.numerator, self.denominator)


def known(number: float) -> float | None:
    """The number, or None if it is not finite."""
    return float(number) if math.isfinite(number) else None


def shows_no_spread(stderr: float, value: float) -> bool:
    """Whether all documents are equal up to rounding; the true spread is then unknown, not zero."""
    return stderr <= 1e-12 + 1e-9 * abs(value)


def mean_of_estimates(values: Sequence[float], stderrs: Sequence[float]) -> tuple[float, float]:
    """Unweighted mean of independent estimates `[n]` and its standard error (NaN if one is NaN)."""
    n = len(values)
    return sum(values) / n, math.sqrt(sum(error**2 for error in stderrs)) / n


def clopper_pearson(successes: int, n: int) -> tuple[float, float]:
    """Exact two-sided 95% binomial interval (Clopper and Pearson 1934); 0 <= successes <= n."""
    tail = (1 - CONFIDENCE) / 2
    low = 0.0 if successes == 0 else float(stats.beta.ppf(tail, successes, n - successes + 1))
    high = 1.0 if successes == n else float(stats.beta.ppf(1 - tail, successes + 1, n - successes))
    return low, high


def estimate_mean(values: Floats, clusters: Labels) -> Estimate:
    """Mean score with a 95% interval by cluster.

    Scores within 0..1 get Student's t on the logit scale. Where every cluster is one question with
    a score of 0 or 1, the interval is the exact binomial one. Where all documents score alike, the
    sandwich estimator would claim certainty, so there is no standard error; where all scores are 0
    or all are 1, the interval is the exact one for one observation per document.

    Args:
        values: `[n]`, one score per question.
        clusters: `[n]` integer cluster labels.

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
        low, high = clopper_pearson(successes, groups)
        spread = None if mean in (0.0, 1.0) else known(stderr)
        return Estimate(mean, spread, low, high, groups, "exact")
    if groups < 2 or shows_no_spread(stderr, mean):
        return Estimate(mean, None, None, None, groups, "none")
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, df)) * stderr
    low, high = mean - half, mean + half
    if ((values >= 0) & (values <= 1)).all() and 0 < mean < 1:
        low, high = logit_interval(mean, half)
    return Estimate(mean, known(stderr), known(low), known(high), groups, "clustered")


def logit_interval(mean: float, half: float) -> tuple[float, float]:
    """`mean ± half` on the logit scale: within 0..1, and asymmetric where the mean is.

    A mean near 0 or 1 of a few documents is skewed: at 85% of 7 documents whose questions are
    correlated at 0.2 the symmetric interval covers 88%, this one 95%
    (`benchmarks/statistics_simulation.py`).
    """
    middle, width = math.log(mean / (1 - mean)), half / (mean * (1 - mean))
    if not math.isfinite(width):
        return math.nan, math.nan
    return float(special.expit(middle - width)), float(special.expit(middle + width))


def estimate_ratio(totals: Floats, sizes: Floats, *, exponential: bool = True) -> Estimate:
    """Token-weighted perplexity, or a ratio of sums, with a 95% interval by document.

    `value = exp(sum(nll)/sum(tokens))`. The standard error is the delta method's. The interval is
    computed for the log and then exponentiated, so it is asymmetric and positive. Below three
    documents, and of documents that are all alike, there is neither of them.

    Args:
        totals: `[G]`, negative log-likelihood of each document in nats.
        sizes: `[G]`, tokens (words, bytes) of each document.
        exponential: False for the ratio itself.

    Raises:
        ValueError: no document, a number that is not finite, or no tokens.
    """
    if totals.size == 0 or not (np.isfinite(totals).all() and np.isfinite(sizes).all()):
        raise ValueError("totals, sizes: at least one document and finite numbers are needed")
    if (sizes <= 0).any():
        raise ValueError("sizes: every document needs at least one token")
    ratio, stderr, df = (float(x) for x in linearised_ratio(totals, sizes))
    known_spread = totals.size >= 3 and not shows_no_spread(stderr, ratio)
    stderr = stderr if known_spread else math.nan
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, df)) * stderr
    value, low, high = ratio, ratio - half, ratio + half
    if exponential:
        with np.errstate(over="ignore"):
            value, low, high = (float(np.exp(each)) for each in (value, low, high))
        if not math.isfinite(value):
            raise ValueError(f"totals: {ratio:g} nats a token is more than a float can hold")
        stderr *= value
    method = "clustered" if known_spread else "none"
    return Estimate(value, known(stderr), known(low), known(high), totals.size, method)
