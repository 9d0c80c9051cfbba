"""Numbers as readers see them: one minus sign, and the same digits down a column."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

MINUS = "−"
NOTHING = "–"
"""A cell without a number."""

IDENTICAL = "identical"
"""A difference of exactly zero on every token: two methods that compute the same."""

UNKNOWN = "unknown"
"""An end of an interval that one block alone does not have."""

FEW_DIGITS = 3
MORE_DIGITS = 4
SMALL = 0.0095
"""Nats/token: a difference below it gets a digit more."""


@dataclass(frozen=True)
class Estimate:
    """A difference with its interval, nats/token; positive is worse.

    Attributes:
        mean: method minus baseline.
        low: lower end of the interval.
        high: upper end of the interval.
    """

    mean: float
    low: float
    high: float

    @classmethod
    def of_row(cls, row: pd.Series) -> "Estimate":
        """Return the difference of a row of the compared frame."""
        return cls(float(row["difference"]), float(row["diff_low"]), float(row["diff_high"]))

    @property
    def is_significant(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0

    @property
    def is_exactly_zero(self) -> bool:
        """Whether both losses are the same everywhere: a method beside itself."""
        return self.mean == self.low == self.high == 0

    def text(self, digits: int) -> str:
        """Return `+0.025 [0.019, 0.031]`."""
        return f"{self.mean_text(digits)} {self.interval_text(digits)}"

    def mean_text(self, digits: int) -> str:
        """Return the mean with its sign."""
        return number_text(self.mean, digits, signed=True)

    def interval_text(self, digits: int) -> str:
        """Return `[0.019, 0.031]`."""
        if not math.isfinite(self.low) or not math.isfinite(self.high):
            return f"[{UNKNOWN}]"
        return f"[{number_text(self.low, digits)}, {number_text(self.high, digits)}]"

    def range_text(self, digits: int) -> str:
        """Return `0.019 to 0.031`, for use in a sentence."""
        if not math.isfinite(self.low) or not math.isfinite(self.high):
            return f"interval {UNKNOWN}"
        return f"{number_text(self.low, digits)} to {number_text(self.high, digits)}"


def number_text(value: float, digits: int, signed: bool = False) -> str:
    """Return a number with a typographic minus; a rounded zero has no sign."""
    text = f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"
    if float(text) == 0:
        return text.lstrip("+-")
    return text.replace("-", MINUS)


def digits_of(estimates: Iterable[Estimate | None]) -> int:
    """Return the digits of a column: one more where one of its differences is below 0.01."""
    known = [estimate for estimate in estimates if estimate is not None]
    # A method that is its own reference has a difference of exactly zero, in any digits.
    sizes = [abs(estimate.mean) for estimate in known if not estimate.is_exactly_zero]
    if sizes and min(sizes) < SMALL:
        return MORE_DIGITS
    return FEW_DIGITS


def tokens_text(tokens: float) -> str:
    """Return `11,264`."""
    return f"{tokens:,.0f}"


def range_of_tokens(start: float, end: float) -> str:
    """Return `9,728–11,264`."""
    return f"{tokens_text(start)}–{tokens_text(end)}"


def joined_names(names: Iterable[str], word: str) -> str:
    """Return `a`, `a or b`, `a, b or c`; `word` precedes the last."""
    listed = list(names)
    if len(listed) < 2:
        return "".join(listed)
    return f"{', '.join(listed[:-1])} {word} {listed[-1]}"
