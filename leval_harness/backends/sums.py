"""What is answered to a log-likelihood request: a number that remembers its parts."""

from collections.abc import Sequence
from typing import Self


class SumOfLogprobs(float):
    """The sum of some tokens' log-probabilities, as lm-eval wants it, and each of them.

    Attributes:
        logprobs: natural logarithms, a token each.
    """

    logprobs: tuple[float, ...]

    def __new__(cls, total: float, logprobs: Sequence[float] = ()) -> Self:
        """A float with an attribute; pickling calls this with the float alone."""
        self = super().__new__(cls, total)
        self.logprobs = tuple(logprobs)
        return self
