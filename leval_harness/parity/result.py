"""The result of a comparison: numbers, sentences, an exit code, JSON."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from leval_harness.layout import DIFF_KIND, DIFF_SCHEMA
from leval_harness.parity.findings import Finding
from leval_harness.parity.reading import Reading
from leval_tasks.statistics.difference import (
    BETTER,
    OPEN,
    SAME,
    WORSE,
    Bin,
    difference_bins,
    equal_up_to,
    verdict_of,
)
from leval_tasks.statistics.divergence import kl_lower_bound

EXIT_CODES = {SAME: 0, BETTER: 0, OPEN: 3, WORSE: 4}
MOST_TEXTS = 4096
"""The number of texts that would decide is not given beyond this number."""


@dataclass(frozen=True)
class LengthResult:
    """Texts of one length.

    Attributes:
        length: tokens of each text.
        texts: how many were read.
        identical: losses of all texts are equal bit for bit up to this position.
        margin: nats a token.
        bins: differences by position from there on; none where all losses are equal.
        loss_a, loss_b: nats a token, over all positions.
        agreement: share of positions at which both rank the same token first.
        divergence: a lower bound of `KL(A || B)` in nats, from the most probable tokens.
    """

    length: int
    texts: int
    identical: int
    margin: float
    bins: tuple[Bin, ...]
    loss_a: float
    loss_b: float
    agreement: float
    divergence: float

    @property
    def verdict(self) -> str:
        """`same`, `worse`, `better` or `not decided`."""
        return verdict_of(self.bins)

    def sentence(self) -> str:
        """The verdict in one sentence; every number of it is one of a bin."""
        size = f"{self.texts} text{'s' * (self.texts != 1)} of {self.length:,} tokens"
        if not self.bins:
            return f"Identical: all losses are equal bit for bit; {size}."
        before = f"identical up to {self.identical:,}, then " if self.identical else ""
        verdict = self.verdict
        if verdict == SAME:
            start = "Identical" if before else "Same"
            rest = f" up to {self.identical:,}, then the same" if before else ""
            ends = (end for each in self.bins for end in (abs(each.low), abs(each.high)))
            most = f"every interval lies within ±{max(ends):.4f}"
            return f"{start}{rest} within ±{self.margin:g} nats a token ({most}); {size}."
        found = [each for each in self.bins if each.verdict == verdict]
        if verdict == OPEN:
            least = max(found, key=Bin.more)
            needed = least.more() * self.texts
            texts = f"about {math.ceil(needed):,} texts would decide"
            texts = texts if needed <= MOST_TEXTS else "more texts will not decide"
            return f"Not decided: {before}{_amount(least)}: {texts}; {size}."
        first = found[0]
        text = f"{verdict.capitalize()}: {before}{_amount(first)}"
        most_of = max(found, key=lambda each: abs(each.difference))
        if most_of is not first:
            text += f", most over {_place(most_of)}: {_loss(most_of)}"
        return f"{text}; {size}."


def _place(part: Bin) -> str:
    return f"{part.start:,}–{part.end:,}"


def _loss(part: Bin) -> str:
    return f"{abs(part.difference):.4f} {'higher' if part.difference > 0 else 'lower'} loss"


def _amount(part: Bin) -> str:
    interval = f"{part.low:+.4f} to {part.high:+.4f}"
    return f"{_loss(part)} over {_place(part)} (interval {interval})"


@dataclass(frozen=True)
class DiffResult:
    """What a comparison found.

    Attributes:
        a, b: the setups with their versions and facts.
        ropes: the RoPE settings of both, None where they are not known.
        lengths: one result a length.
        findings: differences of tokenizers, BOS or template.
        ignored: kinds of findings that do not count.
        texts: name and SHA-256 of the texts.
        seconds: of the whole comparison.
    """

    a: dict[str, Any]
    b: dict[str, Any]
    ropes: tuple[dict[str, Any] | None, dict[str, Any] | None]
    lengths: tuple[LengthResult, ...]
    findings: tuple[Finding, ...]
    ignored: tuple[str, ...]
    texts: tuple[dict[str, str], ...]
    seconds: float

    @property
    def verdict(self) -> str:
        """Of the losses: worse if any length is; else not decided, better, same in this order."""
        found = {each.verdict for each in self.lengths}
        return next(each for each in (WORSE, OPEN, BETTER, SAME) if each in found)

    @property
    def counted(self) -> list[Finding]:
        """Findings that are not ignored."""
        return [each for each in self.findings if each.kind not in self.ignored]

    @property
    def exit_code(self) -> int:
        """0 same or better, 4 worse or a finding that counts, 3 not decided."""
        return 4 if self.counted else EXIT_CODES[self.verdict]

    def sentences(self) -> list[str]:
        """Different RoPE settings and input first, then a sentence for each length."""
        a, b = self.ropes
        first = [] if None in self.ropes or a == b else [f"RoPE settings differ: A {a}, B {b}."]
        found = [f"Different input: {each.sentence}." for each in self.findings]
        return [*first, *found, *(each.sentence() for each in self.lengths)]

    def as_json(self) -> dict[str, Any]:
        """The content of `diff.json`."""
        lengths = [
            {
                "verdict": each.verdict,
                **asdict(each),
                "bins": [{"verdict": part.verdict, **asdict(part)} for part in each.bins],
            }
            for each in self.lengths
        ]
        return {
            "kind": DIFF_KIND,
            "schema": DIFF_SCHEMA,
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "sentences": self.sentences(),
            **_finite({**asdict(self), "lengths": lengths}),
        }


def _finite(content: Any) -> Any:
    """JSON has no infinite numbers: an open end of an interval is null."""
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(each) for each in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def compare_lengths(
    a: Sequence[Reading], b: Sequence[Reading], margin: float
) -> tuple[LengthResult, ...]:
    """Compare the readings of the same rows, which are grouped by length, ascending.

    A side that has read fewer tokens of a text than the other is compared up to there.
    """
    pairs = []
    for x, y in zip(a, b, strict=True):
        tokens = min(len(x.logprob), len(y.logprob)) + 1
        pairs.append((x.first(tokens), y.first(tokens)))
    grouped = [list(g) for _, g in itertools.groupby(pairs, lambda pair: len(pair[0].logprob))]
    return tuple(_length_result(group, margin, len(grouped)) for group in grouped)


def _length_result(
    pairs: Sequence[tuple[Reading, Reading]], margin: float, lengths: int
) -> LengthResult:
    a, b = (np.stack([-pair[side].logprob.astype(np.float64) for pair in pairs]) for side in (0, 1))
    identical = equal_up_to(a, b)
    k = min(x.top.shape[1] for pair in pairs for x in pair)
    bounds = [
        kl_lower_bound(
            *(x.top_ids[:, :k], x.top[:, :k].astype(np.float64)),
            *(y.top_ids[:, :k], y.top[:, :k].astype(np.float64)),
        ).mean()
        for x, y in pairs
    ]
    return LengthResult(
        length=a.shape[1] + 1,
        texts=len(pairs),
        identical=identical,
        margin=margin,
        bins=difference_bins(b - a, identical, margin, lengths),
        loss_a=float(a.mean()),
        loss_b=float(b.mean()),
        agreement=float(np.mean([x.top_ids[:, 0] == y.top_ids[:, 0] for x, y in pairs])),
        divergence=float(np.mean(bounds)),
    )
