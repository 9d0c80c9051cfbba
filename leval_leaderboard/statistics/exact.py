"""Exact binomial interval and McNemar's exact test."""

import numpy as np
import numpy.typing as npt
from scipy import stats


def clopper_pearson(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact two-sided binomial interval (Clopper and Pearson 1934).

    Raises:
        ValueError: `successes` is not within 0..n, or n is not positive.
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(
            f"successes: {successes} of {n} is no binomial outcome; 0 <= successes <= n"
        )
    tail = (1 - confidence) / 2
    low = 0.0 if successes == 0 else float(stats.beta.ppf(tail, successes, n - successes + 1))
    high = 1.0 if successes == n else float(stats.beta.ppf(1 - tail, successes + 1, n - successes))
    return low, high


def mcnemar_exact(
    wins: npt.NDArray[np.int64] | int, losses: npt.NDArray[np.int64] | int
) -> npt.NDArray[np.float64]:
    """Two-sided exact p of McNemar's test: `min(1, 2 P(Binomial(w + l, 1/2) <= min(w, l)))`.

    Args:
        wins: questions only the first method solves; any shape.
        losses: questions only the second solves; same shape.
    """
    wins, losses = np.asarray(wins), np.asarray(losses)
    p: npt.NDArray[np.float64] = np.minimum(
        1.0, 2 * stats.binom.cdf(np.minimum(wins, losses), wins + losses, 0.5)
    )
    return p
