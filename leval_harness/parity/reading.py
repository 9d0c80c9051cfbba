"""The interface of what reads."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from leval_tasks.token_logprobs import Logprobs

Messages = list[dict[str, str]]


class Reader(ABC):
    """A loaded setup.

    Attributes:
        limit: most tokens of a text; None where it is not known.
    """

    limit: int | None

    @abstractmethod
    def encode(self, text: str) -> list[int] | None:
        """Token ids as this setup makes them of a text, BOS included; None: it cannot say."""

    @abstractmethod
    def template(self, messages: Messages) -> list[int] | None:
        """Token ids of a chat, rendered for an answer; [] without a template, None: unknown."""

    @abstractmethod
    def read(self, rows: Sequence[list[int]]) -> Iterator[Logprobs]:
        """Natural logarithm of the probability of each token but the first, text after text."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What is worth recording of the loaded setup."""

    def close(self) -> None:  # noqa: B027 - most readers have nothing to end
        """End what the reader started."""
