"""The thinking of reasoning models: where it begins and ends, and what remains without it."""

import re

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


def remove_thinking(response: str, end_mark: str, *, opened: bool = False) -> tuple[str, bool]:
    """What follows the last mark, without leading blanks, and whether anything was removed.

    An empty mark keeps everything. A response whose thinking never ends holds no answer: all of it
    is removed. `opened` is whether the prompt already opened the thinking, see `opens_thinking`.
    """
    if thinking_unfinished(response, end_mark, opened=opened):
        return "", True
    if end_mark and end_mark in response:
        return response.rsplit(end_mark, 1)[1].lstrip(), True
    return response, False


def thinking_unfinished(response: str, end_mark: str, *, opened: bool = False) -> bool:
    """Whether a response ends inside its thinking: the generation limit came before the answer.

    Earlier thinking may have ended: a mark at the start of a line after the last end opens another.
    """
    if not end_mark:
        return False
    mark, (_, ended, rest) = _begin_mark(end_mark), response.rpartition(end_mark)
    if opened and not ended:
        return True
    begins = r"(^|\n)\s*" if ended else r"\A\s*"
    return bool(mark) and re.search(begins + re.escape(mark), rest) is not None


def opens_thinking(prompt: str, end_mark: str) -> bool:
    """Whether a prompt's last words open the thinking, as some chat templates do for the model."""
    mark, tail = _begin_mark(end_mark), prompt[-PROMPT_TAIL:]
    return bool(mark) and tail.rfind(mark) > tail.rfind(end_mark)


def _begin_mark(end_mark: str) -> str:
    """`<think>` for `</think>`; empty for a mark without such a twin."""
    mark = end_mark.replace("/", "", 1)
    return THINKING.get(end_mark, "" if mark == end_mark else mark)
