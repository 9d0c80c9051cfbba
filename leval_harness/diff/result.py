"""The result of a comparison: numbers, sentences, an exit code, JSON."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from leval_harness.diff.side import Side
from leval_tasks.statistics import difference
from leval_tasks.statistics.difference import OPEN, SAME, Bin

EXIT_CODES = {SAME: 0, difference.BETTER: 0, OPEN: 3, difference.WORSE: 4}
MOST_TEXTS = 4096
"""The number of documents that would decide is not given beyond this number."""


@dataclass(frozen=True)
class Finding:
    """A difference of the input: its kind (`bos`, `tokenizer` or `template`), and what differs."""

    kind: str
    sentence: str


@dataclass(frozen=True)
class DiffResult:
    """What a comparison found.

    Attributes:
        a, b: the setups with their RoPE settings (None: not known) and versions.
        length: tokens of each text.
        identical: losses of all documents are equal bit for bit up to this position.
        margin: nats/token.
        bins: differences by position from there on; none where all losses are equal.
        loss_a, loss_b: nats/token, over all positions.
        apart: mean absolute difference of the loss of a token, nats.
        findings: differences of tokenizers, BOS or template.
        ignored: kinds of findings that do not count.
        documents: name and SHA-256 of the documents.
    """

    a: dict[str, Any]
    b: dict[str, Any]
    length: int
    identical: int
    margin: float
    bins: tuple[Bin, ...]
    loss_a: float
    loss_b: float
    apart: float
    findings: tuple[Finding, ...]
    ignored: tuple[str, ...]
    documents: tuple[dict[str, str], ...]

    @property
    def verdict(self) -> str:
        """Return the verdict on the losses: `same`, `worse`, `better` or `not decided`."""
        return difference.verdict_of(self.bins)

    @property
    def exit_code(self) -> int:
        """Return 0 for same or better, 4 for worse or different input, 3 for undecided."""
        counted = any(each.kind not in self.ignored for each in self.findings)
        return 4 if counted else EXIT_CODES[self.verdict]

    def sentences(self) -> list[str]:
        """Return sentences: different RoPE settings and input first, then the verdict."""
        a, b = (side.get("rope") for side in (self.a, self.b))
        first = [] if None in (a, b) or a == b else [f"RoPE settings differ: A {a}, B {b}."]
        found = [f"Different input: {each.sentence}." for each in self.findings]
        return [*first, *found, self._verdict_sentence()]

    def _verdict_sentence(self) -> str:
        """Return the sentence of the verdict; every number of it is one of a bin."""
        documents = len(self.documents)
        size = f"{documents} text{'s' * (documents != 1)} of {self.length:,} tokens"
        if not self.bins:
            return f"Identical: all losses are equal bit for bit; {size}."
        before = f"identical up to {self.identical:,}, then " if self.identical else ""
        if self.verdict == SAME:
            most = max(abs(end) for each in self.bins for end in (each.low, each.high))
            said = f"{before}the same within ±{self.margin:g} nats/token"
            return f"{said[0].upper()}{said[1:]} (every interval lies within ±{most:.4f}); {size}."
        found = [each for each in self.bins if each.verdict == self.verdict]
        first = found[0]
        largest = max(found, key=lambda each: abs(each.difference))
        if self.verdict == OPEN:
            widest = max(found, key=Bin.more)
            needed = widest.more() * documents
            decide = f"about {math.ceil(needed):,} documents would decide"
            decide = decide if needed <= MOST_TEXTS else "more documents will not decide"
            return f"Not decided: {before}{_amount(widest)}: {decide}; {size}."
        most_of = "" if largest is first else f", most of all {_amount(largest)}"
        return f"{self.verdict.capitalize()}: {before}{_amount(first)}{most_of}; {size}."

    def as_json(self) -> dict[str, Any]:
        """Return the content of `diff.json`; the open end of an interval is null."""
        content = asdict(self)
        for part, row in zip(self.bins, content["bins"], strict=True):
            ends = {end: None for end in ("low", "high") if math.isinf(row[end])}
            row |= {"verdict": part.verdict, **ends}
        return {
            "kind": "leval-harness diff",
            "schema": 4,
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "sentences": self.sentences(),
            **content,
        }


def _amount(part: Bin) -> str:
    loss = f"{abs(part.difference):.4f} {'higher' if part.difference > 0 else 'lower'} loss"
    ends = f"interval {part.low:+.4f} to {part.high:+.4f}"
    return f"{loss} over {part.start:,}–{part.end:,} ({ends})"


def compared(a: Side, b: Side, margin: float, ignored: tuple[str, ...]) -> DiffResult:
    """Compare what two sides have read of the same rows."""
    of_a, of_b = (-side.logprobs.astype(np.float64) for side in (a, b))
    identical = difference.equal_up_to(of_a, of_b)
    return DiffResult(
        a=a.setup,
        b=b.setup,
        length=len(a.rows[0]),
        identical=identical,
        margin=margin,
        bins=difference.difference_bins(of_b - of_a, identical, margin),
        loss_a=float(of_a.mean()),
        loss_b=float(of_b.mean()),
        apart=float(np.abs(of_b - of_a).mean()),
        findings=tuple(findings_of(a, b)),
        ignored=ignored,
        documents=tuple({"name": each.name, "sha256": each.sha256} for each in a.documents),
    )


def findings_of(a: Side, b: Side) -> Iterator[Finding]:
    """Return what differs in the token ids that both sides make of documents and of a chat.

    A missing BOS, another tokenizer or another template cannot be seen by scoring given ids.
    """
    for text, of_a, of_b in zip(a.documents, a.encoded, b.encoded, strict=True):
        if of_a is None or of_b is None:
            continue
        size = min(len(of_a), len(of_b))
        left = of_a[:size]
        right = of_b[:size]
        if left == right:
            continue
        if left[1:] in (right[1:], right[:-1]) or left[:-1] == right[1:]:
            yield Finding("bos", f"A begins a text with tokens {left[:2]}, B with {right[:2]}")
        else:
            yield Finding(
                "tokenizer", f"the tokenizers differ in {text.name}: {_part(left, right)}"
            )
        break
    if a.chat is None or b.chat is None or a.chat == b.chat:
        return
    if a.chat and b.chat:
        yield Finding("template", f"chat templates render other tokens: {_part(a.chat, b.chat)}")
    else:
        without, other = ("B", "A") if a.chat else ("A", "B")
        yield Finding("template", f"{without} has no chat template, {other} has one")


def _part(a: Sequence[int], b: Sequence[int]) -> str:
    """Describe the first place where two token sequences differ."""
    pairs = enumerate(zip(a, b, strict=False))
    at = next((at for at, (x, y) in pairs if x != y), min(len(a), len(b)))
    return f"from token {at} on A has {list(a[at : at + 3])}, B {list(b[at : at + 3])}"
