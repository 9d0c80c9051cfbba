"""Effective context length from the gain of full context over a short window, token by token.

A text is read once in full and once in short windows. `gain = clip(short - full, ±1 nat)` exists
for every token past the first short window; its sums over blocks of 512 tokens are what the
functions here take. Positions are cut into bins. Three questions are answered:

- *No degradation up to p*: in every bin up to p the mean gain is shown to lie above `-margin`.
- *Benefits from context up to p*: in every bin up to p it is shown to lie above `+margin`.
- *Where does the model break?* A point estimate: the position at which the running sum of
  `gain + margin` is largest.

The first two are given for *these texts*, with blocks as units of chance, and for *texts like
these*, with texts as units. Both ends of an answer are one-sided tests. Low end: bins are shown in
order, each at `SHOWN_AT`, up to the first that is not; only the first bin that is truly below the
threshold can be shown wrongly, so that no correction is due. High end: a length is refused where
one of its `k` bins is shown to lie below the threshold at `REFUSED_AT / k` (Bonferroni).

The tests are those of `skewed_t`. `benchmarks/effective_context_simulation.py` measures their error
rates on real blocks.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from leval_tasks.statistics.clustered import Floats
from leval_tasks.statistics.skewed_t import (
    MARGIN,
    REFUSED_AT,
    SHOWN_AT,
    SkewedMean,
)

BLOCK = 512
"""Tokens of a block."""

BINS = 8
"""Bins of position from the start of a text to the longest length."""

CLIP = 1.0
"""Nats to which the gain of a token is clipped: gains are heavy-tailed."""

FEWEST_TEXTS = 13
"""Texts from which on texts like these are judged.

