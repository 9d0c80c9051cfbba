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
    kl_lower_bound,
    verdict_of,
)

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
        if self.verdict == SAME:
            most = max(abs(end) for each in self.bins for end in (each.low, each.high))
            said = f"{before}the same within ±{self.margin:g} nats a token"
            return f"{_begin(said)} (every interval lies within ±{most:.4f}); {size}."
        found = [each for each in self.bins if each.verdict == self.verdict]
        first, largest = found[0], max(found, key=lambda each: abs(each.difference))
        if self.verdict == OPEN:
            widest = max(found, key=Bin.more)
            needed = widest.more() * self.texts
            texts = f"about {math.ceil(needed):,} texts would decide"
            texts = texts if needed <= MOST_TEXTS else "more texts will not decide"
            return f"Not decided: {before}{_amount(widest)}: {texts}; {size}."
        most_of = "" if largest is first else f", most over {_place(largest)}: {_loss(largest)}"
        return f"{_begin(self.verdict)}: {before}{_amount(first)}{most_of}; {size}."


def _begin(text: str) -> str:
    return text[0].upper() + text[1:]


def _place(part: Bin) -> str:
    return f"{part.start:,}–{part.end:,}"


def _loss(part: Bin) -> str:
    return f"{abs(part.difference):.4f} {'higher' if part.difference > 0 else 'lower'} loss"


def _amount(part: Bin) -> str:
    return f"{_loss(part)} over {_place(part)} (interval {part.low:+.4f} to {part.high:+.4f})"


@dataclass(frozen=True)
class DiffResult:
    """What a comparison found.

    Attributes:
        a, b: the setups with their RoPE settings (None: not known), versions and facts.
        lengths: one result a length.
        findings: differences of tokenizers, BOS or template.
        ignored: kinds of findings that do not count.
        texts: name and SHA-256 of the texts.
        seconds: of the whole comparison.
    """

    a: dict[str, Any]
    b: dict[str, Any]
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
    def exit_code(self) -> int:
        """0 same or better, 4 worse or a finding that is not ignored, 3 not decided."""
        counted = any(each.kind not in self.ignored for each in self.findings)
        return 4 if counted else EXIT_CODES[self.verdict]

    def sentences(self) -> list[str]:
        """Different RoPE settings and input first, then a sentence for each length."""
        a, b = (side.get("rope") for side in (self.a, self.b))
        first = [] if None in (a, b) or a == b else [f"RoPE settings differ: A {a}, B {b}."]
        found = [f"Different input: {each.sentence}." for each in self.findings]
        return [*first, *found, *(each.sentence() for each in self.lengths)]

    def as_json(self) -> dict[str, Any]:
        """The content of `diff.json`; the open end of an interval is null."""
        content = asdict(self)
        for each, written in zip(self.lengths, content["lengths"], strict=True):
            written["verdict"] = each.verdict
            for part, row in zip(each.bins, written["bins"], strict=True):
                row |= {"verdict": part.verdict}
                row |= {end: None for end in ("low", "high") if math.isinf(row[end])}
        return {
            "kind": DIFF_KIND,
            "schema": DIFF_SCHEMA,
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "sentences": self.sentences(),
            **content,
        }


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
    tops = [[(x.top_ids[:, :k], x.top[:, :k].astype(np.float64)) for x in pair] for pair in pairs]
    return LengthResult(
        length=a.shape[1] + 1,
        texts=len(pairs),
        identical=identical,
        margin=margin,
        bins=difference_bins(b - a, identical, margin, lengths),
        loss_a=float(a.mean()),
        loss_b=float(b.mean()),
        agreement=float(np.mean([x.top_ids[:, 0] == y.top_ids[:, 0] for x, y in pairs])),
        divergence=float(np.mean([kl_lower_bound(*x, *y) for x, y in tops])),
    )
