"""Executing a plan's prefixes: one path of cached positions, extended in chunks and cut back."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from leval_backends import cache
from leval_backends.memory import free_memory, out_of_memory
from leval_backends.plan import Step
from leval_backends.reuse import Reuse, forward, keeps_logits
from leval_backends.settings import HFLongSettings
from leval_backends.telemetry import Counters

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Setup:
    """What decoding and scoring have in common.

    Attributes:
        model: A causal language model of transformers.
        reuse: What `reuse.examine` found.
        settings: Bounds on chunks and batches.
        counters: Where tokens and failures are counted.
    """

    model: Any
    reuse: Reuse
    settings: HFLongSettings
    counters: Counters

    @property
    def split(self) -> bool:
        """Whether the shared part of a cache is kept apart."""
        return self.reuse.mode == "split"


class PathReader:
    """The one path of cached positions that a walk over a plan needs.

    Args:
        setup: The model, and where computed tokens are counted.
        capacity: Longest prefix of the plan, in tokens.
        chunk: Tokens in one forward pass at most, `prefill_chunk` if None; halved when memory runs
            out.
    """

    def __init__(self, setup: Setup, capacity: int, chunk: int | None = None) -> None:
        self.setup = setup
        self.chunk = chunk or setup.settings.prefill_chunk
        self.path = cache.path_cache(capacity, split=setup.split)
        self.tokens: list[int] = []
        self._keep = {"logits_to_keep": 1} if keeps_logits(setup.model) else {}

    def extend(
        self,
        step: Step,
        prompt: Sequence[int],
        read: Callable[[list[int], int], object] | None = None,
    ) -> list[int]:
        """Bring the path to `prompt[:step.length]`, keeping the positions before `step.start`.

        Args:
            step: Where the walk is.
            prompt: The step's source.
            read: Computes a chunk, given its tokens and the position of the first; None for a
                bare forward pass.

        Returns:
            The tokens of the path.

        Raises:
            torch.OutOfMemoryError: Not even a chunk of one token fits.
        """
        self._cut(step.start)
        while len(self.tokens) < step.length:
            first = len(self.tokens)
            tokens = list(prompt[first : min(first + self.chunk, step.length)])
            try:
                (read or self._read)(tokens, first)
            except Exception as error:
                self._cut(first)
                if not out_of_memory(error) or self.chunk == 1:
                    raise
                self.chunk = max(1, len(tokens) // 2)
                logger.warning("out of memory: chunks of %d tokens from now on", self.chunk)
                free_memory()
                continue
            self.tokens += tokens
            self.setup.counters.prefilled(len(tokens))
        return self.tokens

    def _read(self, tokens: list[int], position: int) -> None:
        forward(self.setup.model, [tokens], self.path, split=self.setup.split, **self._keep)

    def _cut(self, length: int) -> None:
        del self.tokens[length:]
        for layer in self.path.layers:
            layer.truncate(length)

    def rows(self, length: int, extra: int, pads: torch.Tensor | None) -> cache.PrefixCache:
        """A cache for rows after the first `length` positions of the path."""
        return cache.rows_cache(self.path, length, extra, split=self.setup.split, pads=pads)


def batches(
    setup: Setup,
    rows: Sequence[int],
    widths: Sequence[int],
    *,
    shared: int,
    extra: int,
    max_tokens: int,
) -> Iterator[list[int]]:
    """Cut rows that hang on one prefix into batches that fit.

    Args:
        setup: Bounds on a batch: its rows, and its key/value caches, the path included.
        rows: Indices, in the order in which they are asked.
        widths: Own tokens of each row, in the same order.
        shared: Length of the shared prefix, copied for each row if the mode is `copied`.
        extra: Positions each row may add.
        max_tokens: Own tokens of a batch at most, padding included.
    """
    position_bytes = setup.reuse.bytes_per_position
    left = setup.settings.kv_cache_bytes - shared * position_bytes
    batch: list[int] = []
    widest = 0
    for row, tokens in zip(rows, widths, strict=True):
        width = max(widest, tokens)
        positions = width + extra + (shared if setup.reuse.mode == "copied" else 0)
        fits = (
            len(batch) < setup.settings.question_batch_size
            and (len(batch) + 1) * width <= max_tokens
            and (len(batch) + 1) * positions * position_bytes <= left
        )
        if batch and not fits:
            yield batch
            batch, width = [], tokens
        batch.append(row)
        widest = width
    if batch:
        yield batch
