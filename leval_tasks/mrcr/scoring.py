"""The score of an answer and the bins of the published results, after the card of `openai/mrcr`."""

from bisect import bisect_left
from difflib import SequenceMatcher

BIN_EDGES = (4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576)
"""Tokens of conversation and answer: [4096, 8192], (8192, 16384], and so on."""


def score(response: str, answer: str, prefix: str) -> float:
    """Return how similar a response is to the answer, from 0 to 1.

    Args:
        response: what the model wrote.
        answer: what it should have written, the prefix included.
        prefix: random text that the question demands first. Without it the score is 0.
    """
    if not response.startswith(prefix):
        return 0.0
    expected = answer.removeprefix(prefix)
    return SequenceMatcher(None, response.removeprefix(prefix), expected).ratio()


def bin_of(tokens: int) -> int | None:
    """Return the upper edge of the bin that so many tokens fall into; None outside of all bins."""
    if not BIN_EDGES[0] <= tokens <= BIN_EDGES[-1]:
        return None
    return BIN_EDGES[max(1, bisect_left(BIN_EDGES, tokens))]
