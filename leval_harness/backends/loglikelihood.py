"""Log-likelihoods of given tokens, with every shared context computed once."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from leval_harness.backends.forward import shared_attention
from leval_harness.backends.head import Scores
from leval_harness.backends.memory import attempt, halving
from leval_harness.backends.plan import Plan, Step, make_plan
from leval_harness.backends.reader import PathReader, Setup, batches

logger = logging.getLogger(__name__)

# A passage's place and its scores; None where memory did not suffice.
Scored = tuple[int, Scores | None]


@dataclass
class Passage:
    """Tokens of which a part at the end is scored.

    Attributes:
        inputs: What the model reads: context and scored tokens without the last.
        targets: Scored tokens; target `i` is predicted at input `len(inputs) - len(targets) + i`.
    """

    name: str
    inputs: list[int]
    targets: list[int]
    parts: list[Scores] = field(default_factory=list)

    @classmethod
    def cut(cls, name: str, context: list[int], scored: list[int], max_length: int) -> "Passage":
        """A passage after its context, which is cut from the left to what the model reads."""
        if not context or not scored:
            what = "scored part" if context else "context"
            raise ValueError(f"request {name}: the {what} has no tokens; it needs at least one")
        if len(scored) > max_length:
            raise ValueError(
                f"request {name}: {len(scored)} scored tokens do not fit max_length={max_length}; "
                "raise max_length or score fewer tokens at a time"
            )
        whole = context + scored
        surplus = max(0, len(whole) - (max_length + 1))
        if surplus:
            logger.warning("request %s: %d tokens cut from the left", name, surplus)
        return cls(name, whole[surplus:-1], scored)

    @classmethod
    def whole(cls, name: str, tokens: list[int], max_length: int) -> "Passage":
        """A passage of which every token but the first is scored."""
        if not 2 <= len(tokens) <= max_length + 1:
            raise ValueError(
                f"request {name}: {len(tokens)} tokens; a sequence needs 2 to max_length + 1 = "
                f"{max_length + 1}"
            )
        return cls(name, tokens[:-1], tokens[1:])

    @property
    def first(self) -> int:
        """First scored input position."""
        return len(self.inputs) - len(self.targets)

    def wanted(self, start: int, end: int) -> tuple[int, list[int]]:
        """First position to score among the inputs `[start, end)`, and the targets from there."""
        begin = max(start, self.first + sum(len(part.logprob) for part in self.parts))
        return begin, self.targets[max(0, begin - self.first) : max(0, end - self.first)]


class Scorer:
    """Score passages, in the order that computes least.

    Those that share nothing are read `batch_size` of equal length at a time.
    """

    def __init__(self, passages: Sequence[Passage], setup: Setup, batch_size: int) -> None:
        self.passages = passages
        self.setup = setup
        self.head = setup.head
        self.counters = setup.counters
        self.chunk = setup.settings.prefill_chunk
        self.batch_size = batch_size
        self._aside: list[int] = []  # passages for plain forward passes after the walk

    @torch.no_grad()
    def scores(self, *, share: bool) -> Iterator[Scored]:
        """Score every passage, what they share once; each is yielded as soon as it is finished."""
        inputs = [passage.inputs for passage in self.passages]
        total = sum(map(len, inputs))
        plan = Plan((), total, total, total)
        if share:
            plan = make_plan(inputs, reserve=0, max_suffix=self.chunk)
        self.counters.asked(plan)
        if any(map(_shared, plan.steps)):
            yield from self._walk(plan.steps)
        else:
            self._aside = list(range(len(inputs)))
        yield from self._plain_groups(self._aside)

    def _walk(self, steps: Sequence[Step]) -> Iterator[Scored]:
        reader = PathReader(self.setup, max(step.length for step in steps))
        with shared_attention(self.setup.model, split=self.setup.split):
            for step in steps:
                if _shared(step):
                    yield from self._step(step, reader)
                else:
                    self._aside += step.rows

    def _read(
        self, reader: PathReader, rows: Sequence[int], start: int, length: int
    ) -> list[int] | None:
        """Bring the path to a prefix of rows, scored on the way; None where memory ran out."""
        members = [self.passages[row] for row in rows]

        def read(tokens: list[int], position: int) -> None:
            self._chunk(members, reader, tokens, position)

        return attempt(reader.extend, members[0].inputs, start, length, read)

    def _step(self, step: Step, reader: PathReader) -> Iterator[Scored]:
        if self._read(reader, step.members, step.start, step.length) is None:
            self._aside += step.rows
            return
        if step.branches:
            reader.mark()
        rest = []
        for row in sorted(step.rows, key=lambda row: len(self.passages[row].inputs)):
            if len(self.passages[row].inputs) == step.length:
                yield row, Scores.joined(self.passages[row].parts)
            else:
                rest.append(row)
        widths = [len(self.passages[row].inputs) - step.length for row in rest]
        for batch in batches(
            self.setup, rest, widths, shared=step.length, extra=0, max_tokens=self.chunk,
            equal=not self.setup.reuse.padded,
        ):  # fmt: skip
            yield from self._batch(batch, step.length, reader)

    def _chunk(
        self, passages: list[Passage], reader: PathReader, tokens: list[int], position: int
    ) -> None:
        """Read a chunk of a prefix, scored for every passage with scored positions in it."""
        end = position + len(tokens)
        members = [
            (passage, *passage.wanted(position, end))
            for passage in passages
            if passage.first < end <= len(passage.inputs)
        ]
        first = min((begin for _, begin, _ in members), default=end) - position
        states = self.head.run([tokens], first, reader.path)
        parts = []
        for _, begin, targets in members:
            offset = begin - position - first
            parts.append(self.head.score(states[0, offset : offset + len(targets)], targets))
        # Only now: a chunk that runs out of memory half-way is scored again from its start.
        for (passage, _, _), part in zip(members, parts, strict=True):
            passage.parts.append(part)

    def _batch(self, batch: list[int], length: int, reader: PathReader) -> Iterator[Scored]:
        """Score rows after a shared prefix; where memory runs out, put them aside."""
        suffixes = [self.passages[row].inputs[length:] for row in batch]
        reader.cut(length)
        past = reader.path.rows(len(batch), max(map(len, suffixes)))
        states = attempt(self.head.run, suffixes, 0, past)
        if states is None:
            self._aside += batch
            return
        self.counters.prefilled(sum(map(len, suffixes)))
        for index, row in enumerate(batch):
            passage = self.passages[row]
            begin, targets = passage.wanted(length, len(passage.inputs))
            scored = states[index, begin - len(passage.inputs) :]
            passage.parts.append(self.head.score(scored, targets))
            yield row, Scores.joined(passage.parts)

    def _plain_groups(self, rows: Sequence[int]) -> Iterator[Scored]:
        """Plain forward passes without a cache, passages of one length together."""
        by_length: dict[tuple[int, int], list[int]] = {}
        for row in rows:
            passage = self.passages[row]
            by_length.setdefault((-len(passage.inputs), passage.first), []).append(row)
        for key in sorted(by_length):
            group = by_length[key]
            # Short passages fill one chunk together, whatever the batch size.
            most = self.setup.settings.question_batch_size
            size = max(self.batch_size, min(most, self.chunk // -key[0]))
            for first in range(0, len(group), size):
                batch = group[first : first + size]
                for row, scores in halving(self._forward, batch, "passages"):
                    yield row, self._in_chunks(row) if scores is None else scores

    def _forward(self, batch: list[int]) -> list[Scores]:
        passages = [self.passages[row] for row in batch]
        inputs = [passage.inputs for passage in passages]
        states = self.head.run(inputs, passages[0].first)
        scores = [
            self.head.score(each, passage.targets)
            for each, passage in zip(states, passages, strict=True)
        ]
        self.counters.prefilled(sum(map(len, inputs)))
        return scores

    def _in_chunks(self, row: int) -> Scores | None:
        """The last resort for one passage: read it in chunks with a cache of its own."""
        passage = self.passages[row]
        passage.parts.clear()
        length = len(passage.inputs)
        # Where no cache is right for it, chunks are not either.
        if not self.setup.refusal(length):
            logger.warning("out of memory: request %s is read in chunks", passage.name)
            reader = PathReader(self.setup, length, max(1, min(self.chunk, length // 2)))
            with shared_attention(self.setup.model, split=self.setup.split):
                if self._read(reader, [row], 0, length) is not None:
                    return Scores.joined(passage.parts)
        self.counters.failed(passage.name, length)
        return None


def _shared(step: Step) -> bool:
    """Whether a step stands on positions that several passages use."""
    return step.start > 0 or (step.length > 0 and len(step.members) > 1)
