"""Log-likelihoods of given tokens, with every shared context read once."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from leval_harness.backends.answers import sized
from leval_harness.backends.counters import Counters
from leval_harness.backends.documents import batches
from leval_harness.backends.forward import Head, Scores, token_scores
from leval_harness.backends.reading import Reader

logger = logging.getLogger(__name__)


@dataclass
class Passage:
    """Tokens of which a part at the end is scored.

    Attributes:
        number: Of the request.
        inputs: What the model reads: context and scored tokens without the last.
        targets: Scored tokens; target `i` is predicted at input `first + i`.
        parts: Scores of the first targets, as far as they are computed.
    """

    number: int
    inputs: list[int]
    targets: list[int]
    parts: list[Scores] = field(default_factory=list)

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
    def first(self) -> int:
        """First scored input position."""
        return len(self.inputs) - len(self.targets)

    @property
    def scores(self) -> Scores:
        """Of all targets."""
        return Scores.joined(self.parts)

    def score(self, head: Head, position: int, states: Tensor) -> None:
        """Score the targets that states `[positions, ...]` predict, the first at `position`."""
        begin, end = max(position, self.first), min(position + len(states), len(self.inputs))
        if begin < end:
            targets = self.targets[begin - self.first : end - self.first]
            wanted = states[begin - position : end - position]
            self.parts.append(token_scores(head, wanted, targets))


@dataclass
class Text:
    """Passages that read the same tokens, and are scored from one reading."""

    inputs: list[int]
    passages: list[Passage] = field(default_factory=list)

    @property
    def first(self) -> int:
        """First input position that is scored for a passage."""
        return min(passage.first for passage in self.passages)

    def score(self, head: Head, position: int, states: Tensor) -> None:
        """Score all passages from states, the first at `position`."""
        for passage in self.passages:
            passage.score(head, position, states)


class Scorer:
    """Scores passages in the order that reads least.

    Args:
        head: of the model.
        reader: of shared texts; None where nothing is shared.
        most: largest number of rows in a forward pass.
        tokens: largest number of their tokens, where it is several rows.
        size: rows of texts that share nothing, whatever their tokens are.
        chunk: tokens of a text that shares nothing in one forward pass, None for all.
        counters: which count the tokens that are read.
    """

    def __init__(
        self,
        head: Head,
        reader: Reader | None,
        counters: Counters,
        *,
        most: int,
        tokens: int,
        size: int,
        chunk: int | None,
    ) -> None:
        self.head, self.reader, self.counters = head, reader, counters
        self.most, self.tokens, self.size, self.chunk = most, tokens, size, chunk

    def together(self, passages: Sequence[Passage]) -> Iterator[Passage]:
        """Score passages, what they share once; each is yielded when it is finished."""
        reader = self.reader
        if reader is None:
            yield from self.apart(passages)
            return
        by_tokens: dict[tuple[int, ...], Text] = {}
        for passage in passages:
            text = by_tokens.setdefault(tuple(passage.inputs), Text(passage.inputs))
            text.passages.append(passage)
        texts, alone = list(by_tokens.values()), []
        # A pass of a single token is decoding, which some recurrent models compute otherwise.
        least = 2 if reader.copied else 1
        most = [max(0, text.first + 1 - least) for text in texts]
        for batch in batches([text.inputs for text in texts], most, least):
            if not batch.shared:
                alone += [texts[row] for row in batch.rows]
                continue
            reader.read(texts[batch.source].inputs[: batch.shared])
            reader.path.keep()
            widths = {row: len(texts[row].inputs) - batch.shared for row in batch.rows}
            rows = sorted(batch.rows, key=widths.__getitem__)
            for each in sized(rows, widths, 1 if reader.copied else self.most, self.tokens):
                yield from self._after(reader, [texts[row] for row in each], batch.shared)
        yield from self._alone(alone)

    def apart(self, passages: Sequence[Passage]) -> Iterator[Passage]:
        """Score passages by themselves; each is yielded when it is finished."""
        return self._alone([Text(passage.inputs, [passage]) for passage in passages])

    def _after(self, reader: Reader, texts: list[Text], shared: int) -> Iterator[Passage]:
        """Score texts that go on from a shared one."""
        if len(texts) == 1:
            (text,) = texts
            reader.read(text.inputs, text.first, partial(text.score, self.head))
        else:
            first = min(text.first for text in texts)
            reader.read(texts[0].inputs[:shared])
            rows = [text.inputs[shared:] for text in texts]
            for text, states in zip(texts, reader.states(rows, first - shared), strict=True):
                text.score(self.head, first, states)
        for text in texts:
            yield from text.passages

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
            size = max(self.size, min(self.most, self.tokens // length))
            for start in range(0, len(group), size):
                rows = group[start : start + size]
                first = min(text.first for text in rows)
                states = self.head.states([text.inputs for text in rows], first)
                self.counters.tokens_prefilled += length * len(rows)
                for text, each in zip(rows, states, strict=True):
                    text.score(self.head, first, each)
                    yield from text.passages
