"""The result of a comparison: numbers, a sentence, an exit code, JSON."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

from leval_harness.layout import DIFF_KIND, DIFF_SCHEMA
from leval_harness.parity.findings import Finding
from leval_harness.parity.reading import Reading
from leval_tasks.statistics.by_document import Floats
from leval_tasks.statistics.divergence import kl_divergence, kl_lower_bound
from leval_tasks.statistics.equivalence import Equivalence, bin_edges, equivalence
from leval_tasks.statistics.skewed_t import FEWEST

CURVE = 32
"""Points of the curve by position."""
WORDS = {"undecided": "not decided"}
EXIT_CODES = {"same": 0, "better": 0, "undecided": 3, "worse": 4}


@dataclass(frozen=True)
class Mean:
    """A mean over texts with the standard error between texts; `what` says how it was computed."""

    value: float
    stderr: float | None
    what: str


@dataclass(frozen=True)
class Point:
    """Mean difference between two positions with a pointwise 95% interval."""

    start: int
    end: int
    difference: float
    low: float
    high: float


@dataclass(frozen=True)
class LengthResult:
    """Texts of one length.

    Attributes:
        length: tokens of each text.
        texts: how many both have read.
        equivalence: the verdict with its bins; None below three texts.
        loss_a, loss_b: nats a token.
        agreement: share of positions at which both rank the same token first.
        divergence: `KL(A || B)` in nats.
        curve: for the figure.
    """

    length: int
    texts: int
    equivalence: Equivalence | None
    loss_a: float | None
    loss_b: float | None
    agreement: Mean | None
    divergence: Mean | None
    curve: tuple[Point, ...]

    @property
    def verdict(self) -> str:
        """`same`, `worse`, `better` or `undecided`."""
        return self.equivalence.verdict if self.equivalence else "undecided"

    def sentence(self) -> str:
        """The verdict in one sentence."""
        size = f"{self.texts} texts of {self.length:,} tokens"
        found = self.equivalence
        if found is None:
            return f"Not decided: {size} were read within the budget, at least {FEWEST} are needed."
        whole = found.whole
        amount = f"{abs(whole.difference):.4f} nats a token"
        interval = f"{whole.difference:+.4f}, interval {whole.low:+.4f} to {whole.high:+.4f}"
        if found.verdict == "same":
            shown = ""
            if found.measurable:
                direction = "worse" if whole.difference > 0 else "better"
                shown = f"; measurably {direction} by {amount}"
            return f"Same within ±{found.margin:g} nats a token ({interval}{shown}); {size}."
        if found.verdict == "undecided":
            more = found.more_texts
            texts = "text is" if more == 1 else "texts are"
            needed = f"about {more} more {texts} needed" if more else "more texts will not decide"
            return f"Not decided ({interval}, margin {found.margin:g}): {needed}; {size}."
        where = f"from position {found.onset:,} on" if found.onset else "at all positions"
        parts = max(found.bins, key=lambda each: abs(each.difference))
        most = f"most between {parts.start:,} and {parts.end:,}: {parts.difference:+.4f}"
        return f"{found.verdict.capitalize()} by {amount} {where} ({interval}; {most}); {size}."


@dataclass(frozen=True)
class DiffResult:
    """What a comparison found.

    Attributes:
        a, b: the setups with their versions and facts.
        lengths: one result a length.
        findings: differences of tokenizers, BOS, template or generation.
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
        """Of the losses: worse if any length is; else undecided, better, same in this order."""
        found = {each.verdict for each in self.lengths}
        order = ("worse", "undecided", "better", "same")
        return next(each for each in order if each in found)

    @property
    def counted(self) -> list[Finding]:
        """Findings that are not ignored."""
        return [each for each in self.findings if each.kind not in self.ignored]

    @property
    def exit_code(self) -> int:
        """0 same or better, 4 worse or a finding that counts, 3 not decided."""
        return 4 if self.counted else EXIT_CODES[self.verdict]

    def sentences(self) -> list[str]:
        """Findings first, then a sentence for each length."""
        first = [f"Different input: {each.sentence}." for each in self.findings
                 if each.kind != "probe"]  # fmt: skip
        probes = [f"Generation: {each.sentence}." for each in self.findings if each.kind == "probe"]
        return [*first, *probes, *(each.sentence() for each in self.lengths)]

    def as_json(self) -> dict[str, Any]:
        """The content of `diff.json`."""
        return {
            "kind": DIFF_KIND,
            "schema": DIFF_SCHEMA,
            "verdict": WORDS.get(self.verdict, self.verdict),
            "exit_code": self.exit_code,
            "sentences": self.sentences(),
            **{k: v for k, v in asdict(self).items() if k not in ("lengths",)},
            "lengths": [
                {"verdict": WORDS.get(each.verdict, each.verdict), **_finite(asdict(each))}
                for each in self.lengths
            ],
        }


