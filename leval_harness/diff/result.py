"""The result of a comparison: numbers, sentences, an exit code, JSON."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from leval_harness.diff.side import Side
from leval_tasks.statistics import difference
from leval_tasks.statistics.difference import OPEN, SAME, Bin

EXIT_CODES = {SAME: 0, difference.BETTER: 0, OPEN: 3, difference.WORSE: 4}
DIFFERENT_INPUT = 4
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
        identical: losses of all documents are bitwise equal up to this position.
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
        if any(finding.kind not in self.ignored for finding in self.findings):
            return DIFFERENT_INPUT
        return EXIT_CODES[self.verdict]

    def sentences(self) -> list[str]:
        """Return sentences: RoPE settings and different input first, then the verdict."""
        different_input = [f"Different input: {finding.sentence}." for finding in self.findings]
        question = self._question_about_rope()
        return [
            *self._rope_sentences(),
            *different_input,
            self._verdict_sentence(),
            *([question] if question else []),
        ]

    def _rope_sentences(self) -> list[str]:
        """Return a sentence on RoPE settings that differ, or that only one side is known to have."""
        rope_a = self.a.get("rope")
        rope_b = self.b.get("rope")
        if rope_a == rope_b:
            return []
        if rope_a is not None and rope_b is not None:
            return [f"RoPE settings differ: A {rope_a}, B {rope_b}."]
        known, unknown, rope = self._known_rope()
        if _is_unscaled(rope):
            return []
        option = f"--rope-{known.lower()}"
        return [
            f"{known} runs with {rope} ({option}); {unknown} does not expose its RoPE settings."
        ]

    def _question_about_rope(self) -> str:
        """Return whether a server may run with a method, if an unscaled model differs from it."""
        known, unknown, rope = self._known_rope()
        if rope is None or not _is_unscaled(rope) or self.verdict == SAME:
            return ""
        return (
            f"{known} is unscaled. Is {unknown} served with a RoPE method? Then give {known} the "
            f"same one: --rope-{known.lower()} TYPE:factor=FACTOR."
        )

    def _known_rope(self) -> tuple[str, str, Any]:
        """Return the side whose RoPE settings are known, the other one, and the settings.

        The settings are None where those of both sides are known, or of neither.
        """
        rope_a = self.a.get("rope")
        rope_b = self.b.get("rope")
        if rope_a is not None and rope_b is None:
            return "A", "B", rope_a
        if rope_b is not None and rope_a is None:
            return "B", "A", rope_b
        return "A", "B", None

    def _verdict_sentence(self) -> str:
        """Return the sentence of the verdict; every number of it is one of a bin."""
        noun = "text" if len(self.documents) == 1 else "texts"
        size = f"{len(self.documents)} {noun} of {self.length:,} tokens"
        if not self.bins:
            return f"Identical: all losses are bitwise identical; {size}."
        before = ""
        if self.identical:
            before = f"identical up to {self.identical:,}, then "
        if self.verdict == SAME:
            return f"{self._same_clause(before)}; {size}."
        if self.verdict == OPEN:
            return f"Not decided: {before}{self._open_clause()}; {size}."
        return f"{self.verdict.capitalize()}: {before}{self._decided_clause()}; {size}."

    def _same_clause(self, before: str) -> str:
        """Return how close to zero the intervals of all bins are."""
        largest = max(max(abs(part.low), abs(part.high)) for part in self.bins)
        clause = f"{before}the same within ±{self.margin:g} nats/token"
        return f"{clause[0].upper()}{clause[1:]} (every interval lies within ±{largest:.4f})"

    def _open_clause(self) -> str:
        """Return the widest undecided bin, and how many documents would decide it."""
        widest = max(self._bins_of_verdict(), key=Bin.more)
        documents = widest.more() * len(self.documents)
        if documents <= MOST_TEXTS:
            return f"{_amount(widest)}: about {math.ceil(documents):,} documents would decide"
        return f"{_amount(widest)}: more documents will not decide"

    def _decided_clause(self) -> str:
        """Return the first bin with the verdict, and the one with the largest difference."""
        deciding = self._bins_of_verdict()
        first = deciding[0]
        largest = max(deciding, key=lambda part: abs(part.difference))
        if largest is first:
            return _amount(first)
        return f"{_amount(first)}, most of all {_amount(largest)}"

    def _bins_of_verdict(self) -> list[Bin]:
        return [part for part in self.bins if part.verdict == self.verdict]

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


def _is_unscaled(rope: Mapping[str, Any]) -> bool:
    return rope.get("rope_type", "default") == "default"


def _amount(part: Bin) -> str:
    """Return the difference of a bin, its positions and its interval."""
    direction = "higher" if part.difference > 0 else "lower"
    interval = f"interval {part.low:+.4f} to {part.high:+.4f}"
    positions = f"{part.start:,}–{part.end:,}"
    return f"{abs(part.difference):.4f} {direction} loss over {positions} ({interval})"


def compared(a: Side, b: Side, margin: float, ignored: tuple[str, ...]) -> DiffResult:
    """Compare what two sides have read of the same rows."""
    losses_a = -a.logprobs.astype(np.float64)  # [documents, length - 1]
    losses_b = -b.logprobs.astype(np.float64)
    differences = losses_b - losses_a
    identical = difference.equal_up_to(losses_a, losses_b)
    return DiffResult(
        a=a.setup,
        b=b.setup,
        length=len(a.rows[0]),
        identical=identical,
        margin=margin,
        bins=difference.difference_bins(differences, identical, margin),
        loss_a=float(losses_a.mean()),
        loss_b=float(losses_b.mean()),
        apart=float(np.abs(differences).mean()),
        findings=tuple(input_differences(a, b)),
        ignored=ignored,
        documents=tuple(
            {"name": document.name, "sha256": document.sha256} for document in a.documents
        ),
    )


def input_differences(a: Side, b: Side) -> Iterator[Finding]:
    """Yield how the token ids differ that the two sides make of the same texts.

    There are at most two findings: one on how they encode documents (BOS, tokenizer), one on how
    they render a chat (template). The comparison of losses cannot show these, because both sides
    score the same token ids in it.
    """
    for document, ids_a, ids_b in zip(a.documents, a.encoded, b.encoded, strict=True):
        if ids_a is None or ids_b is None:
            continue
        finding = _encoding_finding(document.name, ids_a, ids_b)
        if finding is not None:
            yield finding
            break  # the other documents differ in the same way
    finding = _template_finding(a.chat, b.chat)
    if finding is not None:
        yield finding


def _encoding_finding(name: str, ids_a: Sequence[int], ids_b: Sequence[int]) -> Finding | None:
    """Return how two encodings of a document differ, as far as both reach; None if they agree."""
    size = min(len(ids_a), len(ids_b))
    start_a = ids_a[:size]
    start_b = ids_b[:size]
    if start_a == start_b:
        return None
    other_bos = start_a[1:] == start_b[1:]
    bos_in_a_only = start_a[1:] == start_b[:-1]
    bos_in_b_only = start_a[:-1] == start_b[1:]
    if other_bos or bos_in_a_only or bos_in_b_only:
        return Finding("bos", f"A begins a text with tokens {start_a[:2]}, B with {start_b[:2]}")
    place = _first_difference(start_a, start_b)
    return Finding("tokenizer", f"the tokenizers differ in {name}: {place}")


def _template_finding(chat_a: list[int] | None, chat_b: list[int] | None) -> Finding | None:
    """Return how two renderings of the chat differ; None if they agree or one is not known."""
    if chat_a is None or chat_b is None or chat_a == chat_b:
        return None
    if not chat_a:
        return Finding("template", "A has no chat template, B has one")
    if not chat_b:
        return Finding("template", "B has no chat template, A has one")
    place = _first_difference(chat_a, chat_b)
    return Finding("template", f"chat templates render other tokens: {place}")


def _first_difference(a: Sequence[int], b: Sequence[int]) -> str:
    """Describe the first place where two token sequences differ."""
    index = 0
    while index < min(len(a), len(b)) and a[index] == b[index]:
        index += 1
    return (
        f"from token {index} on A has {list(a[index : index + 3])}, B {list(b[index : index + 3])}"
    )
