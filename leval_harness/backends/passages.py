"""Log-likelihoods of given tokens, with every shared context read once."""

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from leval_harness.backends.documents import batches
from leval_harness.backends.forward import Head, token_scores
from leval_harness.backends.reading import Reader
from leval_tasks.token_logprobs import SumOfLogprobs

logger = logging.getLogger(__name__)


class Passage:
    """Tokens of which a part at the end is scored; what is too long is cut on the left.

    `key` is lm-eval's key of the request, None where its answer is not cached.

    Attributes:
        inputs: What the model reads: context and scored tokens without the last.
        targets: Scored tokens; target `i` is predicted at input `first + i`.
        logprob: Natural logarithm of each target's probability, float32 `[targets]`.
        correct: Whether the target is the most probable token, bool `[targets]`.
    """

    def __init__(
        self, context: Sequence[int], scored: Sequence[int], max_length: int, key: Any = None
    ) -> None:
        if not context or not scored:
            raise ValueError(f"the {'scored part' if context else 'context'} has no tokens")
        if len(scored) > max_length:
            raise ValueError(
                f"{len(scored)} scored tokens do not fit max_length={max_length}; raise max_length "
                "or score fewer tokens at a time"
            )
        surplus = max(0, len(context) + len(scored) - (max_length + 1))
        if surplus:
            logger.warning("%d tokens of a context cut from the left", surplus)
        self.key = key
        self.inputs, self.targets = [*context, *scored][surplus:-1], list(scored)
        self.first = len(self.inputs) - len(self.targets)
        self.logprob = torch.empty(len(self.targets))
        self.correct = torch.empty(len(self.targets), dtype=torch.bool)

    @property
    def answer(self) -> tuple[SumOfLogprobs, bool]:
        """What lm-eval expects: the sum in float64, with its parts, and whether all are correct."""
        total = SumOfLogprobs(float(self.logprob.double().sum()), self.logprob.numpy())
        return total, bool(self.correct.all())

    def score(self, head: Head, position: int, states: Tensor) -> None:
        """Score what states `[positions, ...]` predict, the first at `position`."""
        part = slice(position - self.first, position - self.first + len(states))
        self.logprob[part], self.correct[part] = token_scores(head, states, self.targets[part])


def scored(
    head: Head, reader: Reader | None, passages: Sequence[Passage], chunk: int | None
) -> Iterator[Passage]:
    """Score passages, what they share once, in the order that reads least; yield what is finished.

    Without a `reader` of shared texts each passage is read by itself. `chunk` is the tokens of a
    text that shares nothing in one forward pass, None for all.
    """
    least = 1 if reader is None else reader.least
    most = [0 if reader is None else max(0, each.first + 1 - least) for each in passages]
    for batch in batches([each.inputs for each in passages], most, least):
        if reader is not None and batch.prefix:
            reader.read(batch.prefix)
            reader.keep()
        for each in (passages[row] for row in batch.rows):
            in_one_pass = not batch.prefix and (chunk is None or len(each.inputs) <= chunk)
            if reader is None or in_one_pass:
                each.score(head, each.first, head.states([each.inputs], each.first)[0])
            else:
                reader.read(each.inputs, each.first, partial(each.score, head))
            yield each
