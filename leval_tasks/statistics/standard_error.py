"""The one estimator of a standard error: of a ratio of sums over documents.

Questions about one document succeed and fail together, so the document (the cluster) is the unit of
chance. With 7 or 15 of them the textbook sandwich is too small; this is CR2 (Bell and McCaffrey
2002) with Satterthwaite's degrees of freedom, in closed form for a mean or a ratio.
"""

import math
from collections.abc import Hashable, Iterable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


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


def clustered_stderr(items: Iterable[tuple[Hashable, float]]) -> float:
    """Standard error of a mean score over questions that share documents.

    `items` are (cluster, score) pairs; with one question a cluster it is the usual `s / sqrt(n)`.
    NaN for fewer than two clusters: one document says nothing about the spread between documents.
    """
    scores: dict[Hashable, list[float]] = {}
    for cluster, score in items:
        scores.setdefault(cluster, []).append(score)
    if len(scores) < 2:
        return math.nan
    totals = np.array([math.fsum(group) for group in scores.values()])
    sizes = np.array([len(group) for group in scores.values()], dtype=np.float64)
    return float(linearised_ratio(totals, sizes)[1])
