"""From sums and counts of each document to perplexities and their standard errors.

Every number here is a ratio of two sums over documents, so documents carry `(numerator,
denominator)` pairs and one division is made at the end. Natural logarithms throughout.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from leval_tasks.metrics import OURS, or_not_available, split
from leval_tasks.statistics.clustered import known_error

Pair = Sequence[float]  # (numerator, denominator) of one document
MIN_CLUSTERS = 3

METRICS = (
    "token_perplexity",
    "paper_perplexity",
    "word_perplexity",
    "byte_perplexity",
    "bits_per_byte",
)


def document_pairs(
    nll: Sequence[float], scored: Sequence[int], text: str
) -> dict[str, list[float]]:
    """The pairs that one document contributes at one context length.

    Args:
        nll: sum of the negative log-likelihoods (nats) of each window.
        scored: tokens scored in each window.
        text: the text that was scored.

    Returns:
        `token_perplexity`: nats, tokens. `paper_perplexity`: sum of the windows' mean nats,
        windows: each window counts once whatever it scores, as the scripts of YaRN and Resonance
        RoPE do. `word_perplexity`, `byte_perplexity`, `bits_per_byte`: nats, words or UTF-8 bytes.
    """
    total, text_bytes = math.fsum(nll), len(text.encode())
    window_means = math.fsum(x / n for x, n in zip(nll, scored, strict=True))
    return {
        "token_perplexity": [total, sum(scored)],
        "paper_perplexity": [window_means, len(scored)],
        "word_perplexity": [total, len(text.split())],
        "byte_perplexity": [total, text_bytes],
        "bits_per_byte": [total, text_bytes],
    }


def with_stderr(values: Mapping[str, list[float]]) -> dict[str, Any]:
    """Each metric once more, aggregated after it into lm-eval's own field of standard errors."""
    return {each: pair for name, pair in values.items() for each in (name, f"{name}_stderr")}


def ratio(pairs: Sequence[Pair]) -> float:
    """Sum of the numerators over the sum of the denominators; NaN where nothing was counted."""
    denominator = math.fsum(pair[1] for pair in pairs)
    return math.fsum(pair[0] for pair in pairs) / denominator if denominator else math.nan


def ratio_stderr(pairs: Sequence[Pair]) -> float:
    """Standard error of `ratio` over documents; NaN below three, and where all are equal."""
    clusters = [pair for pair in pairs if pair[1]]
    if len(clusters) < MIN_CLUSTERS:
        return math.nan
    totals, sizes = np.array(clusters, dtype=np.float64).T
    return known_error(totals, sizes)


def _perplexity(pairs: Sequence[Pair]) -> float:
    try:
        return math.exp(ratio(pairs))
    except OverflowError:
        return math.inf


def aggregations(metric: str) -> tuple[Callable[..., float | str], Callable[..., float | str]]:
    """How a metric and its standard error come from the documents' pairs.

    The standard error of a perplexity is by the delta method: `exp(R)` times that of `R`. Both
    functions give lm-eval's `N/A` in place of a NaN, which is no JSON.

    Args:
        metric: name with or without `@context length`, in the table of metrics.
    """
    how = OURS[split(metric)[0]].aggregation

    def value(pairs: Sequence[Pair]) -> float | str:
        if how == "perplexity":
            return or_not_available(_perplexity(pairs))
        return or_not_available(ratio(pairs) / (math.log(2) if how == "bits" else 1))

    def stderr(pairs: Sequence[Pair]) -> float | str:
        error = ratio_stderr(pairs)
        if how == "perplexity":
            return or_not_available(_perplexity(pairs) * error)
        return or_not_available(error / (math.log(2) if how == "bits" else 1))

    return value, stderr
