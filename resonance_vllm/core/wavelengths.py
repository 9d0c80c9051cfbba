"""How Resonance chooses wavelengths: its settings, and the pure function behind them. No torch.

A feature whose wavelength is a fraction P/q takes P different phases, all of them within P tokens:
with a period P of at most the trained length L it has no feature gap (Theorem 1 of
arXiv 2403.00071, which has q = 1). Two features are back at the same pair of phases after the least
common multiple of their periods. Integers nearest to the wavelengths share many divisors (6, 8, 15
and 20 divide 120), so that tokens that far apart look alike; the rules of this project keep the
periods pairwise coprime.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from resonance_vllm.core.method import Tokens
from resonance_vllm.errors import RopeConfigError
from resonance_vllm.settings import Settings

if TYPE_CHECKING:
    import numpy as np

LONGEST = 2**53
"""Integers up to here are exact in float64, and no position comes near."""
LONGEST_TRAINED = 2**24
"""Rules look at every period up to the trained length; the longest published one is 10,485,760."""
PRIME_BOUND, COPRIME_BOUND = 1.05, 1.125
"""Largest ratio to the base method's wavelength that a rule pays for distinct periods."""
SHORTEST_SHARE = 3
"""Prime periods are above L/3: two of them meet again after more than L*L/9 tokens only."""
KEPT_SETS, NEAREST = 128, 16
"""Coprime sets followed at a time, and integers tried for each feature of one."""

Turn = tuple[int, int]
"""Period P and turns q of a wavelength P/q in tokens; (0, 0) is the base method's wavelength."""


class Resonance(Settings):
    """Keys that every `resonance*` type has beside those of its method."""

    wavelengths: Literal["integer", "coprime", "prime_period", "rational"] = Field(
        default="integer",
        description="Rounded to integers (the paper), to pairwise coprime ones, to P/q with "
        "distinct prime P, or to the nearest P/q with P up to L.",
    )
    original_max_position_embeddings: Tokens | None = Field(
        default=None, description="Trained length L in tokens."
    )

    def needs_length(self) -> bool:
        """Whether wavelengths depend on the trained length."""
        return self.wavelengths != "integer"


def choose_wavelengths(rule: str, lengths: Sequence[float], original: int | None) -> list[Turn]:
    """The rational wavelengths that a rule of `Resonance.wavelengths` puts for given ones.

    `integer`: the nearest integer of each, at any length.

    `rational`: the nearest P/q of each wavelength below L, with P up to L.

    `prime_period` and `coprime` change wavelengths below L too. The sum of squared log errors is
    minimised over all features together. `prime_period`: P/q with distinct prime P above L/3 and up
    to L (with more features than such primes, as many of the largest primes as there are features)
    and q = round(P/wavelength). `coprime`: pairwise coprime integers up to L. A feature for which
    that would change the wavelength by more than 5 % (`coprime`: 12.5 %) counts as an error of that
    bound and gets the nearest P/q with P up to L (`coprime`: the nearest integer).

    Args:
        rule: one of `integer`, `coprime`, `prime_period`, `rational`.
        lengths: wavelengths in tokens, above 0; infinite where a feature does not turn.
        original: trained length L in tokens; `integer` needs none.

    Returns:
        Period and turns of each.

    Raises:
        RopeConfigError: `original` is missing or above `LONGEST_TRAINED`.
    """
    if rule == "integer":
        return [(0, 0) if math.isinf(length) else _nearest_integer(length) for length in lengths]
    if original is None:
        raise RopeConfigError(
            f"original_max_position_embeddings: missing; wavelengths {rule!r} needs the trained "
            "length"
        )
    if original > LONGEST_TRAINED:
        raise RopeConfigError(
            f"original_max_position_embeddings: {original} is not allowed with wavelengths "
            f"{rule!r}; allowed: up to {LONGEST_TRAINED:,}"
        )
    below = [j for j, length in enumerate(lengths) if length < original]
    turns: list[Turn] = [(0, 0)] * len(lengths)
    found = _CHOICES[rule](tuple(lengths[j] for j in below), original)
    for j, turn in zip(below, found, strict=True):
        turns[j] = turn
    return turns


