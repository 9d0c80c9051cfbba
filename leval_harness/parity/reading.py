"""What a setup says of a text, and the interface of what reads."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

TOP = 20
"""Most probable tokens that are kept at each position; vLLM's servers give no more by default."""

DENSE = 32
"""Positions of a text at which the whole distribution is kept, where a setup gives it."""

Messages = list[dict[str, str]]
Floats32 = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Reading:
    """Log-probabilities of a text of `T` tokens; index `t` is of token `t + 1` after those before.

    Attributes:
        logprob: natural logarithm of each token's probability, float32 `[T - 1]`.
        top_ids: the most probable tokens, int32 `[T - 1, k]`, descending.
        top: their log-probabilities, float32 `[T - 1, k]`.
        dense: log-probabilities of the whole vocabulary at `dense_positions(T)`, float32
            `[DENSE, V]`; None where the setup does not give them.
    """

    logprob: Floats32
    top_ids: Ids
    top: Floats32
    dense: Floats32 | None = None

    def save(self, path: Path) -> None:
        """Write to a file, which appears whole or not at all."""
        temporary = path.with_suffix(".part")
        fields = {name: value for name, value in vars(self).items() if value is not None}
        with temporary.open("wb") as file:
            np.savez(file, **fields)
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote."""
        with np.load(path, allow_pickle=False) as content:
            return cls(**dict(content))


def dense_positions(tokens: int) -> npt.NDArray[np.intp]:
    """Evenly spaced indices of predictions of a text of `tokens` tokens, at most `DENSE`."""
    return np.unique(np.linspace(0, tokens - 2, min(DENSE, tokens - 1)).astype(np.intp))


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
    def read(self, rows: Sequence[list[int]]) -> Iterator[Reading]:
        """Score texts, in their order."""

    @abstractmethod
    def generate(self, ids: list[int], tokens: int) -> list[int]:
        """Greedy continuation."""

    def close(self) -> None:  # noqa: B027 - most readers have nothing to end
        """End what the reader started."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What is worth recording of the loaded setup."""
