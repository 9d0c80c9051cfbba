"""Statistics for test sets of a few documents with many questions each.

Pure functions on numpy arrays; nothing here reads a file or knows a method's name.
`clustered` estimates, `exact` counts, `paired` compares, `holm` corrects.
"""

from leval_leaderboard.statistics.clustered import (
    Estimate,
    cluster_sums,
    estimate_mean,
    estimate_ratio,
)
from leval_leaderboard.statistics.exact import clopper_pearson, mcnemar_exact
from leval_leaderboard.statistics.holm import holm
from leval_leaderboard.statistics.paired import (
    Comparison,
    compare_perplexities,
    compare_scores,
    sign_flip_p,
    smallest_p,
)
from leval_tasks.statistics import linearised_ratio

__all__ = [
    "Comparison",
    "Estimate",
    "clopper_pearson",
    "cluster_sums",
    "compare_perplexities",
    "compare_scores",
    "estimate_mean",
    "estimate_ratio",
    "holm",
    "linearised_ratio",
    "mcnemar_exact",
    "sign_flip_p",
    "smallest_p",
]
