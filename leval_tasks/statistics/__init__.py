"""Statistics for test sets of a few documents with many questions each.

Questions about one document succeed and fail together, so the document (the cluster) is the unit of
chance everywhere here. The package imports numpy, scipy and pandas only.

- `by_document`: means and ratios with standard errors by document (CR2), exact and logit intervals,
  the sign-flip test and Holm's correction.
- `effective_context`: up to where a text helps a model, from the gain of each token.
- `retrieval`: how far a model retrieves: the longest length before a loss, with an interval.
- `difference`: whether two setups lose as many nats on the same tokens, by position.
- `divergence`: how far two distributions over the next token lie apart.

Example:
    >>> import numpy as np
    >>> from leval_tasks.statistics.by_document import linearised_ratio
    >>> right, questions = np.array([1.0, 2.0, 0.0]), np.array([2, 2, 1])  # of three documents
    >>> mean, stderr, _ = linearised_ratio(right, questions)
    >>> f"{mean:.2f} ± {stderr:.2f}"
    '0.60 ± 0.25'
"""
