"""Means, ratios and differences of questions that share documents: errors, intervals and tests.

The standard error is that of a ratio of sums over documents. With 7 or 15 documents the textbook
sandwich estimator is too small, so it is CR2 (Bell and McCaffrey 2002) with Satterthwaite's degrees
of freedom, in closed form for a mean or a ratio. Two methods are compared by flipping the sign of
each document's difference (Fisher's randomisation test).
"""

import math
from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import special  # stats imports slowly

Floats = npt.NDArray[np.float64]
LEVEL = 0.05
EXACT_BELOW = 20  # 2**18 sign patterns (half of 2**19, by symmetry) are done in milliseconds
FLIPS = 9_999


def ratio_of_sums(
    totals: npt.ArrayLike, sizes: npt.ArrayLike, numbers: npt.ArrayLike
) -> tuple[Floats, Floats, Floats, npt.NDArray[np.int64]]:
    """Return ratios of sums over documents, with CR2 standard errors and degrees of freedom.

    `r = sum(Y)/sum(N)`; the residual of document g is `Y_g - r N_g` (first-order Taylor expansion
    of the ratio). With leverage `h_g = N_g/N`, `V = sum((Y_g - r N_g)^2 / (1 - h_g)) / N^2`, which
    is unbiased when questions are swappable. Satterthwaite's `df = tr(M)^2 / tr(M^2)` with M the
    covariance of the adjusted residuals under that working model; equal sizes give exactly G - 1.

    Args:
        totals: `[R]`, sum of the scores (or of negative log-likelihoods) in a document.
        sizes: `[R]`, questions (or tokens) in it; positive.
        numbers: `[R]`, which ratio it belongs to, from 0 to K - 1.

    Returns:
        ratio, standard error, degrees of freedom and documents, `[K]` each; error and degrees are
        NaN for fewer than two documents.
    """
    totals = np.asarray(totals, dtype=np.float64)
    sizes = np.asarray(sizes, dtype=np.float64)
    numbers = np.asarray(numbers)

    def added(values: Floats) -> Floats:
        return np.bincount(numbers, weights=values).astype(np.float64)

    clusters = np.bincount(numbers)
    n = added(sizes)
    ratio = added(totals) / n
    h = sizes / n[numbers]
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = added((totals - ratio[numbers] * sizes) ** 2 / (1.0 - h)) / n**2
        # M_gg = h_g and M_gk = -h_g h_k / sqrt((1-h_g)(1-h_k)), up to a factor that cancels
        squares = h**2 / (1.0 - h)
        df = 1.0 / (added(h**2) + added(squares) ** 2 - added(squares**2))
    variance[clusters < 2] = np.nan
    df[clusters < 2] = np.nan
    return ratio, np.sqrt(variance), df, clusters


