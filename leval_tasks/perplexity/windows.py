"""Which tokens a model reads together, which of them are scored, what these add up to.

A document is `n` tokens without special tokens, numbered from 0. A window of `W` positions holds
`W` tokens, BOS included, so it carries `w = W - 1` document tokens with BOS and `w = W` without.
Without BOS nothing stands before the document's first token, and that token is never scored.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from leval_tasks.metadata import Mode

METRICS = (
    "token_perplexity",
    "paper_perplexity",
    "word_perplexity",
    "byte_perplexity",
    "bits_per_byte",
)


@dataclass(frozen=True, slots=True)
class Window:
    """One forward pass: document tokens `start..end-1`, of which `score_start..end-1` are scored.

    `context_length` is the `W` that it was made for, `bos` whether BOS is put in front.
    """

    context_length: int
    start: int
    score_start: int
    end: int
    bos: bool

    @property
    def scored(self) -> int:
        """Number of tokens scored."""
        return self.end - self.score_start


def document_tokens(context_length: int, bos: bool) -> int:
    """Document tokens that fit a window of `context_length` positions."""
    return context_length - int(bos)


def make_windows(n: int, context_length: int, stride: int, mode: Mode, bos: bool) -> list[Window]:
    """The windows of one document at one context length, in reading order.

    Sliding windows begin at 0, S, 2S, …; the first one scores all its tokens, a later one those
    that the one before did not reach. Same as `eval/perplexity.py` of YaRN and of Resonance RoPE
    for `stride <= w`.

    Args:
        n: tokens of the document.
        context_length: positions of a window, BOS included; at least 2.
        stride: tokens that a sliding window moves by; 1 to `context_length - 1`, so that a window
            has a token before those that it scores.
        mode: `sliding`, or `truncate`: the first window alone.
        bos: whether every window begins with BOS.
    """
    w, scored_up_to, start = document_tokens(context_length, bos), 0 if bos else 1, 0
    windows: list[Window] = []
    while scored_up_to < n:
        end = min(start + w, n)
        windows.append(Window(context_length, start, scored_up_to, end, bos))
        start, scored_up_to = start + stride, end
    return windows[:1] if mode == "truncate" else windows


def document_pairs(
    nll: Sequence[float], scored: Sequence[int], text: str
) -> dict[str, list[float]]:
    """The pairs of numerator and denominator that one document gives at one context length.

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
