"""Fitting a document into the context, counted exactly in the model's own tokens.

All questions about a document get the same cut, that of the longest question, so that their prompts
share a prefix and differ in the question only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from leval_tasks.closed.prompts import Prompt
from leval_tasks.errors import ContextLengthError


@dataclass(frozen=True)
class Cut:
    """What is kept of a document: its text, in two `pieces` around a cut in the middle.

    `head` and `tail` are the kept tokens at its beginning (all where nothing is cut) and its end.
    """

    pieces: tuple[str, ...]
    head: int
    tail: int
    truncated: bool


class TokenizedDocument:
    """A document with the character ranges `offsets` of its tokens."""

    def __init__(self, text: str, tokenizer: Any) -> None:
        self.text = text
        self.tokenizer = tokenizer
        encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        self.offsets = list(encoding["offset_mapping"])

    def __len__(self) -> int:
        return len(self.offsets)

    def keep(self, count: int, side: str) -> Cut:
        """Keep `count` tokens, 1 or more; `side` is where the cut is made: middle, right, left."""
        n = len(self)
        if count >= n:
            return Cut((self.text,), n, 0, truncated=False)
        head = {"right": count, "left": 0, "middle": (count + 1) // 2}[side]
        tail = count - head
        pieces = [self.text[: self.offsets[head - 1][1]]] if head else []
        pieces += [self.text[self.offsets[n - tail][0] :]] if tail else []
        return Cut(tuple(pieces), head, tail, truncated=True)


def count_tokens(tokenizer: Any, texts: Sequence[str]) -> list[int]:
    """Number of tokens of each text, with special tokens except for one that begins with BOS."""
    bos = getattr(tokenizer, "bos_token", None)
    special = not (bos and texts[0].startswith(bos))
    return [len(ids) for ids in tokenizer(list(texts), add_special_tokens=special)["input_ids"]]


def fit(
    document: TokenizedDocument, prompts: Sequence[Prompt], room: int, side: str
) -> tuple[Cut | None, list[int]]:
    """Cut a document so that every prompt about it, which begin alike, has at most `room` tokens.

    The longest question finds the cut, and all of them are counted once it is there. `side` is
    where the document is cut: `middle`, `right`, `left`; or `skip`.

    Returns:
        The cut, None where `skip` leaves the document out; and the length of each prompt in tokens.

    Raises:
        ContextLengthError: instructions and question alone do not fit.
    """
    endings = [prompt.after for prompt in prompts]

    def lengths(cut: Cut, endings: Sequence[str]) -> list[int]:
        shared = "".join([prompts[0].before, *cut.pieces])
        return count_tokens(document.tokenizer, [shared + ending for ending in endings])

    sizes = count_tokens(document.tokenizer, endings)
    longest = endings[sizes.index(max(sizes))]
    keep = len(document)
    cut, totals = document.keep(keep, side), list[int]()
    for asked in ([longest], endings):
        while (excess := max(totals := lengths(cut, asked)) - room) > 0:
            if side == "skip":
                return None, totals
            keep -= excess
            if keep < 1:
                frame = max(totals) - cut.head - cut.tail
                raise ContextLengthError(
                    f"The context is too small: instructions and question alone take {frame} "
                    f"tokens and {max(room, 0)} are left for the prompt after the tokens to "
                    "generate. Give a larger context_length or a smaller max_gen_toks."
                )
            cut = document.keep(keep, side)
    return cut, totals