def _nearest_integer(length: float) -> Turn:
    return min(max(round(length), 1), LONGEST), 1


@lru_cache(maxsize=256)
def _nearest_fractions(lengths: tuple[float, ...], original: int) -> list[Turn]:
    return [_nearest_fraction(length, original) for length in lengths]


@lru_cache(maxsize=256)
def _prime_periods(lengths: tuple[float, ...], original: int) -> list[Turn]:
    """Distinct prime periods by the Hungarian method; the bound is a choice of its own."""
    import numpy as np
    from scipy.optimize import linear_sum_assignment

    primes = _primes(original)
    above = int((primes > original / SHORTEST_SHARE).sum())
    primes = primes[len(primes) - min(len(primes), max(above, len(lengths))) :]
    # Of an optimum with n features each takes one of its n best primes.
    best = {i for length in lengths for i in _errors(primes, length).argsort()[: len(lengths)]}
    primes = primes[sorted(best)]
    errors = np.array([_errors(primes, length) for length in lengths]).reshape(-1, len(primes))
    given_up = np.full((len(lengths), len(lengths)), math.log(PRIME_BOUND))
    rows, columns = linear_sum_assignment(np.hstack([errors, given_up]) ** 2)
    return [
        _fraction(int(primes[column]), lengths[row])
        if column < len(primes)
        else _nearest_fraction(lengths[row], original)
        for row, column in zip(rows, columns, strict=True)
    ]


def _errors(periods: "np.ndarray", length: float) -> "np.ndarray":
    """Absolute log error of the nearest P/q for each period P."""
    import numpy as np

    return np.abs(np.log(periods / np.maximum(np.round(periods / length), 1) / length))


def _fraction(period: int, length: float) -> Turn:
    """The nearest P/q for a period, in lowest terms."""
    turns = max(round(period / length), 1)
    common = math.gcd(period, turns)
    return period // common, turns // common


def _nearest_fraction(length: float, original: int) -> Turn:
    """The P/q nearest to a wavelength with P up to L, of equally near ones the shortest period."""
    import numpy as np

    return _fraction(int(_errors(np.arange(1, original + 1), length).argmin()) + 1, length)


def _primes(limit: int) -> "np.ndarray":
    """All primes up to a limit, ascending."""
    import numpy as np

    prime = np.ones(max(limit + 1, 2), dtype=bool)
    prime[:2] = False
    for number in range(2, math.isqrt(limit) + 1):
        if prime[number]:
            prime[number * number :: number] = False
    return prime.nonzero()[0]


@lru_cache(maxsize=256)
def _coprime_integers(lengths: tuple[float, ...], original: int) -> list[Turn]:
    """Pairwise coprime integers: the best partial sets are extended by a feature at a time."""
    given_up = math.log(COPRIME_BOUND)
    # Product of the integers so far -> the least sum of squared errors, and the integers.
    partial: Mapping[int, tuple[float, tuple[int, ...]]] = {1: (0.0, ())}
    for length in lengths:
        low = max(math.ceil(length / COPRIME_BOUND), 2)
        high = min(math.floor(length * COPRIME_BOUND), original)
        near = sorted(range(low, high + 1), key=lambda n: abs(math.log(n / length)))
        extended: dict[int, tuple[float, tuple[int, ...]]] = {}
        for product, (cost, chosen) in partial.items():
            nexts = [(product, cost + given_up**2, 0)]
            fitting = (n for n in near if math.gcd(product, n) == 1)
            nexts += [
                (product * n, cost + math.log(n / length) ** 2, n)
                for n in itertools.islice(fitting, NEAREST)
            ]
            for key, total, n in nexts:
                if key not in extended or total < extended[key][0]:
                    extended[key] = (total, (*chosen, n))
        kept = sorted(extended.items(), key=lambda each: (each[1][0], each[0]))
        partial = dict(kept[:KEPT_SETS])
    _, best = min(partial.values())
    return [
        (n, 1) if n else _nearest_integer(length) for n, length in zip(best, lengths, strict=True)
    ]


_CHOICES: Mapping[str, Callable[[tuple[float, ...], int], list[Turn]]] = {
    "prime_period": _prime_periods,
    "coprime": _coprime_integers,
    "rational": _nearest_fractions,
}
