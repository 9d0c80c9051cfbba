"""Does setup B lose as many nats as setup A on the same tokens? A sequential equivalence test.

`difference = loss of B - loss of A` for each token of texts of equal length; positive is worse.
The text is the unit of chance. Positions are cut into bins that double in length, so that damage
that grows with the length is seen. After 4, 8, 16, … texts (the *looks*) the verdict is one of:

- *same*: in every bin, and over all positions, two one-sided tests (TOST) show that the mean
  difference lies within `±margin`. All tests have to succeed, so that only the looks are corrected
  for (Berger 1982). A difference that is shown and lies within the margin is "same, measurably
  worse".
- *worse*: not same, and a lower bound lies above zero, over all positions or in a bin. All
  positions and the bins share the level by Hochberg's procedure, which shows a shift that several
  of them see at a higher level than one that a single one sees. The level that is spent up to a
  look grows with the square of its texts, since few texts show little (Kim and DeMets 1987).
  At a look that is not the last one, the estimate has to lie above the margin too: otherwise more
  texts may still show that it is the same.
- *better*: the mirror image, if no part is worse.
- *undecided*: none of these; `more_texts` estimates how many more would decide.

`benchmarks/equivalence_simulation.py` measures the error rates on real differences.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import special

from leval_tasks.statistics.by_document import Floats
from leval_tasks.statistics.skewed_t import FEWEST, MARGIN, SkewedMean

LEVEL = 0.05
"""Probability of a wrong "worse" at no difference, and of a wrong "same" beyond the margin."""

FIRST_LOOK = 4
"""Texts at the first look; every further look doubles them."""

FIRST_BIN = 512
"""Tokens of the first bin, or a quarter of the length where that is less."""

MOST_TEXTS = 4096
"""`more_texts` is not given beyond this number."""

Bound = Callable[[float], float]
Answer = Literal["same", "worse", "better", "undecided"]


@dataclass(frozen=True, slots=True)
class Part:
    """The mean difference between two positions.

    Attributes:
        start, end: positions in tokens from the start of the text.
        difference: nats a token, positive where B is worse.
        low, high: bounds at the levels that tell whether the difference is zero. The probability
            that any bound of a side, at any look, is wrong about zero is at most `LEVEL`.
        same_low, same_high: interval of the equivalence test.
    """

    start: int
    end: int
    difference: float
    low: float
    high: float
    same_low: float
    same_high: float

    def within(self, margin: float) -> bool:
        """Whether the equivalence test succeeds."""
        return -margin < self.same_low and self.same_high < margin


@dataclass(frozen=True, slots=True)
class Equivalence:
    """What the texts read so far say.

    Attributes:
        verdict: see the module.
        whole: all positions.
        bins: by position.
        margin: nats a token.
        texts: how many were read by both.
        onset: the position from which B is worse (better), a point estimate; None for other
            verdicts.
        more_texts: estimate of how many more texts decide; None where it is decided, or where more
            than `MOST_TEXTS` were needed.
    """

    verdict: Answer
    whole: Part
    bins: tuple[Part, ...]
    margin: float
    texts: int
    onset: int | None
    more_texts: int | None

    @property
    def measurable(self) -> bool:
        """Whether a difference over all positions is shown, within the margin or not."""
        return self.whole.low > 0 or self.whole.high < 0


def bin_edges(length: int) -> list[int]:
    """Positions that bound the bins of texts of `length` tokens: 0, …, length/4, length/2, length.

    Raises:
        ValueError: fewer than 8 tokens.
    """
    if length < 8:
        raise ValueError(f"length: {length} tokens; allowed: at least 8")
    halvings = max(1, math.floor(math.log2(length / min(FIRST_BIN, length // 4))))
    return [0, *(length >> k for k in range(halvings, 0, -1)), length]


@dataclass(frozen=True, slots=True)
class Look:
    """A point at which it is decided whether to read on.

    Attributes:
        texts: how many are read by then.
        share: the part of the level that this look gets.
        last: whether no look follows.
    """

    texts: int
    share: float = 1.0
    last: bool = True


def looks_at(texts: int) -> list[Look]:
    """Looks after 4, 8, 16, … and after all `texts`.

    The shares of the level up to `n` texts are `(n / texts)^2`, spent by Bonferroni's inequality.
    """
    sizes = [FIRST_LOOK << k for k in range(max(texts, 1).bit_length()) if FIRST_LOOK << k < texts]
    sizes.append(texts)
    return [
        Look(size, (size**2 - before**2) / texts**2, last=size == texts)
        for before, size in itertools.pairwise([0, *sizes])
    ]


def equivalence(
    differences: Floats,
    edges: Sequence[int],
    *,
    margin: float = MARGIN,
    share: float = 1.0,
    lengths: int = 1,
    last: bool = True,
) -> Equivalence:
    """The verdict at one look.

    Args:
        differences: `[G, T]`, loss of B minus loss of A, nats; token `t` of a text is at position
            `t + 1`, since nothing stands before the first token.
        edges: positions that bound the bins, ascending, from 0 to `T + 1`.
        margin: nats a token; a smaller difference counts as none.
        share: the part of the level that this look gets, see `Look`.
        lengths: how many lengths of texts are tested beside each other; "worse" at any of them
            counts, so the level is divided by their number.
        last: whether this is the last look.

    Raises:
        ValueError: fewer texts than `FEWEST`, or a difference that is not finite.
    """
    if len(differences) < FEWEST or not np.isfinite(differences).all():
        raise ValueError(f"differences: at least {FEWEST} texts and finite numbers are needed")
    bounds = [max(edge - 1, 0) for edge in edges]
    level = share * LEVEL / lengths
    cuts = [(0, bounds[-1]), *itertools.pairwise(bounds)]
    means = [differences[:, start:end].mean(axis=1) for start, end in cuts]
    equal = np.ones(len(differences))
    lower, upper = (
        [SkewedMean.of(side * each, equal).lower_bound for each in means] for side in (1, -1)
    )
    low, high = _step_up(lower, level), _step_up(upper, level)
    whole, *bins = parts = [
        Part(
            start=start,
            end=end,
            difference=float(mean.mean()),
            low=below(low),
            high=0.0 - above(high),
            same_low=below(share * LEVEL),
            same_high=0.0 - above(share * LEVEL),
        )
        for (start, end), mean, below, above in zip(
            [(0, edges[-1]), *itertools.pairwise(edges)], means, lower, upper, strict=True
        )
    ]
    least = 0.0 if last else margin
    worse = [each for each in parts if each.low > 0 and each.difference > least]
    better = [each for each in parts if each.high < 0 and each.difference < -least]
    verdict: Answer = "undecided"
    if all(each.within(margin) for each in parts):
        verdict = "same"
    elif worse or better:
        verdict = "worse" if worse else "better"
    shown = {"worse": worse, "better": better}.get(verdict)
    sign = 1.0 if verdict == "worse" else -1.0
    more = _more_texts(means, margin, level / len(parts)) if verdict == "undecided" else None
    return Equivalence(
        verdict=verdict,
        whole=whole,
        bins=tuple(bins),
        margin=margin,
        texts=len(differences),
        onset=onset(sign * differences.mean(axis=0), bins, shown) if shown else None,
        more_texts=more,
    )


def _step_up(bounds: Sequence[Bound], level: float) -> float:
    """The level of each of several lower bounds, by Hochberg's procedure (Biometrika 75, 1988).

    All `m` get the level if all lie above zero with it; else half of it if `m - 1` do so with half,
    and so on; `level / m`, which is Bonferroni's, if none does. It holds for tests that depend
    positively, as those of overlapping or neighbouring stretches of a text do.
    """
    for k in range(1, len(bounds)):
        if sum(bound(level / k) > 0 for bound in bounds) > len(bounds) - k:
            return level / k
    return level / len(bounds)


def onset(mean: Floats, bins: Sequence[Part], shown: Sequence[Part]) -> int:
    """The position from which a shift begins: a point estimate up to the first bin that shows it.

    It minimises the running sum of `mean - shift / 2`, which for a step from 0 to `shift` in normal
    noise is the maximum-likelihood position. `shift` is the largest mean of a bin. The search
    begins with the first bin that shows a shift, or earlier: bins right before it with more than
    half of the largest one are as much a part of it, too short to show it alone. It ends with the
    first bin that shows a shift and has more than half of the largest one.

    Args:
        mean: `[T]`, mean over texts of the difference in the direction of the verdict.
        bins: all bins.
        shown: the parts in which a shift is shown; where no bin is, the bin with the largest mean
            counts.
    """
    size = [float(mean[max(b.start - 1, 0) : b.end - 1].mean()) for b in bins]
    shift = max(size)
    seen = [i for i, each in enumerate(bins) if each in shown] or [size.index(shift)]
    first = seen[0]
    last = next((i for i in seen if size[i] > shift / 2), size.index(shift))
    while first > 0 and size[first - 1] > shift / 2:
        first -= 1
    begin = bins[first].start
    start, end = max(begin - 1, 0), bins[last].end - 1
    at = int(np.argmin(np.append(0.0, np.cumsum(mean[start:end] - shift / 2))))
    return begin if at == 0 else min(start + at + 1, bins[last].end)


def _more_texts(means: Sequence[Floats], margin: float, level: float) -> int | None:
    """Texts that would decide if mean and spread stayed as they are: "same", or a shift."""
    needed = [_needed(each, margin, level) for each in means]
    same, shifted = max(each[0] for each in needed), min(each[1] for each in needed)
    texts = min(same, shifted)
    return None if texts > MOST_TEXTS else max(1, math.ceil(texts) - means[0].size)


def _needed(means: Floats, margin: float, level: float) -> tuple[float, float]:
    """Texts for "within the margin" and for "shifted", normal approximation; infinite if never."""
    mean, spread = abs(float(means.mean())), float(means.std(ddof=1))
    within, apart = (-float(special.ndtri(each)) for each in (LEVEL, level))
    room = margin - mean
    same = (within * spread / room) ** 2 + 2 if room > 0 else math.inf
    shifted = (apart * spread / mean) ** 2 + 2 if mean > 0 else math.inf
    return same, shifted
