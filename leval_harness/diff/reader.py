"""The interface through which a comparison reads a loaded setup."""

from abc import ABC, abstractmethod

from leval_tasks.common.token_logprobs import Logprobs

Messages = list[dict[str, str]]
"""A chat, as `apply_chat_template` of transformers takes it."""

CHAT: Messages = [
    {"role": "system", "content": "You answer briefly."},
    {"role": "user", "content": "Which river flows through Paris?"},
    {"role": "assistant", "content": "The Seine."},
    {"role": "user", "content": "And through Vienna? Think of 3 names: \"Inn\", 'Donau', Raab."},
]
"""The chat that both templates render: a system message, several turns, quotation marks."""


class Reader(ABC):
    """A loaded setup that encodes documents and scores given tokens.

    Attributes:
        limit: the longest sequence in tokens that the setup can score; None if it is not known.
    """

    limit: int | None

    @abstractmethod
    def encode(self, text: str) -> list[int] | None:
        """Return the token ids of a text, BOS included, or None if the setup does not expose them."""

    @abstractmethod
    def template(self, messages: Messages) -> list[int] | None:
        """Return the token ids of a chat, ready for the model's answer.

        Returns:
            An empty list if the setup has no chat template; None if it does not expose one.
        """

    @abstractmethod
    def read(self, tokens: list[int]) -> Logprobs:
        """Return the log-probability of every token but the first, given the tokens before it.

        Args:
            tokens: token ids of one document.

        Returns:
            Natural logarithms, float32 `[len(tokens) - 1]`.

        Raises:
            UserError: the setup cannot score these tokens.
        """

    def close(self) -> None:  # noqa: B027 - most readers have nothing to release
        """Release what the reader holds, such as the process of an engine."""
