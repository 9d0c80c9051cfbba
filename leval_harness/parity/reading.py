"""What a setup says of a text, and the interface of what reads."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from resonance_vllm.errors import UserError

TOP = 20
"""Most probable tokens that are kept at each position; vLLM's servers give no more by default."""

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
    """

    logprob: Floats32
    top_ids: Ids
    top: Floats32

    def first(self, tokens: int) -> "Reading":
        """The reading of the first tokens of the text: what stands later changes nothing."""
        end = tokens - 1
        return Reading(self.logprob[:end], self.top_ids[:end], self.top[:end])

    def checked(self, name: str) -> "Reading":
        """Itself; a log-probability that is not a finite number is a `UserError`."""
        for at in np.flatnonzero(~np.isfinite(self.logprob))[:1]:
            where = f"position {at + 1} of {len(self.logprob) + 1}"
            raise UserError(f"{name}: log-probability {self.logprob[at]} at {where}")
        return self


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
    def facts(self) -> dict[str, Any]:
        """What is worth recording of the loaded setup."""

    def close(self) -> None:  # noqa: B027 - most readers have nothing to end
        """End what the reader started."""


def of_logprobs(logprob: Floats32, targets: Sequence[int]) -> Reading:
    """The reading of consecutive positions from whole distributions.

    Args:
        logprob: float32 `[P, V]`.
        targets: the tokens that follow, `[P]`.

    Raises:
        UserError: a token is outside of the vocabulary.
    """
    goal = np.asarray(targets)
    if goal.max() >= logprob.shape[1]:
        raise UserError(
            f"token {goal.max()} is outside of the vocabulary of {logprob.shape[1]} tokens: the "
            "setups have different tokenizers"
        )
    best = np.argsort(-logprob, axis=1, kind="stable")[:, :TOP]
    top = np.take_along_axis(logprob, best, 1)
    return Reading(logprob[np.arange(len(goal)), goal], best.astype(np.int32), top)


def of_entries(entries: Sequence[dict[int, float]], row: Sequence[int]) -> Reading:
    """The reading of a text from a dictionary a position: the top tokens and the text's own.

    Raises:
        UserError: a position is missing, or the text's own token is.
    """
    if len(entries) != len(row) - 1:
        raise UserError(
            f"{len(entries)} of {len(row) - 1} positions were scored: the prompt was cut; allowed: "
            "shorter --lengths, or a setup that reads more"
        )
    logprob = np.empty(len(entries), np.float32)
    k = min(TOP, min(map(len, entries)))
    top_ids, top = np.empty((len(entries), k), np.int32), np.empty((len(entries), k), np.float32)
    for at, (found, token) in enumerate(zip(entries, row[1:], strict=True)):
        if token not in found:
            raise UserError(f"position {at + 1}: token {token} of the text was not scored")
        logprob[at] = found[token]
        best = sorted(found, key=lambda each: -found[each])[:k]
        top_ids[at], top[at] = best, [found[each] for each in best]
    return Reading(logprob, top_ids, top)


def joined(parts: Sequence[Reading]) -> Reading:
    """The reading of consecutive parts."""
    fields = ("logprob", "top_ids", "top")
    return Reading(*(np.concatenate([getattr(part, name) for part in parts]) for name in fields))
