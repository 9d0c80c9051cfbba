"""Prompts as a backend takes them: messages through a chat template or a server, or plain text."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Message = dict[str, str]
"""A message of a chat: `role` and `content`."""

ChatTemplate = Callable[..., Any]
"""What lm-eval passes to a task: takes messages, returns the rendered prompt, or messages for a server."""

ROLES = {"system": "System", "user": "User", "assistant": "Assistant"}
"""What precedes a message where several are written as plain text."""


class Rendered(NamedTuple):
    """A prompt.

    Attributes:
        argument: what lm-eval's model takes.
        text: the same as text, for counting tokens.
    """

    argument: Any
    text: str


def template_of(kwargs: Any) -> ChatTemplate | None:
    """Return the chat template that lm-eval applies, if it applies one, from a task's arguments."""
    return kwargs.get("chat_template") if kwargs.get("apply_chat_template") else None


def rendered(messages: Sequence[Message], template: ChatTemplate, tokenizer: Any) -> Rendered:
    """Return a chat as a prompt.

    A last message of the assistant is the beginning of the answer.

    Args:
        messages: the chat.
        template: lm-eval's chat template.
        tokenizer: renders messages in place of a chat server.
    """
    is_begun = messages[-1]["role"] == "assistant"
    argument = template(list(messages), add_generation_prompt=not is_begun)
    if isinstance(argument, str):
        return Rendered(argument, argument)
    if not getattr(tokenizer, "chat_template", None):
        return Rendered(argument, "\n".join(message["content"] for message in messages))
    text = tokenizer.apply_chat_template(
        list(messages),
        tokenize=False,
        add_generation_prompt=not is_begun,
        continue_final_message=is_begun,
    )
    return Rendered(argument, str(text))


def count_tokens(tokenizer: Any, texts: Sequence[str]) -> list[int]:
    """Return the number of tokens of each text, with special tokens unless the texts begin with BOS."""
    encoding = tokenizer(list(texts), add_special_tokens=not begins_with_bos(tokenizer, texts[0]))
    return [len(ids) for ids in encoding["input_ids"]]


def begins_with_bos(tokenizer: Any, text: str) -> bool:
    """Return whether a text begins with the token that a tokenizer puts before texts, if it has one."""
    bos = getattr(tokenizer, "bos_token", None) or ""
    return bool(bos) and text.startswith(bos)
