"""From sums and counts of each document to perplexities and their standard errors.

Every number here is a ratio of two sums over documents, so documents carry `(numerator,
denominator)` pairs and one division is made at the end. Natural logarithms throughout.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from leval_tasks.metric_names import split
from leval_tasks.statistics import linearised_ratio

Pair = Sequence[float]  # (numerator, denominator) of one document
MIN_CLUSTERS = 3
NOT_AVAILABLE = "N/A"  # what lm-eval prints where there is no standard error

METRICS = (
    "token_perplexity",
    "paper_perplexity",
    "word_perplexity",
    "byte_perplexity",
    "bits_per_byte",
)


def ratio(pairs: Sequence[Pair]) -> float:
    """Sum of the numerators over the sum of the denominators; NaN where nothing was counted."""
    denominator = math.fsum(pair[1] for pair in pairs)
    return math.fsum(pair[0] for pair in pairs) / denominator if denominator else math.nan


def ratio_stderr(pairs: Sequence[Pair]) -> float:
    """Standard error of `ratio`, documents being drawn as wholes; NaN below three documents.

    See `leval_tasks.statistics`.
    """
    clusters = [pair for pair in pairs if pair[1]]
    if len(clusters) < MIN_CLUSTERS:
        return math.nan
    totals, sizes = np.array(clusters, dtype=np.float64).T
    return float(linearised_ratio(totals, sizes)[1])


def perplexity(pairs: Sequence[Pair]) -> float:
    """`exp` of the ratio; infinite where that leaves the range of a float."""
    try:
        return math.exp(ratio(pairs))
    except OverflowError:
        return math.inf


def perplexity_stderr(pairs: Sequence[Pair]) -> float:
    """Standard error of `perplexity` by the delta method: `exp(R)` times that of `R`."""
    return perplexity(pairs) * ratio_stderr(pairs)


def bits(pairs: Sequence[Pair]) -> float:
    """The ratio in bits instead of nats."""
    return ratio(pairs) / math.log(2)


def bits_stderr(pairs: Sequence[Pair]) -> float:
    """Standard error of `bits`."""
    return ratio_stderr(pairs) / math.log(2)


def or_not_available(function: Callable[[Sequence[Pair]], float]) -> Callable[..., float | str]:
    """The same function with lm-eval's word in place of a NaN, which is no JSON."""

    def aggregate(pairs: Sequence[Pair]) -> float | str:
        value = function(pairs)
        return NOT_AVAILABLE if math.isnan(value) else value

    return aggregate


def aggregations(metric: str) -> tuple[Callable[..., float | str], Callable[..., float | str]]:
    """How a metric and its standard error come from the documents' pairs.

    Args:
        metric: Name with or without `@context length`; a name that is none of `METRICS` is a mean
            negative log-likelihood, reported as it is.
    """
    name, _ = split(metric)
    if name == "bits_per_byte":
        value, stderr = bits, bits_stderr
    elif name in METRICS:
        value, stderr = perplexity, perplexity_stderr
    else:
        value, stderr = ratio, ratio_stderr
    return or_not_available(value), or_not_available(stderr)


def document_pairs(
    nll: Sequence[float], scored: Sequence[int], words: int, text_bytes: int
) -> dict[str, list[float]]:
    """The pairs that one document contributes at one context length.

    Args:
        nll: Sum of the negative log-likelihoods (nats) of each window.
        scored: Tokens scored in each window.
        words: Words, separated by white space, of the text that was scored.
        text_bytes: UTF-8 bytes of that text.

    Returns:
        `token_perplexity`: nats, tokens. `paper_perplexity`: sum of the windows' mean nats,
        windows: each window counts once whatever it scores, as the scripts of YaRN and Resonance
        RoPE do. `word_perplexity`, `byte_perplexity`, `bits_per_byte`: nats, words or bytes.
    """
    total = math.fsum(nll)
    window_means = math.fsum(x / n for x, n in zip(nll, scored, strict=True))
    return {
        "token_perplexity": [total, sum(scored)],
        "paper_perplexity": [window_means, len(scored)],
        "word_perplexity": [total, words],
        "byte_perplexity": [total, text_bytes],
        "bits_per_byte": [total, text_bytes],
    }
