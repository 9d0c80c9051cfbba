"""Statistics for test sets of a few documents with many questions each.

Questions about one document succeed and fail together, so the document (the cluster) is the unit of
chance everywhere here. All functions take numpy arrays; the package imports numpy and scipy only.

- `clustered`: means and ratios with standard errors and intervals by cluster (CR2).
- `paired`: two methods on the same questions: differences, sign-flip and McNemar tests, Holm.
- `effective_context`: up to where a text helps a model, from the gain of each token.
- `retrieval`: how far a model retrieves: the longest length before a loss, with an interval.
- `equivalence`: whether two setups lose as many nats on the same tokens; a sequential test.
- `divergence`: how far two distributions over the next token lie apart.

Example:
    >>> import numpy as np
    >>> from leval_tasks.statistics.clustered import estimate_mean
    >>> scores, documents = np.array([1.0, 0.0, 1.0, 1.0, 0.0]), np.array([0, 0, 1, 1, 2])
    >>> estimate = estimate_mean(scores, documents)
    >>> f"{estimate.value:.2f} ± {estimate.stderr:.2f}, {estimate.clusters} documents"
    '0.60 ± 0.38, 3 documents'
"""
