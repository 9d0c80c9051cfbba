"""Fitting a document into the context, counted exactly in the model's own tokens.

All questions about a document get the same cut, that of the longest question, so that their prompts
share a prefix and differ in the question only.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from leval_tasks.closed.prompts import Prompt
from leval_tasks.errors import ContextLengthError

WINDOW = 512  # characters of the shared text that are tokenised again with each question
RUN = 8  # tokens that must agree before two tokenisations count as aligned


@dataclass(frozen=True)
class Cut:
    """What is kept of a document.

    Attributes:
        spans: character ranges of the document that are kept, in order.
        head: kept tokens at the beginning; all tokens where nothing is cut.
        tail: kept tokens at the end.
        truncated: whether anything is left out.
    """

    spans: tuple[tuple[int, int], ...]
    head: int
    tail: int
    truncated: bool


class TokenizedDocument:
    """A document with the character offsets at which its tokens start and end."""

    def __init__(self, text: str, tokenizer: Any) -> None:
        self.text = text
        self.tokenizer = tokenizer
        offsets = token_offsets(tokenizer, text)
        self.starts = [start for start, _ in offsets]
        self.ends = [end for _, end in offsets]

    def __len__(self) -> int:
        return len(self.starts)

    def keep(self, count: int, side: str) -> Cut:
        """Keep `count` tokens, 1 or more; `side` is where the cut is made: middle, right, left."""
        n = len(self)
        if count >= n:
            return Cut(((0, len(self.text)),), n, 0, truncated=False)
        head = {"right": count, "left": 0, "middle": (count + 1) // 2}[side]
        tail = count - head
        spans = []
        if head:
            spans.append((0, self.ends[head - 1]))
        if tail:
            spans.append((self.starts[n - tail], len(self.text)))
        return Cut(tuple(spans), head, tail, truncated=True)

    def kept(self, cut: Cut) -> str:
        """The text that a cut keeps."""
        return "".join(self.text[start:end] for start, end in cut.spans)


def token_offsets(tokenizer: Any, text: str) -> list[tuple[int, int]]:
    """Character ranges of a text's tokens, without special tokens added at its ends."""
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    return list(encoding["offset_mapping"])


def special_tokens(tokenizer: Any, text: str, add_bos: bool | None) -> int:
    """Number of tokens that the backend adds to a prompt; none to one that begins with BOS.

    `add_bos` is the backend's own setting, None where it follows the tokenizer.
    """
    bos = getattr(tokenizer, "bos_token", None)
    if add_bos is False or (bos and text.startswith(bos)):
        return 0
    return int(tokenizer.num_special_tokens_to_add())


def count_tokens(tokenizer: Any, shared: str, endings: Sequence[str]) -> list[int]:
    """Number of tokens of a text with each of several endings, without special tokens.

    The whole text is tokenised with the first ending only. For a further ending the last `WINDOW`
    characters before it are tokenised, which is exact where their tokens align with those of the
    whole; where they do not, the whole is tokenised again.
    """
    whole = [start for start, _ in token_offsets(tokenizer, shared + endings[0])]
    counts = [len(whole)]
    shift = max(0, len(shared) - WINDOW)
    for ending in endings[1:]:
        offsets = token_offsets(tokenizer, shared[shift:] + ending)
        before = _aligned(whole, [start + shift for start, _ in offsets], len(shared))
        if before is None:
            before, offsets = 0, token_offsets(tokenizer, shared + ending)
        counts.append(before + len(offsets))
    return counts


def _aligned(whole: Sequence[int], window: Sequence[int], end: int) -> int | None:
    """How many tokens the whole has before the window's first; None where the two do not agree.

    `RUN` tokens in the middle of the window must agree, a quarter away from its start and `end`.
    """
    first = bisect_left(window, end - 3 * WINDOW // 4)
    last = bisect_left(window, end - WINDOW // 4) - RUN
    for index in range(first, last):
        if index and window[index - 1] == window[index]:
            continue  # the middle of a character that takes several tokens
        at = bisect_left(whole, window[index])
        if whole[at : at + RUN] == window[index : index + RUN]:
            return at - index
    return None


def fit(
    document: TokenizedDocument,
    prompts: Sequence[Prompt],
    room: int,
    *,
    side: str,
    add_bos: bool | None = None,
) -> tuple[Cut | None, list[int]]:
    """Cut a document so that every prompt about it fits.

    Args:
        document: the tokenised document.
        prompts: the prompts of its questions, which begin alike.
        room: tokens that a prompt may have: context length minus generated tokens.
        side: where the document is cut: `middle`, `right`, `left`; or `skip`.
        add_bos: see `special_tokens`.

    Returns:
        The cut, None where `skip` leaves the document out; and the length of each prompt in tokens.

    Raises:
        ContextLengthError: instructions and question alone do not fit.
    """
    before, endings = prompts[0].before, [prompt.after for prompt in prompts]
    special = special_tokens(document.tokenizer, before, add_bos)

    def lengths(cut: Cut) -> list[int]:
        counts = count_tokens(document.tokenizer, before + document.kept(cut), endings)
        return [count + special for count in counts]

    cut = document.keep(len(document), "right")
    totals = lengths(cut)
    if side == "skip" and max(totals) > room:
        return None, totals
    frame = max(totals) - len(document)
    keep = len(document)
    while (excess := max(totals) - room) > 0:
        keep -= excess
        if keep < 1:
            raise ContextLengthError(
                f"The context is too small: instructions and question alone take {frame} tokens "
                f"and {max(room, 0)} are left for the prompt after the tokens to generate. Give a "
                "larger context_length or a smaller max_gen_toks."
            )
        cut = document.keep(keep, side)
        totals = lengths(cut)
    return cut, totals
