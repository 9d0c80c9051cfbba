"""Log-likelihoods of given tokens, with every shared context computed once."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from leval_backends import attention
from leval_backends.cache import PrefixCache
from leval_backends.head import Head, Scores
from leval_backends.plan import Step, make_plan
from leval_backends.reader import Counters, PathReader, batches, free_memory, out_of_memory
from leval_backends.reuse import Reuse, forward, implementation, input_device

logger = logging.getLogger(__name__)


@dataclass
class Passage:
    """Tokens of which a part at the end is scored.

    Attributes:
        name: How it is called in messages.
        inputs: What the model reads: context and scored tokens without the last.
        targets: Scored tokens; target `i` is predicted at input `len(inputs) - len(targets) + i`.
    """

    name: str
    inputs: list[int]
    targets: list[int]
    parts: list[Scores] = field(default_factory=list)

    @property
    def first(self) -> int:
        """First scored input position."""
        return len(self.inputs) - len(self.targets)

    def wanted(self, start: int, end: int) -> tuple[int, list[int]]:
        """First scored position among the inputs `[start, end)`, and the targets from there."""
        begin = max(start, self.first)
        return begin, self.targets[max(0, begin - self.first) : max(0, end - self.first)]

    def scores(self) -> Scores:
        """All parts in order of position."""
        return Scores(
            torch.cat([part.logprob for part in self.parts]),
            torch.cat([part.correct for part in self.parts]),
        )


class Scorer:
    """Score passages in the order of a plan.

    Args:
        head: Of the model.
        reuse: What `reuse.examine` found; with mode `none` nothing is shared.
        counters: What is counted.
        budget_bytes: For key/value caches.
        max_rows: Passages in one forward pass at most, when they share a prefix.
        batch_size: Passages of equal length in one forward pass, when they share nothing.
        chunk: Tokens in a forward pass over a shared prefix at most.
        progress: Told how many tokens were computed.
        expect: Told before the start how many there will be.
    """

    def __init__(
        self,
        head: Head,
        reuse: Reuse,
        counters: Counters,
        *,
        budget_bytes: int,
        max_rows: int,
        batch_size: int,
        chunk: int,
        progress: Callable[[int], object] = lambda tokens: None,
        expect: Callable[[int], object] = lambda tokens: None,
    ) -> None:
        self.head = head
        self.model = head.model
        self.reuse = reuse
        self.counters = counters
        self.budget_bytes = budget_bytes
        self.max_rows = max_rows
        self.batch_size = batch_size
        self.chunk = chunk
        self.progress = progress
        self.expect = expect
        self._left: list[int] = []  # passages for plain forward passes after the walk

    @torch.no_grad()
    def score(
        self, passages: Sequence[Passage], done: Callable[[int, Scores | None], object]
    ) -> None:
        """Score every passage.

        Args:
            passages: In any order.
            done: Called once a passage with its index and scores; None where memory did not
                suffice.
        """
        plan = make_plan([passage.inputs for passage in passages], reserve=0, max_suffix=self.chunk)
        self.counters.planned(plan)
        self.expect(plan.computed_tokens)
        self._left = []
        if self.reuse.mode == "none" or not any(_shared(step) for step in plan.steps):
            self._left = list(range(len(passages)))
        else:
            self._walk(plan.steps, passages, done)
        self._alone(self._left, passages, done)

    @torch.no_grad()
    def score_alone(
        self, passages: Sequence[Passage], done: Callable[[int, Scores | None], object]
    ) -> None:
        """Score every passage by one forward pass of its own, nothing shared; else as `score`."""
        total = sum(len(passage.inputs) for passage in passages)
        self.counters.prompt_tokens += total
        self.counters.tokens_unique += total
        self.expect(total)
        self._alone(range(len(passages)), passages, done)

    def _walk(
        self,
        steps: Sequence[Step],
        passages: Sequence[Passage],
        done: Callable[[int, Scores | None], object],
    ) -> None:
        """Score what shares something; put the passages that share nothing aside."""
        capacity = max(step.length for step in steps)
        reader = PathReader(self.model, self.reuse, capacity, self.chunk, self.counters)
        with implementation(self.model, split=reader.split):
            for step in steps:
                if _shared(step):
                    self._step(step, passages, reader, done)
                else:
                    self._left += step.rows

    def _step(
        self,
        step: Step,
        passages: Sequence[Passage],
        reader: PathReader,
        done: Callable[[int, Scores | None], object],
    ) -> None:
        source = passages[step.source].inputs

        def call(tokens: list[int], position: int) -> None:
            self._chunk(tokens, position, step, passages, reader)

        try:
            reader.extend(step, source, call=call, progress=self.progress)
        except Exception as error:
            if not out_of_memory(error):
                raise
            free_memory()
            self._left += step.rows
            return
        rows = sorted(step.rows, key=lambda row: len(passages[row].inputs))
        finished = [row for row in rows if len(passages[row].inputs) == step.length]
        for row in finished:
            done(row, passages[row].scores())
        rest = rows[len(finished) :]
        for batch in batches(
            rest,
            [len(passages[row].inputs) - step.length for row in rest],
            shared=step.length,
            extra=0,
            reuse=self.reuse,
            budget_bytes=self.budget_bytes,
            max_rows=self.max_rows,
            max_tokens=self.chunk,
        ):
            self._batch(batch, step.length, passages, reader, done)

    def _chunk(
        self,
        tokens: list[int],
        position: int,
        step: Step,
        passages: Sequence[Passage],
        reader: PathReader,
    ) -> None:
        """One chunk of a prefix, scored for every passage that has scored positions in it."""
        end = position + len(tokens)
        members = [
            (passages[row], *passages[row].wanted(position, end))
            for row in step.members
            if passages[row].first < end <= len(passages[row].inputs)
        ]
        first = min((begin for _, begin, _ in members), default=end) - position
        states = self._after(tokens, position, first if members else -1, reader)
        parts = []
        for _, begin, targets in members:
            offset = begin - position - first
            parts.append(self.head.score(states[0, offset : offset + len(targets)], targets))
        # Only now: a chunk that runs out of memory half-way is scored again from its start.
        for (passage, _, _), part in zip(members, parts, strict=True):
            passage.parts.append(part)

    def _after(
        self, tokens: list[int], position: int, first: int, reader: PathReader
    ) -> torch.Tensor:
        device = input_device(self.model)
        places = torch.arange(position, position + len(tokens), device=device)[None]
        with attention.attending(reader.path):
            return self.head.run(
                torch.tensor([tokens], device=device),
                first,
                position_ids=places,
                past_key_values=reader.path,
                use_cache=True,
            )

    def _batch(
        self,
        batch: list[int],
        length: int,
        passages: Sequence[Passage],
        reader: PathReader,
        done: Callable[[int, Scores | None], object],
    ) -> None:
        """Rows after a shared prefix; where memory runs out, each of them by itself."""
        own = [passages[row].inputs[length:] for row in batch]
        width = max(map(len, own))
        device = input_device(self.model)
        pads = torch.tensor([width - len(row) for row in own], device=device)
        past = reader.rows(length, width, pads if bool(pads.any()) else None)
        try:
            states = self._states(own, past, reader.split)
        except Exception as error:
            if not out_of_memory(error):
                raise
            free_memory()
            self._left += batch
            return
        self.counters.tokens_prefilled += sum(map(len, own))
        self.progress(sum(map(len, own)))
        for index, row in enumerate(batch):
            passage = passages[row]
            begin, targets = passage.wanted(length, len(passage.inputs))
            from_end = len(passage.inputs) - begin
            passage.parts.append(self.head.score(states[index, -from_end:], targets))
            done(row, passage.scores())

    def _states(self, own: list[list[int]], past: PrefixCache, split: bool) -> torch.Tensor:
        """Hidden states or logits of all own positions, left-padded."""
        if self.head.decoder is None:
            return forward(self.model, own, past, split=split).logits
        return forward(self.model, own, past, split=split, run=self.head.decoder).last_hidden_state

    def _alone(
        self,
        rows: Sequence[int],
        passages: Sequence[Passage],
        done: Callable[[int, Scores | None], object],
    ) -> None:
        """Plain forward passes without a cache, passages of one length together."""
        by_length: dict[tuple[int, int], list[int]] = {}
        for row in rows:
            passage = passages[row]
            by_length.setdefault((-len(passage.inputs), passage.first), []).append(row)
        for key in sorted(by_length):
            group = by_length[key]
            # Short passages fill one chunk together, whatever the batch size.
            size = max(self.batch_size, min(self.max_rows, self.chunk // -key[0]))
            for first in range(0, len(group), size):
                self._plain(group[first : first + size], passages, done)

    def _plain(
        self,
        batch: list[int],
        passages: Sequence[Passage],
        done: Callable[[int, Scores | None], object],
    ) -> None:
        """One forward pass; where memory runs out, its halves; then chunks; then failure."""
        device = input_device(self.model)
        first = passages[batch[0]].first
        inputs = [passages[row].inputs for row in batch]
        try:
            states = self.head.run(torch.tensor(inputs, device=device), first, use_cache=False)
            scored = [
                self.head.score(states[index], passages[row].targets)
                for index, row in enumerate(batch)
            ]
        except Exception as error:
            if not out_of_memory(error):
                raise
            free_memory()
            half = len(batch) // 2
            if half:
                logger.warning("out of memory: %d passages at a time", half)
                self._plain(batch[:half], passages, done)
                self._plain(batch[half:], passages, done)
            else:
                self._in_chunks(batch[0], passages, done)
            return
        for row, scores in zip(batch, scored, strict=True):
            self.counters.tokens_prefilled += len(passages[row].inputs)
            self.progress(len(passages[row].inputs))
            done(row, scores)

    def _in_chunks(
        self,
        row: int,
        passages: Sequence[Passage],
        done: Callable[[int, Scores | None], object],
    ) -> None:
        """The last resort for one passage: read it in chunks with a cache of its own."""
        passage = passages[row]
        passage.parts.clear()
        length = len(passage.inputs)
        try:
            if self.reuse.mode == "none" or length > (self.reuse.max_length or length):
                raise MemoryError  # no cache is right for it, so chunks are not either
            reader = PathReader(
                self.model, self.reuse, length, max(1, min(self.chunk, length // 2)), self.counters
            )
            step = Step(row, 0, length, (row,), (row,))

            def call(tokens: list[int], position: int) -> None:
                self._chunk(tokens, position, step, passages, reader)

            logger.warning("out of memory: request %s is read in chunks", passage.name)
            with implementation(self.model, split=reader.split):
                reader.extend(step, passage.inputs, call=call, progress=self.progress)
        except Exception as error:
            if not out_of_memory(error):
                raise
            logger.error(
                "out of memory: request %s (%d tokens) has no result; the others count",
                passage.name,
                length,
            )
            self.counters.requests_failed.append(passage.name)
            done(row, None)
            return
        done(row, passage.scores())


def _shared(step: Step) -> bool:
    """Whether a step stands on positions that several passages use."""
    return step.start > 0 or (step.length > 0 and len(step.members) > 1)
