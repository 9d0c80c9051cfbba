"""One-sided t tests of a mean over few, skewed units of chance.

By Hall's correction for skewness, a third-order transformation of t: P. Hall, "On the removal of
skewness by transformation", J. R. Stat. Soc. B 54 (1992). Where a few units lie high the plain test
errs too often; where one lies low it sees spread in place of an effect, and of eight texts that all
gained could not tell that nothing was lost.
"""

from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from leval_tasks.statistics.by_document import Floats, linearised_ratio

MARGIN = 0.01
"""Nats a token: a smaller difference is none."""

SHOWN_AT = 0.01
"""Level of the one-sided tests that show an effect to be below a threshold."""

REFUSED_AT = 0.005
"""Level of those that refuse a length, all steps or bins together.

Both ends together may miss the true length in 5% of samples. Where a few units are unlike the rest,
those that were drawn often hold none of them and seem to agree: if the few lose (gain) much, t
tests at a nominal 2.5% lengthen a length in 8% of samples (shorten it in 11%), at these levels
either in 5% (docs/reports/reach.md).
"""

FEWEST = 3
"""Units below which nothing is tested."""


@dataclass(frozen=True, slots=True)
class SkewedMean:
    """The mean of some units of chance, with what the tests of it need.

    Attributes:
        mean: nats a token, `[...]`.
        stderr, df: its standard error and degrees of freedom, see `linearised_ratio`.
        skewness: of the units about the mean, over the root of their number.
        units: how many there are.
    """

    mean: Floats
    stderr: Floats
    df: Floats
    skewness: Floats
    units: int

    @classmethod
    def of(cls, sums: Floats, tokens: Floats) -> "SkewedMean":
        """From the total of each unit, nats, `[..., U]`, and its tokens, `[U]`."""
        return cls(*linearised_ratio(sums, tokens), _skewness(sums, tokens), sums.shape[-1])

    def one_sided(self, threshold: float) -> tuple[Floats, Floats]:
        """Whether the true mean is shown to be below a threshold, or above it.

        To be above it, which takes a length away, the larger p of the plain and the corrected t
        counts; of three units, whose skewness is next to nothing known, the plain one, since the
        correction makes a t of three of one of ten.

        Args:
            threshold: nats a token.

        Returns:
            p against a mean at the threshold or above it, and p against one below it, `[...]` each;
            one half where units are too few.
        """
        if self.units < FEWEST:
            unknown = np.full(self.mean.shape, 0.5)
            return unknown, unknown
        distance = self.mean - threshold
        with np.errstate(divide="ignore", invalid="ignore"):
            t = distance / self.stderr
            corrected = _corrected(t, self.skewness)
            below = stats.t.cdf(corrected, self.df)
            above = stats.t.sf(t, self.df)
            if self.units > FEWEST:
                above = np.maximum(above, stats.t.sf(corrected, self.df))
        # Where all units agree to the last bit there is no spread to divide by.
        certain = np.heaviside(distance, 0.5)
        spread = self.stderr > 0
        return np.where(spread, below, certain), np.where(spread, above, 1 - certain)

    def lower_bound(self, level: float) -> float:
        """The threshold above which the mean is shown to lie, at a one-sided level.

        The lower of the bounds by the plain and the corrected t, as in `one_sided`. An upper bound
        is that of `-sums` with its sign changed. The mean itself where all units agree to the last
        bit. For one mean, of at least `FEWEST` units.
        """
        t = -float(special.stdtrit(self.df, level))  # what `stats.t.isf` calls, which is slower
        corrected = _uncorrected(t, float(self.skewness)) if self.units > FEWEST else t
        return float(self.mean) - float(self.stderr) * max(t, corrected)

    def deciding_thresholds(self) -> tuple[float | None, float | None]:
        """The thresholds at which the two tests of `one_sided` begin to decide, low one first.

        Below the first the mean is shown to be above it at `REFUSED_AT`, above the second to be
        below it at `SHOWN_AT`. For one mean; None where units are too few.
        """
        if self.units < FEWEST:
            return None, None
        shown = _uncorrected(-float(stats.t.isf(SHOWN_AT, self.df)), float(self.skewness))
        return self.lower_bound(REFUSED_AT), float(self.mean) - float(self.stderr) * shown


def _skewness(sums: Floats, tokens: Floats) -> Floats:
    """Skewness of the units about their mean, over the root of their number, `[...]`."""
    residuals = sums - (sums.sum(axis=-1) / tokens.sum())[..., None] * tokens
    spread = (residuals**2).mean(axis=-1) ** 1.5
    with np.errstate(divide="ignore", invalid="ignore"):
        skewness = np.where(spread > 0, (residuals**3).mean(axis=-1) / spread, 0.0)
    return np.asarray(skewness / np.sqrt(sums.shape[-1]))


def _corrected(t: Floats, a: Floats) -> Floats:
    """Hall's transformation of t, which takes the third moment out of its distribution."""
    return t + a * t**2 / 3 + a**2 * t**3 / 27 + a / 6


def _uncorrected(y: float, a: float) -> float:
    """The t that `_corrected`, which is ((1 + a t / 3)^3 - 1) / a + a / 6, takes to `y`."""
    return y if abs(a) < 1e-6 else 3 / a * float(np.cbrt(1 + a * (y - a / 6)) - 1)
