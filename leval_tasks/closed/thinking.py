"""The thinking of reasoning models: where it begins and ends, and what remains without it.

A response whose thinking was cut off by the generation limit holds no answer, whoever removes the
thinking. A
backend that removes it (`think_end_token` of lm-eval's models) returns a cut thought as it is, and
nothing in the
text says what it is. So the task asks such a backend for whole responses and removes the thinking
itself.
"""

import re
from collections.abc import Sequence
from typing import Any

PROMPT_TAIL = 100
"""Characters at a prompt's end in which a chat template opens the thinking."""

THINKING = {
    "</think>": "<think>",
    "</thinking>": "<thinking>",
    "</thought>": "<thought>",
    "</seed:think>": "<seed:think>",
    "[/THINK]": "[THINK]",
    "◁/think▷": "◁think▷",
    "<|END_THINKING|>": "<|START_THINKING|>",
    "<|end_of_thought|>": "<|begin_of_thought|>",
    "<|channel|>final<|message|>": "<|channel|>analysis<|message|>",
}
"""Mark that ends thinking -> mark that begins it, in the templates of published models."""

WHOLE_RESPONSES = "whole_responses"
"""lm-eval's kind of a request that `whole_responses` answers."""


def remove_thinking(response: str, end_mark: str, *, opened: bool = False) -> tuple[str, bool]:
    """Return the answer in a response, and whether anything was removed.

    Args:
        response: what the model generated.
        end_mark: the mark that ends the thinking. An empty one keeps everything.
        opened: whether the prompt already opened the thinking, see `opens_thinking`.

    Returns:
        what follows the last mark, without leading white space; empty where the thinking never
        ends.
    """
    if thinking_unfinished(response, end_mark, opened=opened):
        return "", True
    if end_mark and end_mark in response:
        return response.rsplit(end_mark, 1)[1].lstrip(), True
    return response, False


def thinking_unfinished(response: str, end_mark: str, *, opened: bool = False) -> bool:
    """Return whether a response ends inside its thinking, so that it holds no answer.

    Thinking may have ended before: a begin mark at the start of a line after the last end mark
    opens it again.

    Args:
        response: what the model generated.
        end_mark: the mark that ends the thinking. With an empty one there is no thinking.
        opened: whether the prompt already opened the thinking.
    """
    if not end_mark:
        return False
    begin_mark = _begin_mark(end_mark)
    _, ended, rest = response.rpartition(end_mark)
    if opened and not ended:
        return True
    if not begin_mark:
        return False
    line_start = r"(^|\n)\s*" if ended else r"\A\s*"
    return re.search(line_start + re.escape(begin_mark), rest) is not None


def opens_thinking(prompt: str, end_mark: str) -> bool:
    """Return whether a prompt's last words open the thinking, as some chat templates do for the model."""
    begin_mark = _begin_mark(end_mark)
    if not begin_mark:
        return False
    tail = prompt[-PROMPT_TAIL:]
    return tail.rfind(begin_mark) > tail.rfind(end_mark)


def _begin_mark(end_mark: str) -> str:
    """Return `<think>` for `</think>`; empty for a mark that has no counterpart."""
    if end_mark in THINKING:
        return THINKING[end_mark]
    without_slash = end_mark.replace("/", "", 1)
    return "" if without_slash == end_mark else without_slash


def backend_mark(lm: Any, tokenizer: Any) -> str | None:
    """Return the mark that ends the thinking, of a backend that removes it from its answers.

    Such a backend was given `think_end_token`, and cuts an answer up to this mark.

    Args:
        lm: the running model; None outside of an evaluation.
        tokenizer: its tokenizer, which decodes a mark given as a token id.

    Returns:
        the mark; empty where decoding drops it, so that only the backend can see it; None for a
        model that removes nothing.
    """
    mark = getattr(lm, "think_end_token", None)
    if isinstance(mark, int):
        return str(tokenizer.decode([mark], skip_special_tokens=True))
    return mark or None


def whole_responses(lm: Any, requests: Sequence[Any]) -> list[str]:
    """Return the responses of lm-eval's model with their thinking in them."""
    mark = lm.think_end_token
    lm.think_end_token = None
    try:
        responses: list[str] = lm.generate_until(requests)
    finally:
        lm.think_end_token = mark
    return responses