From fewer, a sample that holds none of the texts that lose, where one in four does, is drawn in
more than 2.5% of cases, and no test can see what it does not hold: 0.75 ** 12 = 3.2%.
"""

Verdict = Literal["shown", "refused", "undecided"]


@dataclass(frozen=True, slots=True)
class Bin:
    """The mean gain between two positions, over all texts that reach it.

    Attributes:
        start, end: positions, in tokens from the start of the text.
        gain: nats a token.
        low, high: the thresholds at which the tests of this bin alone begin to decide, at
            `SHOWN_AT` and `REFUSED_AT`; None where units are too few.
        units: blocks or texts that the tests rest on.
    """

    start: int
    end: int
    gain: float
    low: float | None
    high: float | None
    units: int


@dataclass(frozen=True, slots=True)
class Length:
    """The answer to "up to where?": an interval of positions.

    Attributes:
        shown: the position up to which every bin is shown; the end of the first window where none
            is.
        refused: the end of the first bin whose length is refused; None where none is.
        measured: the end of the last bin.
        start: the end of the first window, where measuring begins.
    """

    shown: int
    refused: int | None
    measured: int
    start: int

    @property
    def verdict(self) -> Verdict:
        """`shown` up to the end, `refused` somewhere, or `undecided`."""
        if self.refused is not None:
            return "refused"
        return "shown" if self.shown == self.measured else "undecided"


@dataclass(frozen=True, slots=True)
class EffectiveContext:
    """What some texts say of a model.

    Attributes:
        bins: the mean gain by position.
        no_degradation: up to which every bin lies above `-margin`.
        benefits: up to which every bin lies above `+margin`.
    """

    bins: tuple[Bin, ...]
    no_degradation: Length
    benefits: Length


def clipped_gain(short: Floats, full: Floats) -> Floats:
    """Gain of each token from full context, nats, clipped to ±`CLIP`.

    Args:
        short: `[T]`, loss of each token after a short window.
        full: `[T]`, loss of the same tokens after all of their text.
    """
    return np.clip(np.asarray(short, np.float64) - np.asarray(full, np.float64), -CLIP, CLIP)


def block_sums(gains: Floats) -> tuple[Floats, Floats]:
    """Sums of gains over blocks of `BLOCK` tokens, and tokens in them, `[B]` each.

    A last block of less than half the size is joined to the one before, so that no unit of chance
    is a handful of tokens.

    Args:
        gains: `[T]`, nats, of consecutive tokens.
    """
    edges = list(range(0, gains.size, BLOCK))
    if len(edges) > 1 and gains.size - edges[-1] < BLOCK / 2:
        edges.pop()
    sums = np.add.reduceat(gains, edges)
    return sums, np.diff([*edges, gains.size]).astype(np.float64)


def bin_edges(start: int, longest: int, bins: int = BINS) -> list[int]:
    """Positions that bound the bins past the first window, `start` first and `longest` last.

    Bins are an eighth of the longest length, laid from its end; what remains at the beginning is
    part of the first one.
    """
    width = longest / bins
    inner = [round(longest - width * k) for k in range(1, bins)]
    return [start, *sorted(edge for edge in inner if edge - start >= width / 2), longest]


@dataclass(frozen=True, slots=True)
class Blocks:
    """Block sums of all texts with where they are.

    Attributes:
        text: `[B]`, which text a block belongs to.
        end: `[B]`, the position at which it ends, in tokens from the start of its text.
        gain: `[..., B]`, sum of the clipped gains, nats.
        tokens: `[B]`.
    """

    text: npt.NDArray[np.integer[Any]]
    end: Floats
    gain: Floats
    tokens: Floats

    @classmethod
    def joined(cls, texts: Sequence[tuple[int, Floats, Floats]]) -> "Blocks":
        """Blocks of texts from where each begins, its sums of gains and its tokens, `[B]` each."""
        starts, gains, tokens = zip(*texts, strict=True)
        text = np.repeat(np.arange(len(texts)), [each.size for each in gains])
        ends = [start + np.cumsum(each) for start, each in zip(starts, tokens, strict=True)]
        return cls(text, *(np.concatenate(part) for part in (ends, gains, tokens)))

    def within(self, start: float, end: float) -> "Blocks":
        """Those whose middle lies between two positions."""
        middle = self.end - self.tokens / 2
        at = (middle > start) & (middle <= end)
        return Blocks(self.text[at], self.end[at], self.gain[..., at], self.tokens[at])

    def by_text(self) -> tuple[Floats, Floats]:
        """Sums of gains `[..., G]` and tokens `[G]` of each text that has blocks here."""
        names = np.unique(self.text)
        member = (self.text[None, :] == names[:, None]).astype(np.float64)
        return self.gain @ member.T, self.tokens @ member.T


def effective_context(
    blocks: Blocks,
    edges: Sequence[int],
    *,
    margin: float = MARGIN,
    texts_as_units: bool = False,
    longer: tuple[int, Blocks] | None = None,
) -> EffectiveContext:
    """Bins with intervals, and how far the model reads by them.

    Args:
        blocks: of all texts; `gain` is `[B]`.
        edges: positions that bound the bins, ascending.
        margin: nats a token.
        texts_as_units: whether the answer is about texts like these instead of these texts.
        longer: where a second, longer window ends, and the blocks of the gains over it; past its
            end no degradation must be shown against both windows.
    """
    bins: list[Bin] = []
    tests: dict[float, list[tuple[Floats, Floats]]] = {-margin: [], margin: []}
    for start, end in itertools.pairwise(edges):
        part = blocks.within(start, end)
        if part.tokens.size:
            sums, tokens = part.by_text() if texts_as_units else (part.gain, part.tokens)
            # A gain above a threshold is a loss below its negative.
            lost = SkewedMean.of(-sums, tokens)
            high, low = (None if each is None else -each for each in lost.deciding_thresholds())
            mean = float(sums.sum() / tokens.sum())
            bins.append(Bin(start, end, mean, low, high, sums.size))
            for threshold, found in tests.items():
                found.append(lost.one_sided(-threshold))
    kept, benefits = (_length(found, bins, edges[0]) for found in tests.values())
    if longer is not None:
        trained, gains = longer
        later = [trained, *(edge for edge in edges if edge > trained)]
        strict = effective_context(gains, later, margin=margin, texts_as_units=texts_as_units)
        kept = _both(kept, strict.no_degradation)
    return EffectiveContext(tuple(bins), kept, benefits)


def _both(one: Length, two: Length) -> Length:
    """No degradation against both windows past the end of the second one."""
    refused = [each.refused for each in (one, two) if each.refused is not None]
    shown = one.shown if one.shown <= two.start else min(one.shown, two.shown)
    return replace(one, shown=shown, refused=min(refused, default=None))


def better_or_worse(
    blocks: Blocks, edges: Sequence[int], level: float
) -> tuple[tuple[Bin, ...], tuple[str, ...]]:
    """Bins, and for each `better` or `worse` than no gain, or empty: one-sided tests over blocks.

    Args:
        blocks: of all texts; `gain` is `[B]`.
        edges: positions that bound the bins, ascending.
        level: over both sides and all bins together (Bonferroni).
    """
    bins = effective_context(blocks, edges).bins
    verdicts = []
    for each in bins:
        part = blocks.within(each.start, each.end)
        below, above = SkewedMean.of(part.gain, part.tokens).one_sided(0.0)
        one, other = above <= level / 2 / len(bins), below <= level / 2 / len(bins)
        verdicts.append("better" if one else "worse" if other else "")
    return bins, tuple(verdicts)


def _length(tests: Sequence[tuple[Floats, Floats]], bins: Sequence[Bin], start: int) -> Length:
    above, below = [float(a) for a, _ in tests], [float(b) for _, b in tests]
    shown, refused = decide(above, below)
    ends = [each.end for each in bins]
    return Length(
        shown=ends[shown - 1] if shown else start,
        refused=None if refused is None else ends[refused],
        measured=ends[-1] if ends else start,
        start=start,
    )


def decide(above: Sequence[float], below: Sequence[float]) -> tuple[int, int | None]:
    """How many bins are shown in order, and the first whose length is refused.

    Args:
        above: p of the test that shows a bin to lie above the threshold, for each bin.
        below: p of the test that shows it to lie below.
    """
    shown = next((at for at, p in enumerate(above) if not p <= SHOWN_AT), len(above))
    refused = None
    for count in range(1, len(below) + 1):
        if any(p <= REFUSED_AT / count for p in below[:count]):
            refused = count - 1
            break
    return shown, refused


def break_position(blocks: Blocks, margin: float = MARGIN) -> int | None:
    """Where the model stops to gain: the position of the largest running sum of `gain + margin`.

    The gain at a position is the mean over the texts that reach it. None where the sum is largest
    at the end: no break was measured. A point estimate; an interval made by the bootstrap would
    miss the truth too often.
    """
    ends = np.unique(blocks.end)
    total = np.array([blocks.gain[blocks.end == end].sum() for end in ends])
    tokens = np.array([blocks.tokens[blocks.end == end].sum() for end in ends])
    width = np.diff([ends[0] - tokens[0] / max((blocks.end == ends[0]).sum(), 1), *ends])
    running = np.cumsum((total / tokens + margin) * width)
    best = int(running.argmax())
    if running[best] <= 0:
        return int(ends[0] - width[0])
    return None if best == ends.size - 1 else int(ends[best])


def texts_that_agree(blocks: Blocks, length: Length, margin: float = MARGIN) -> tuple[int, int]:
    """How many texts show no degradation by their own mean where all together were shown not to.

    Returns:
        Texts whose mean gain over the positions up to `length.shown` lies above `-margin`, and all
        texts that have tokens there.
    """
    sums, tokens = blocks.within(length.start, length.shown).by_text()
    return int((sums / tokens > -margin).sum()) if tokens.size else 0, int(tokens.size)
