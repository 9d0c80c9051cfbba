"""Log-likelihoods of given tokens, with every shared context read once."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from leval_harness.backends.counters import Counters
from leval_harness.backends.documents import batches, sized
from leval_harness.backends.forward import Head, token_scores
from leval_harness.backends.reading import Reader
from leval_tasks.token_logprobs import SumOfLogprobs

logger = logging.getLogger(__name__)


class Passage:
    """Tokens of which a part at the end is scored.

    Attributes:
        number: Of the request.
        inputs: What the model reads: context and scored tokens without the last.
        targets: Scored tokens; target `i` is predicted at input `first + i`.
        first: First scored input position.
        logprob: Natural logarithm of each target's probability, float32 `[targets]`.
        correct: Whether the target is the most probable token, bool `[targets]`.
    """

    def __init__(self, number: int, inputs: list[int], targets: list[int]) -> None:
        self.number, self.inputs, self.targets = number, inputs, targets
        self.first = len(inputs) - len(targets)
        self.logprob = torch.empty(len(targets))
        self.correct = torch.empty(len(targets), dtype=torch.bool)

    @classmethod
    def after_context(
        cls,
        number: int,
        name: str,
        context: Sequence[int],
        scored: Sequence[int],
        max_length: int,
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
        return cls(number, whole[surplus:-1], list(scored))

    @classmethod
    def whole(cls, number: int, name: str, tokens: Sequence[int], max_length: int) -> "Passage":
        """A passage of which every token but the first is scored."""
        if not 2 <= len(tokens) <= max_length + 1:
            raise ValueError(
                f"request {name}: {len(tokens)} tokens; a sequence needs 2 to max_length + 1 = "
                f"{max_length + 1}"
            )
        return cls(number, list(tokens[:-1]), list(tokens[1:]))

    @property
    def answer(self) -> tuple[SumOfLogprobs, bool]:
        """What lm-eval expects: the sum in float64, with its parts, and whether all are correct."""
        total = SumOfLogprobs(float(self.logprob.double().sum()), self.logprob.numpy())
        return total, bool(self.correct.all())


class Text(list[Passage]):
    """Passages that read the same tokens, and are scored from one reading."""

    @property
    def inputs(self) -> list[int]:
        """What all of them read."""
        return self[0].inputs

    @property
    def first(self) -> int:
        """First input position that is scored for a passage."""
        return min(passage.first for passage in self)

    def score(self, head: Head, position: int, states: Tensor) -> None:
        """Score what states `[positions, ...]` predict, the first at `position`."""
        for each in self:
            begin, end = max(position, each.first), min(position + len(states), len(each.inputs))
            if begin < end:
                part = slice(begin - each.first, end - each.first)
                wanted = states[begin - position : end - position]
                found = token_scores(head, wanted, each.targets[part])
                each.logprob[part], each.correct[part] = found


@dataclass
class Scorer:
    """Scores passages in the order that reads least.

    Attributes:
        head: of the model.
        reader: of shared texts; None where nothing is shared.
        counters: which count the tokens that are read.
        most: largest number of rows in a forward pass.
        tokens: largest number of their tokens, where it is several rows.
        chunk: tokens of a text that shares nothing in one forward pass, None for all.
    """

    head: Head
    reader: Reader | None
    counters: Counters
    most: int
    tokens: int
    chunk: int | None

    def together(self, passages: Sequence[Passage]) -> Iterator[Passage]:
        """Score passages, what they share once; each is yielded when it is finished."""
        reader = self.reader
        if reader is None:
            yield from self.apart(passages)
            return
        by_tokens: dict[tuple[int, ...], Text] = {}
        for passage in passages:
            by_tokens.setdefault(tuple(passage.inputs), Text()).append(passage)
        texts, alone = list(by_tokens.values()), []
        most = [max(0, text.first + 1 - reader.least) for text in texts]
        for batch in batches([text.inputs for text in texts], most, reader.least):
            if not batch.shared:
                alone += [texts[row] for row in batch.rows]
                continue
            reader.read(texts[batch.source].inputs[: batch.shared])
            reader.keep()
            widths = {row: len(texts[row].inputs) - batch.shared for row in batch.rows}
            rows = sorted(batch.rows, key=widths.__getitem__)
            most_rows = 1 if reader.copied else self.most
            for each in sized(rows, widths, most_rows, self.tokens):
                yield from self._after(reader, [texts[row] for row in each], batch.shared)
        yield from self._alone(alone)

    def apart(self, passages: Sequence[Passage]) -> Iterator[Passage]:
        """Score passages by themselves; each is yielded when it is finished."""
        return self._alone([Text([passage]) for passage in passages])

    def _after(self, reader: Reader, texts: list[Text], shared: int) -> Iterator[Passage]:
        """Score texts that go on from a shared one."""
        first = min(text.first for text in texts)
        if len(texts) == 1:
            reader.read(texts[0].inputs, first, partial(texts[0].score, self.head))
        else:
            reader.read(texts[0].inputs[:shared])
            rows = [text.inputs[shared:] for text in texts]
            for text, states in zip(texts, reader.states(rows, first - shared), strict=True):
                text.score(self.head, first, states)
        for text in texts:
            yield from text

    def _alone(self, texts: Sequence[Text]) -> Iterator[Passage]:
        """Score texts that share nothing by forward passes without a cache."""
        by_length: dict[int, list[Text]] = {}
        for text in sorted(texts, key=lambda text: -len(text.inputs)):
            by_length.setdefault(len(text.inputs), []).append(text)
        for length, group in by_length.items():
            if self.reader is not None and self.chunk is not None and length > self.chunk:
                for text in group:
                    yield from self._after(self.reader, [text], 0)
                continue
            size = max(1, min(self.most, self.tokens // length))
            for start in range(0, len(group), size):
                rows = group[start : start + size]
                first = min(text.first for text in rows)
                states = self.head.states([text.inputs for text in rows], first)
                self.counters.tokens_prefilled += length * len(rows)
                for text, each in zip(rows, states, strict=True):
                    text.score(self.head, first, each)
                    yield from text
