"""The tokens of prompts around a haystack, without tokenizing the haystack for each of them.

A token depends on the text around it, but only on the text near it. So only the seams of a prompt
are tokenized, where the haystack meets a needle or the question; between them the tokens are those
of the haystack alone. Where a seam ends, its tokens must be the same as the haystack's.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from leval_tasks.common.chat import begins_with_bos, count_tokens
from leval_tasks.perplexity.documents import encoder
from leval_tasks.retrieval.haystack import Haystack, Stretch

MARGIN = 1024
"""Characters of the haystack that a seam has on each side."""
CUT = MARGIN // 2
"""Characters from the end of a seam to where its tokens are taken to be those of the haystack."""
SAME = MARGIN // 4
"""Characters on both sides of a cut in which both have to have the same tokens."""


@dataclass
class Seam:
    """A part of a prompt that is tokenized by itself.

    Attributes:
        text: its characters.
        left: place in the haystack at which it begins; None at the beginning of the prompt.
        right: place in the haystack at which it ends; None at the end of the prompt.
    """

    text: str
    left: int | None = None
    right: int | None = None


def count_prompt_tokens(
    tokenizer: Any, haystack: Haystack, prompt: str, parts: Iterable[str | Stretch]
) -> int:
    """Return the number of tokens of a prompt, with special tokens unless it begins with BOS.

    Args:
        tokenizer: the model's.
        haystack: whose tokens are known.
        prompt: the whole text.
        parts: what it consists of, in order.
    """
    tokens = 0
    last_cut: int | None = None
    for seam in seams(haystack, parts):
        own = own_tokens(tokenizer, haystack, seam)
        if own is None:
            # a text whose tokens depend on text far from them, such as a row of equal signs
            return count_tokens(tokenizer, [prompt])[0]
        tokens += own
        if last_cut is not None and seam.left is not None:
            tokens += tokens_between(haystack, last_cut, seam.left + CUT)
        if seam.right is not None:
            last_cut = seam.right - CUT
    if not begins_with_bos(tokenizer, prompt):
        tokens += tokenizer.num_special_tokens_to_add()
    return tokens


def seams(haystack: Haystack, parts: Iterable[str | Stretch]) -> Iterator[Seam]:
    """Yield the seams of a prompt; a stretch of the haystack that is short is within one."""
    seam = Seam("")
    for part in parts:
        if isinstance(part, str):
            seam.text += part
        elif part.end - part.start <= 2 * MARGIN:
            seam.text += haystack.text[part.start : part.end]
        else:
            seam.right = part.start + MARGIN
            seam.text += haystack.text[part.start : seam.right]
            yield seam
            left = part.end - MARGIN
            seam = Seam(haystack.text[left : part.end], left)
    yield seam


def own_tokens(tokenizer: Any, haystack: Haystack, seam: Seam) -> int | None:
    """Return the tokens of a seam between its cuts; None where they are not the haystack's at a cut."""
    _, ends = encoder(tokenizer)(seam.text)
    first = 0
    last = len(ends)
    if seam.left is not None:
        first = bisect_right(ends, CUT)
        if ends_around(ends, CUT) != ends_around(haystack.tokens, seam.left + CUT):
            return None
    if seam.right is not None:
        cut = len(seam.text) - CUT
        last = bisect_right(ends, cut)
        if ends_around(ends, cut) != ends_around(haystack.tokens, seam.right - CUT):
            return None
    return last - first


def ends_around(ends: Any, cut: int) -> list[int]:
    """Return where the tokens around a cut end, in characters from the cut."""
    begin = bisect_right(ends, cut - SAME)
    end = bisect_right(ends, cut + SAME)
    return [place - cut for place in ends[begin:end]]


def tokens_between(haystack: Haystack, start: int, end: int) -> int:
    """Return the tokens of the haystack that end after a character and not after another one."""
    return bisect_right(haystack.tokens, end) - bisect_right(haystack.tokens, start)