def shows_no_spread(stderr: npt.ArrayLike, value: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Return whether all documents are equal up to rounding; the true spread is then unknown, not zero."""
    return np.less_equal(stderr, 1e-12 + 1e-9 * np.abs(value))


def known_error(totals: npt.ArrayLike, sizes: npt.ArrayLike) -> float:
    """Return the standard error of a ratio of sums `[G]`; NaN where documents show no spread.

    That is so for fewer than two documents, and where all of them are equal.
    """
    if np.size(totals) < 2:
        return math.nan
    (ratio,), (error,), *_ = ratio_of_sums(totals, sizes, np.zeros(np.size(totals), np.int64))
    return math.nan if shows_no_spread(error, ratio) else float(error)


def clustered_stderr(items: Iterable[tuple[Hashable, float]]) -> float:
    """Return the standard error of a mean score of (document, score) pairs; NaN as in `known_error`.

    With one question per document it is the usual `s / sqrt(n)`.
    """
    scores: dict[Hashable, list[float]] = {}
    for document, score in items:
        scores.setdefault(document, []).append(score)
    totals = [math.fsum(group) for group in scores.values()]
    return known_error(totals, [len(group) for group in scores.values()])


def ratios(sums: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Return `ratio_of_sums` of many numbers, from `num` and `den` of each number and document.

    Returns:
        a row for each number, its `keys` as index: `ratio`, `error` (NaN where no spread is seen),
        `df` and `clusters` (documents).
    """
    groups = sums.groupby(list(keys), sort=False, dropna=False)
    columns = ratio_of_sums(sums["num"], sums["den"], groups.ngroup())
    names = dict(zip(("ratio", "error", "df", "clusters"), columns, strict=True))
    frame = pd.DataFrame(names, index=groups.size().index)  # both in the order of `ngroup`
    no_spread = shows_no_spread(frame["error"], frame["ratio"])
    return frame.assign(error=frame["error"].mask(no_spread))


def clopper_pearson(successes: npt.ArrayLike, n: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Return exact two-sided 95% binomial intervals (Clopper and Pearson 1934); 0 <= successes <= n."""
    successes = np.asarray(successes, dtype=np.float64)
    n = np.asarray(n, dtype=np.float64)
    low = special.betaincinv(successes, n - successes + 1, LEVEL / 2)
    high = special.betaincinv(successes + 1, n - successes, 1 - LEVEL / 2)
    return np.where(successes == 0, 0.0, low), np.where(successes == n, 1.0, high)


def logit_interval(mean: npt.ArrayLike, half: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Return the interval `mean ± half` on the logit scale: within 0..1, and asymmetric where the mean is.

    At 85% of 7 documents whose questions are correlated at 0.2 the symmetric interval covers 88%,
    this one 95% (`reports/statistics/simulation.py`).
    """
    mean = np.asarray(mean, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        middle = special.logit(mean)
        width = half / (mean * (1 - mean))
    return special.expit(middle - width), special.expit(middle + width)


@lru_cache(maxsize=EXACT_BELOW)
def _all_signs(documents: int) -> Floats:
    """Return half of the sign patterns `[2**(G-1), G]`; the other half is their negative."""
    codes = np.arange(2 ** (documents - 1))[:, None]
    return 1.0 - 2.0 * ((codes >> np.arange(documents)) & 1)


@lru_cache(maxsize=8)
def _random_signs(documents: int) -> Floats:
    return np.random.default_rng(0).choice((-1.0, 1.0), size=(FLIPS, documents))


def sign_flip_p(differences: npt.ArrayLike) -> Floats:
    """Return the two-sided p `[...]` of the sign-flip test of `[..., G]` sums of method - baseline.

    Below 20 documents the exact share of sign patterns whose sum is at least as far from 0 as the
    observed one, else `(1 + hits)/(1 + 9,999)`, which is never 0.
    """
    d = np.asarray(differences, dtype=np.float64)
    documents = d.shape[-1]
    if documents == 0:
        return np.ones(d.shape[:-1])
    flat = d.reshape(-1, documents)
    exact = documents < EXACT_BELOW
    signs = _all_signs(documents) if exact else _random_signs(documents)
    tolerance = 1e-9 * np.abs(flat).sum(axis=-1)  # equal sums differ in their last bits
    least = np.abs(flat.sum(axis=-1)) - tolerance
    step = max(1, 8_000_000 // len(signs))  # at most 64 MB of sums at once
    hits_of_parts = []
    for start in range(0, len(flat), step):
        part = slice(start, start + step)
        flipped_sums = np.abs(flat[part] @ signs.T)
        hits_of_parts.append((flipped_sums >= least[part, None]).sum(axis=-1))
    hits = np.concatenate(hits_of_parts)
    p = hits / len(signs) if exact else (1 + hits) / (1 + FLIPS)
    return p.reshape(d.shape[:-1])


def smallest_p(documents: npt.ArrayLike, *, exact: npt.ArrayLike = False) -> Floats:
    """Return the smallest two-sided p that so many documents can give: `2 / 2**G`.

    From 20 documents on the random flips limit it to 1/10,000, unless the test is `exact`
    (McNemar's).
    """
    documents = np.asarray(documents, dtype=np.float64)
    counted = np.asarray(exact) | (documents < EXACT_BELOW)
    return np.where(counted, np.minimum(1.0, 2.0 ** (1.0 - documents)), 1.0 / (1 + FLIPS))


def holm(p: pd.Series, families: pd.Series | None = None) -> pd.Series:
    """Return adjusted p values (Holm 1979), to compare with the level itself; NaN stays NaN.

    `families` is the family of each test; None for one of all.
    """
    ordered = p.dropna().astype(float).sort_values(kind="stable")
    if families is None:
        families = pd.Series(0, p.index)
    family = families[ordered.index]
    tests = ordered.groupby(family)
    steps = ordered * (tests.transform("size") - tests.cumcount())
    return steps.groupby(family).cummax().clip(upper=1.0).reindex(p.index)
