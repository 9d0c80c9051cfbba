"""Fitting a document into the context, counted in the model's own tokens.

All questions about a document get the same cut, that of the longest question, so that they share
their prefix and differ in nothing but the question.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from leval_border.errors import SettingError
from leval_tasks.closed.counting import (
    Cut,
    Document,
    count_tokens,
    special_tokens,
    token_offsets,
)
from leval_tasks.closed.prompts import Prompt
from leval_tasks.errors import ContextLengthError

OFFICIAL_STEP = 250


@dataclass(frozen=True)
class Fitted:
    """A document fitted to its questions' prompts.

    Attributes:
        cut: what is kept, the same for all questions; None where `skip` leaves the document out.
        prompt_tokens: length of each prompt, in the order of the prompts.
    """

    cut: Cut | None
    prompt_tokens: tuple[int, ...]


def fit(
    document: Document,
    prompts: Sequence[Prompt],
    room: int,
    *,
    side: str,
    unit: str = "tokens",
    add_bos: bool | None = None,
) -> Fitted:
    """Cut a document so that every prompt about it fits.

    Args:
        document: the tokenised document.
        prompts: the prompts of its questions.
        room: tokens that a prompt may have: context length minus generated tokens.
        side: where the document is cut: `middle`, `right`, `left`; or `skip`.
        unit: `tokens`, or `words` for L-Eval's own cut.
        add_bos: see `special_tokens`.

    Raises:
        ContextLengthError: instructions and question alone do not fit, or with `words` a prompt is
            longer than the room (the official cut does not count frame and question).
        SettingError: `words` with a cut in the middle.
    """

    def lengths(cut: Cut) -> tuple[int, ...]:
        return tuple(
            count_tokens(document, cut, prompt.before, prompt.after)
            + special_tokens(document.tokenizer, prompt.before, add_bos)
            for prompt in prompts
        )

    whole = document.keep(len(document), "right")
    if unit == "words":
        return _fit_words(document, lengths, room, side)
    totals = lengths(whole)
    if max(totals) <= room:
        return Fitted(whole, totals)
    if side == "skip":
        return Fitted(None, totals)
    frame = max(totals) - len(document)
    keep = room - frame
    while keep >= 1:
        cut = document.keep(keep, side)
        totals = lengths(cut)
        excess = max(totals) - room
        if excess <= 0:
            return Fitted(cut, totals)
        keep -= excess
    raise ContextLengthError(
        f"The context is too small: instructions and question alone take {frame} tokens and "
        f"{max(room, 0)} are left for the prompt after the tokens to generate. Give a larger "
        "context_length or a smaller max_gen_toks."
    )


def _fit_words(
    document: Document, lengths: Callable[[Cut], tuple[int, ...]], room: int, side: str
) -> Fitted:
    if side not in ("right", "left"):
        raise SettingError(
            f"truncation: {side!r} does not go with truncation_unit 'words', L-Eval's own cut; "
            "allowed: right, left"
        )
    cut = official_cut(document, room, side)
    totals = lengths(cut)
    if max(totals) > room:
        raise ContextLengthError(
            f"A prompt has {max(totals)} tokens and {room} fit: L-Eval's own cut does not count "
            "frame and question. Give a larger max_length than context_length, or leave "
            "truncation_unit at 'tokens'."
        )
    return Fitted(cut, totals)


def official_cut(document: Document, budget: int, side: str) -> Cut:
    """L-Eval's own cut: drop words until the document's tokens fit, 250 more at each step.

    Args:
        document: the tokenised document.
        budget: tokens that the document may have, special tokens included.
        side: `right` keeps the beginning, `left` the end.
    """
    tokenizer = document.tokenizer
    specials = int(tokenizer.num_special_tokens_to_add())
    text, dropped = document.text, 0
    tokens = len(document) + specials
    while tokens > budget:
        count = budget - dropped
        if count < 1:
            raise ContextLengthError(
                f"No word of the document fits a document budget of {budget} tokens."
            )
        words = text.split(" ")
        text = " ".join(words[:count] if side == "right" else words[-count:])
        dropped += OFFICIAL_STEP
        tokens = len(token_offsets(tokenizer, text)) + specials
    if text == document.text:
        return document.keep(len(document), side)
    length, total = len(text), len(document.text)
    span = (0, length) if side == "right" else (total - length, total)
    kept = tokens - specials
    head, tail = (kept, 0) if side == "right" else (0, kept)
    return Cut((span,), head, tail, truncated=True)