def _finite(content: Any) -> Any:
    """JSON has no infinite numbers: an open end of an interval is null."""
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(each) for each in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def length_result(
    length: int,
    pairs: Sequence[tuple[Reading, Reading]],
    *,
    margin: float,
    share: float,
    lengths: int,
    last: bool,
) -> LengthResult:
    """Compare the readings `(A, B)` of texts of one length."""
    if not pairs:
        return LengthResult(length, 0, None, None, None, None, None, ())
    a, b = (np.stack([-pair[side].logprob.astype(np.float64) for pair in pairs]) for side in (0, 1))
    d = b - a
    found = None
    if len(pairs) >= FEWEST:
        found = equivalence(
            d, bin_edges(length), margin=margin, share=share, lengths=lengths, last=last
        )
    same = [x.top_ids[:, 0] == y.top_ids[:, 0] for x, y in pairs]
    return LengthResult(
        length=length,
        texts=len(pairs),
        equivalence=found,
        loss_a=float(a.mean()),
        loss_b=float(b.mean()),
        agreement=_mean([each.mean() for each in same], "share of positions"),
        divergence=_divergence(pairs),
        curve=tuple(_curve(d)),
    )


def _divergence(pairs: Sequence[tuple[Reading, Reading]]) -> Mean:
    if all(x.dense is not None and y.dense is not None for x, y in pairs):
        whole = [
            float(kl_divergence(_float64(x.dense), _float64(y.dense)).mean()) for x, y in pairs
        ]
        count = len(pairs[0][0].dense if pairs[0][0].dense is not None else ())
        return _mean(whole, f"whole vocabulary at {count} positions a text")
    bound = [
        float(kl_lower_bound(x.top_ids, _float64(x.top), y.top_ids, _float64(y.top)).mean())
        for x, y in pairs
    ]
    k = min(pairs[0][0].top.shape[1], pairs[0][1].top.shape[1])
    return _mean(bound, f"lower bound, over the top {k} tokens")


def _float64(array: Any) -> Floats:
    return np.asarray(array, np.float64)


def _mean(values: Sequence[float], what: str) -> Mean:
    array = np.asarray(values, np.float64)
    stderr = float(array.std(ddof=1) / math.sqrt(array.size)) if array.size > 1 else None
    return Mean(float(array.mean()), stderr, what)


def _curve(d: Any) -> list[Point]:
    """Means of equal stretches of positions, intervals by text."""
    texts, size = d.shape
    edges = np.unique(np.linspace(0, size, min(CURVE, size) + 1).astype(int))
    points = []
    for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        means = d[:, start:end].mean(axis=1)
        half = 0.0
        if texts > 1:
            half = float(stats.t.ppf(0.975, texts - 1) * means.std(ddof=1) / math.sqrt(texts))
        mean = float(means.mean())
        points.append(Point(start + 1, end + 1, mean, mean - half, mean + half))
    return points
