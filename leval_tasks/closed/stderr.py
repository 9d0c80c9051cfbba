"""Standard error of a mean over questions that share documents.

Questions about one document are not independent: a document that a model reads badly is wrong
several times. The estimator sums residuals within a document first (cluster-robust sandwich,
Liang & Zeger 1986) with the small-sample factor G/(G-1).
"""

import math
from collections.abc import Hashable, Iterable


def clustered_stderr(items: Iterable[tuple[Hashable, float]]) -> float | None:
    """Standard error of the mean score, clustered.

    With residuals `e_i = x_i - mean` and cluster sums `E_g = sum of e_i in g`, it is
    `sqrt(G / (G - 1) * sum of E_g^2) / n`. With one item a cluster that is the usual
    `s / sqrt(n)`.

    Args:
        items: (cluster, score) pairs; scores are fractions.

    Returns:
        The standard error, or None where there are fewer than two clusters: one document says
        nothing about the spread between documents.
    """
    pairs = list(items)
    sums: dict[Hashable, float] = {}
    mean = sum(score for _, score in pairs) / len(pairs) if pairs else 0.0
    for cluster, score in pairs:
        sums[cluster] = sums.get(cluster, 0.0) + score - mean
    groups = len(sums)
    if groups < 2:
        return None
    total = math.fsum(value * value for value in sums.values())
    return math.sqrt(groups / (groups - 1) * total) / len(pairs)
