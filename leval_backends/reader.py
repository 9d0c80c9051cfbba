"""Executing a plan's prefixes: one path of cached positions, extended in chunks and cut back."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from leval_backends.cache import PrefixCache
from leval_backends.head import Head
from leval_backends.memory import free_memory, out_of_memory
from leval_backends.reuse import Reuse
from leval_backends.settings import HFLongSettings
from leval_backends.telemetry import Counters

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Setup:
    """What decoding and scoring have in common; `model` is a causal one of transformers."""

    model: Any
    reuse: Reuse
    head: Head
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
        chunk: Tokens in one forward pass at most, else `prefill_chunk`; halved without memory.
    """

    def __init__(self, setup: Setup, capacity: int, chunk: int | None = None) -> None:
        self.setup = setup
        self.chunk = chunk or setup.settings.prefill_chunk
        self.path = PrefixCache(capacity, split=setup.split)
        self.tokens: list[int] = []

    def extend(
        self,
        prompt: Sequence[int],
        start: int,
        length: int,
        read: Callable[[list[int], int], object] | None = None,
    ) -> list[int]:
        """Bring the path to `prompt[:length]`, keeping the positions before `start`.

        A chunk is computed by `read`, given its tokens and the position of the first. Where not
        even one token fits, running out of memory is raised.
        """
        self._cut(start)
        while len(self.tokens) < length:
            first = len(self.tokens)
            tokens = list(prompt[first : min(first + self.chunk, length)])
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
        self.setup.head.run([tokens], len(tokens), self.path)

    def _cut(self, length: int) -> None:
        del self.tokens[length:]
        self.path.truncate(length)


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
        widths: Own tokens of each row.
        shared: Length of the prefix.
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
