"""Two methods on the same questions: is the difference more than chance?

The test flips the sign of each document's difference (Fisher's randomisation test): exact below 20
documents, otherwise 9,999 random flips from a fixed seed. Where every question is its own document
and scores are 0 or 1, it is McNemar's exact test.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from leval_tasks.statistics.clustered import (
    Floats,
    Labels,
    Ratios,
    known,
    linearised_ratio,
    shows_no_spread,
    sums_by_cluster,
)

EXACT_BELOW = 20  # 2**18 sign patterns (half of 2**19, by symmetry) are done in milliseconds
FLIPS = 9_999
POWER = 0.8
SIGNIFICANT, CANNOT_TELL = "*", "?"
ASSUMED = (
    "the sign-flip test takes nothing for granted and needs more documents than an interval, which "
    "takes their differences for normal"
)
"""Why an interval may exclude zero where the sign-flip test cannot tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One method minus the baseline, on the questions that both answered.

    `difference`, `low`, `high` and `detectable` are fractions for scores and nats a token for
    perplexities (negative is better); None where the documents are too few or all alike.
    `detectable` is the smallest true difference that is found with 80% power, given the spread
    between these documents. `smallest_p` is the smallest p that this number of documents can give.
    `compare_family` fills in what depends on the other methods: `p_holm` is the corrected `p`,
    `threshold` is what `smallest_p` has to reach, `mark` is `SIGNIFICANT`, `CANNOT_TELL` or empty.
    """

    difference: float
    low: float | None
    high: float | None
    p: float
    p_holm: float = math.nan
    smallest_p: float
    threshold: float = math.nan
    mark: str = ""
    wins: int
    ties: int
    losses: int
    detectable: float | None

    @property
    def beside_zero(self) -> bool:
        """Whether there is an interval and it excludes zero."""
        return self.low is not None and self.high is not None and self.low * self.high > 0


def same_questions(one: Ratios, other: Ratios) -> bool:
    """Whether both have the same questions, in any order."""
    return np.array_equal(np.sort(one.questions), np.sort(other.questions))


def in_common(one: Ratios, other: Ratios) -> tuple[Ratios, Ratios]:
    """Both, restricted to the questions that they share and in the same order."""
    if np.array_equal(one.questions, other.questions):
        return one, other
    _, left, right = np.intersect1d(one.questions, other.questions, return_indices=True)
    return one.take(left), other.take(right)


def paired_sums(method: Ratios, baseline: Ratios) -> Floats | None:
    """Sums by document over shared questions: the method's, the baseline's, and sizes, `[3, G]`.

    None if a document has another size in the baseline.
    """
    method, baseline = in_common(method, baseline)
    _, sums, sizes = dataclasses.replace(method, clusters=baseline.clusters).by_cluster()
    _, base_sums, base_sizes = baseline.by_cluster()
    return np.stack([sums, base_sums, sizes]) if np.array_equal(sizes, base_sizes) else None


def mcnemar_exact(
    wins: npt.NDArray[np.int64] | int, losses: npt.NDArray[np.int64] | int
) -> npt.NDArray[np.float64]:
    """Two-sided exact p of McNemar's test: `min(1, 2 P(Binomial(w + l, 1/2) <= min(w, l)))`.

    `wins` are questions that only the first method solves, `losses` those that only the second one
    solves; any shape.
    """
    wins, losses = np.asarray(wins), np.asarray(losses)
    tail: npt.NDArray[np.float64] = stats.binom.cdf(np.minimum(wins, losses), wins + losses, 0.5)
    return np.minimum(1.0, 2 * tail)


def holm(p: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Adjusted p values `[n]` (Holm 1979), to compare with the level itself; NaN stays NaN."""
    raw = np.asarray(p, dtype=np.float64)
    adjusted = np.full(raw.shape, np.nan)
    tested = np.flatnonzero(~np.isnan(raw))
    order = tested[np.argsort(raw[tested], kind="stable")]
    steps = np.arange(order.size, 0, -1)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(raw[order] * steps))
    return adjusted


@functools.lru_cache(maxsize=EXACT_BELOW)
def _all_signs(clusters: int) -> Floats:
    """Half of the sign patterns `[2**(G-1), G]`; the other half is their negative."""
    codes = np.arange(2 ** (clusters - 1))[:, None]
    signs: Floats = 1.0 - 2.0 * ((codes >> np.arange(clusters)) & 1)
    return signs


@functools.lru_cache(maxsize=8)
def _random_signs(clusters: int) -> Floats:
    signs: Floats = np.random.default_rng(0).choice((-1.0, 1.0), size=(FLIPS, clusters))
    return signs


