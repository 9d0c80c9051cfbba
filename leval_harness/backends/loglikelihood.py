"""Log-likelihoods of given tokens, with every shared context computed once.

Logits are computed at scored positions only, and for a slice of these at a time: for 16,384
positions and a vocabulary of 49,152 tokens they would take 3.2 GB in float32.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from leval_harness.backends.attention import shared_attention
from leval_harness.backends.forward import Head, decoder_layers
from leval_harness.backends.path_reader import PathReader, Setup
from leval_harness.backends.prompt_trie import Step, make_plan
from leval_harness.backends.resources import attempt, halving
from leval_tasks.token_logprobs import SLICE, SumOfLogprobs

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Scores:
    """Scores of consecutive target tokens, on the CPU.

    Attributes:
        logprob: Natural logarithm of each target's probability, float32 `[positions]`.
        correct: Whether the target is the most probable token, bool `[positions]`.
    """

    logprob: torch.Tensor
    correct: torch.Tensor

    @classmethod
    def joined(cls, parts: Sequence["Scores"]) -> "Scores":
        """The scores of consecutive parts."""
        return cls(
            torch.cat([part.logprob for part in parts]), torch.cat([part.correct for part in parts])
        )

    @property
    def total(self) -> SumOfLogprobs:
        """The sum in float64, with the parts."""
        return SumOfLogprobs(float(self.logprob.double().sum()), self.logprob.numpy())


def token_scores(head: Head, states: torch.Tensor, targets: Sequence[int]) -> Scores:
    """Scores of targets from the `states` `[positions, ...]` of `head`, one before each target."""
    goal = torch.tensor(list(targets), dtype=torch.long, device=states.device)
    width = head.model.config.get_text_config(decoder=True).vocab_size
    block = max(1, SLICE // width)
    parts = [Scores(torch.zeros(0), torch.zeros(0, dtype=torch.bool))]
    for first in range(0, len(goal), block):
        logits = head.logits(states[first : first + block])
        wanted = goal[first : first + block].to(logits.device)
        chosen = logits.gather(-1, wanted[:, None]).squeeze(-1)
        correct = (logits.argmax(-1) == wanted).cpu()
        parts.append(Scores((chosen - logits.logsumexp(-1)).cpu(), correct))
    return Scores.joined(parts)


@dataclass
class Passage:
    """Tokens of which a part at the end is scored.

    Attributes:
        name: Of the request, for messages.
        inputs: What the model reads: context and scored tokens without the last.
        targets: Scored tokens; target `i` is predicted at input `len(inputs) - len(targets) + i`.
        parts: Scores of the first targets, as far as they are computed.
    """

    name: str
    inputs: list[int]
    targets: list[int]
    parts: list[Scores] = field(default_factory=list)

    @classmethod
    def after_context(
        cls, name: str, context: Sequence[int], scored: Sequence[int], max_length: int
    ) -> "Passage":
        """A passage after its context, which is cut on the left to what the model can read."""
        if not context or not scored:
            what = "scored part" if context else "context"
            raise ValueError(f"request {name}: the {what} has no tokens; it needs at least one")
        if len(scored) > max_length:
            raise ValueError(
                f"request {name}: {len(scored)} scored tokens do not fit max_length={max_length}; "
                "raise max_length or score fewer tokens at a time"
            )
        whole = [*context, *scored]
        surplus = max(0, len(whole) - (max_length + 1))
        if surplus:
            logger.warning("request %s: %d tokens cut from the left", name, surplus)
        return cls(name, whole[surplus:-1], list(scored))

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

    def unscored(self, start: int, end: int) -> tuple[int, list[int]]:
        """First position to score among the inputs `[start, end)`, and the targets from there."""
        begin = max(start, self.first + sum(len(part.logprob) for part in self.parts))
        return begin, self.targets[max(0, begin - self.first) : max(0, end - self.first)]


# A passage's place and its scores; None where it does not fit into memory.
Scored = tuple[int, Scores | None]


class Scorer:
    """Score passages in the order that computes least.

    Passages that share nothing are read together if they have equal length, `batch_size` at a time.
    """

    def __init__(self, passages: Sequence[Passage], setup: Setup, batch_size: int) -> None:
        self.passages = passages
        self.setup = setup
        self.head = setup.head
        self.counters = setup.counters
        self.chunk = setup.settings.prefill_chunk
        self.batch_size = batch_size
        self._plain: list[int] = []  # passages for plain forward passes after the walk

    @torch.no_grad()
    def scores(self, *, share: bool) -> Iterator[Scored]:
        """Score every passage, shared parts once. Each is yielded as soon as it is finished."""
        inputs = [passage.inputs for passage in self.passages]
        total = sum(map(len, inputs))
        plan = make_plan(inputs, reserve=0, max_suffix=self.chunk) if share else None
        if plan is None:
            self.counters.expect(total, total, total)
        else:
            self.counters.expect(total, plan.unique_tokens, plan.computed_tokens)
        if plan is not None and any(step.is_shared for step in plan.steps):
            reader = PathReader(self.setup, max(step.length for step in plan.steps))
            with shared_attention(self.setup.model, split=self.setup.split):
                for step in plan.steps:
                    yield from self._step(step, reader)
        else:
            self._plain = list(range(len(inputs)))
        yield from self._plain_passes(self._plain)

    def _step(self, step: Step, reader: PathReader) -> Iterator[Scored]:
        """Score the rows of a step; those without a shared part, or without memory, come later."""
        if not step.is_shared or not self._read(reader, step.members, step.start, step.length):
            self._plain += step.rows
            return
        if step.branches:
            reader.keep()
        rest = []
        for row in sorted(step.rows, key=lambda row: len(self.passages[row].inputs)):
            if len(self.passages[row].inputs) == step.length:
                yield row, Scores.joined(self.passages[row].parts)
            else:
                rest.append(row)
        widths = [len(self.passages[row].inputs) - step.length for row in rest]
        for batch in self.setup.batches(
            rest, widths, shared=step.length, extra=0, max_tokens=self.chunk,
            equal=not self.setup.reuse.padded,
        ):  # fmt: skip
            yield from self._batch(batch, step.length, reader)

    def _read(self, reader: PathReader, rows: Sequence[int], start: int, length: int) -> bool:
        """Bring the path to a prefix of rows and score it; False if memory ran out."""
        read = partial(self._chunk, rows, reader)
        return reader.extend(self.passages[rows[0]].inputs, start, length, read)

    def _chunk(
        self, rows: Sequence[int], reader: PathReader, tokens: list[int], position: int
    ) -> bool:
        """Read a chunk of a prefix and score it for every passage with scored positions in it."""
        end = position + len(tokens)
        members = [
            (passage, *passage.unscored(position, end))
            for passage in (self.passages[row] for row in rows)
            if passage.first < end <= len(passage.inputs)
        ]
        first = min((begin for _, begin, _ in members), default=end) - position
        states = self.head.states([tokens], first, reader.path)
        parts = []
        for _, begin, targets in members:
            offset = begin - position - first
            scored = states[0, offset : offset + len(targets)]
            parts.append(token_scores(self.head, scored, targets))
        # Only now: a chunk that runs out of memory half-way is scored again from its start.
        for (passage, _, _), part in zip(members, parts, strict=True):
            passage.parts.append(part)
        return True

    def _batch(self, batch: list[int], length: int, reader: PathReader) -> Iterator[Scored]:
        """Score rows after a shared prefix; if memory runs out, they are read without it later."""
        suffixes = [self.passages[row].inputs[length:] for row in batch]
        reader.cut(length)
        past = reader.path.fork(len(batch), max(map(len, suffixes)))
        states = attempt(self.head.states, suffixes, 0, past)
        if states is None:
            self._plain += batch
            return
        self.counters.prefilled(sum(map(len, suffixes)))
        for index, row in enumerate(batch):
            passage = self.passages[row]
            begin, targets = passage.unscored(length, len(passage.inputs))
            scored = states[index, begin - len(passage.inputs) :]
            passage.parts.append(token_scores(self.head, scored, targets))
            yield row, Scores.joined(passage.parts)

    def _plain_passes(self, rows: Sequence[int]) -> Iterator[Scored]:
        """Forward passes without a cache, passages of one length together."""
        by_length: dict[tuple[int, int], list[int]] = {}
        for row in rows:
            passage = self.passages[row]
            by_length.setdefault((-len(passage.inputs), passage.first), []).append(row)
        for key in sorted(by_length):
            group = by_length[key]
            # Short passages fill one chunk together, whatever the batch size is.
            most = self.setup.settings.question_batch_size
            size = max(self.batch_size, min(most, self.chunk // -key[0]))
            for first in range(0, len(group), size):
                batch = group[first : first + size]
                for row, scores in halving(self._plain_pass, batch, "passages"):
                    yield row, self._in_chunks(row) if scores is None else scores

    def _plain_pass(self, batch: list[int]) -> list[Scores]:
        passages = [self.passages[row] for row in batch]
        inputs = [passage.inputs for passage in passages]
        tokens = sum(map(len, inputs))
        with self.counters.within(decoder_layers(self.setup.model), tokens):
            states = self.head.states(inputs, passages[0].first)
        scores = [
            token_scores(self.head, each, passage.targets)
            for each, passage in zip(states, passages, strict=True)
        ]
        self.counters.prefilled(tokens)
        return scores

    def _in_chunks(self, row: int) -> Scores | None:
        """The last resort for one passage: read it in chunks with a cache of its own."""
        passage = self.passages[row]
        passage.parts.clear()
        length = len(passage.inputs)
        # Chunks need a cache, too.
        if not self.setup.refusal(length):
            logger.warning("out of memory: request %s is read in chunks", passage.name)
            reader = PathReader(self.setup, length, max(1, min(self.chunk, length // 2)))
            with shared_attention(self.setup.model, split=self.setup.split):
                if self._read(reader, [row], 0, length):
                    return Scores.joined(passage.parts)
        self.counters.failed(passage.name, length)
        return None