def sign_flip_p(differences: npt.ArrayLike) -> Floats:
    """Two-sided p of the sign-flip test on cluster totals.

    Args:
        differences: `[..., G]`, for each cluster the sum of (method - baseline) over its questions.

    Returns:
        `[...]`; below 20 clusters the exact share of sign patterns whose sum is at least as far
        from 0 as the observed one, else `(1 + hits)/(1 + 9,999)`, which is never 0.
    """
    d = np.asarray(differences, dtype=np.float64)
    clusters = d.shape[-1]
    if clusters == 0:
        return np.ones(d.shape[:-1])
    flat = d.reshape(-1, clusters)
    exact = clusters < EXACT_BELOW
    signs = _all_signs(clusters) if exact else _random_signs(clusters)
    observed = np.abs(flat.sum(axis=-1))
    tolerance = 1e-9 * np.abs(flat).sum(axis=-1)  # equal sums differ in their last bits
    p = np.empty(len(flat))
    step = max(1, 8_000_000 // len(signs))  # at most 64 MB of sums at once
    for start in range(0, len(flat), step):
        part = slice(start, start + step)
        sums = np.abs(flat[part] @ signs.T)
        hits = (sums >= (observed[part] - tolerance[part])[:, None]).sum(axis=-1)
        p[part] = hits / len(signs) if exact else (1 + hits) / (1 + FLIPS)
    return p.reshape(d.shape[:-1])


def smallest_p(clusters: int) -> float:
    """Smallest two-sided p that a test over this many documents can give: `2 / 2**G`.

    From 20 documents on the random flips limit it to 1/10,000, which is far below any threshold.
    """
    if clusters < EXACT_BELOW:
        return min(1.0, 2.0 ** (1 - clusters))
    return 1.0 / (1 + FLIPS)


def fewest_clusters(threshold: float) -> int:
    """The fewest documents whose smallest p reaches a threshold from 0.0001 to 1."""
    return next(n for n in range(1, EXACT_BELOW + 1) if smallest_p(n) <= max(threshold, 1e-4))


def compare_family(
    rivals: Sequence[Ratios],
    baseline: Ratios,
    level: float,
    *,
    are_losses: bool,
    higher_is_better: bool,
) -> list[Difference | None]:
    """Each rival against the baseline on common questions, Holm-corrected over all of them.

    None for a rival that has no question in common with it, or a document of another size.

    Args:
        rivals: a metric of each method.
        baseline: the same metric of the baseline.
        level: over all rivals together.
        are_losses: whether the metric is a loss; else its values are scores.
        higher_is_better: whether a positive difference of scores is a win.
    """
    threshold = level / max(1, len(rivals))
    found: list[Difference | None] = []
    for rival in rivals:
        sums = paired_sums(rival, baseline) if are_losses else None
        method, base = in_common(rival, baseline)
        if sums is not None and sums.size:
            found.append(compare_perplexities(sums[0], sums[1], sums[2], threshold))
        elif not are_losses and method.questions.size and method.are_scores and base.are_scores:
            scores = method.numerator, base.numerator, base.clusters
            found.append(compare_scores(*scores, threshold, higher_is_better=higher_is_better))
        else:
            found.append(None)
    adjusted = holm([math.nan if each is None else each.p for each in found]).tolist()
    return [
        each
        and dataclasses.replace(
            each,
            p_holm=p,
            threshold=threshold,
            mark=CANNOT_TELL if each.smallest_p > threshold else SIGNIFICANT * (p <= level),
        )
        for each, p in zip(found, adjusted, strict=True)
    ]


def compare_scores(
    method: Floats,
    baseline: Floats,
    clusters: Labels,
    level: float = 0.05,
    *,
    higher_is_better: bool = True,
) -> Difference:
    """Compare scores on the same questions, in the same order.

    Args:
        method: `[n]` scores of the method, n at least 1.
        baseline: `[n]` scores of the baseline.
        clusters: `[n]` integer document labels.
        level: of the two-sided interval and of the detectable difference; for a Holm-corrected
            family divide it by the number of methods.
        higher_is_better: whether a positive difference is a win.
    """
    difference = method - baseline
    _, totals, sizes = sums_by_cluster(clusters, difference, np.ones(method.size))
    binary = np.isin(method, (0.0, 1.0)).all() and np.isin(baseline, (0.0, 1.0)).all()
    mcnemar = bool(binary) and totals.size == method.size
    better = difference if higher_is_better else -difference
    return _compared(totals, sizes, better, level, mcnemar=mcnemar)


def compare_perplexities(
    method: Floats, baseline: Floats, sizes: Floats, level: float = 0.05
) -> Difference:
    """Compare negative log-likelihoods of the same documents; negative differences are better.

    Args:
        method: `[G]` summed negative log-likelihood of each document, nats; G at least 1.
        baseline: `[G]` the same of the baseline.
        sizes: `[G]` tokens of each document, the same for both (same text, same tokenizer).
        level: of the two-sided interval, which is not given below three documents.
    """
    totals = method - baseline
    return _compared(totals, sizes, -totals, level, fewest=3)


def _compared(
    totals: Floats,
    sizes: Floats,
    better: Floats,
    level: float,
    *,
    fewest: int = 2,
    mcnemar: bool = False,
) -> Difference:
    """Difference from sums by document.

    `better` is positive for a win; an interval needs the `fewest` documents.
    """
    mean, stderr, df = (float(x) for x in linearised_ratio(totals, sizes))
    groups = totals.size
    alike = shows_no_spread(stderr, mean)
    enough = groups >= fewest and not alike
    half = float(stats.t.ppf(1 - level / 2, df)) * stderr if enough else math.nan
    quantiles = stats.t.ppf(1 - level / 2, df) + stats.t.ppf(POWER, df)
    wins, losses = int((better > 0).sum()), int((better < 0).sum())
    return Difference(
        difference=mean,
        low=known(mean - half),
        high=known(mean + half),
        p=float(mcnemar_exact(wins, losses) if mcnemar else sign_flip_p(totals)),
        smallest_p=2.0 ** (1 - min(groups, 1000)) if mcnemar else smallest_p(groups),
        wins=wins,
        ties=better.size - wins - losses,
        losses=losses,
        detectable=known(quantiles * stderr) if df > 0 and not alike else None,
    )
