"""Executing a plan's prefixes: one path of cached positions, extended in chunks and cut back."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from leval_harness.backends.cache import PrefixCache
from leval_harness.backends.forward import rows_after
from leval_harness.backends.head import Head
from leval_harness.backends.memory import free_memory, out_of_memory
from leval_harness.backends.reuse import Reuse
from leval_harness.backends.settings import HFLongSettings
from leval_harness.backends.telemetry import Counters

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Setup:
    """What decoding and scoring have in common; `model` is a causal one of transformers.

    `kv_cache_bytes` bounds the caches held at once, that of the path included.
    """

    model: Any
    reuse: Reuse
    head: Head
    settings: HFLongSettings
    counters: Counters
    kv_cache_bytes: int

    def refusal(self, length: int) -> str:
        """Why a sequence of this length cannot use a shared prefix; empty if it can."""
        bound, taken = self.settings.kv_cache_gib, self.reuse.footprint.path(length) / (1 << 30)
        if bound is not None and taken > bound and not self.reuse.refusal(length):
            return f"their cache takes more than kv_cache_gib={bound:g}"
        return self.reuse.refusal(length)

    @property
    def split(self) -> bool:
        """Whether the shared part of a cache is kept apart."""
        return self.reuse.mode == "split"


class PathReader:
    """The one path of cached positions that a walk over a plan needs.

    Where a layer cannot be cut (a window that has dropped positions, a recurrent state), the path
    goes back to marks, which are set at the prefixes from which several steps start.

    Args:
        setup: The model, and where computed tokens are counted.
        capacity: Longest prefix of the plan, in tokens.
        chunk: Tokens in one forward pass at most, else `prefill_chunk`; halved without memory.
    """

    def __init__(self, setup: Setup, capacity: int, chunk: int | None = None) -> None:
        self.setup = setup
        self.chunk = chunk or setup.settings.prefill_chunk
        self.path = PrefixCache.path(setup.model.config, capacity, split=setup.split)
        self.tokens: list[int] = []
        self._marks = [(0, self.path.mark())]

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
        self.cut(start)
        while len(self.tokens) < length:
            first = len(self.tokens)
            tokens = list(prompt[first : min(first + self.chunk, length)])
            before = self.path.mark()
            try:
                (read or self._read)(tokens, first)
            except Exception as error:
                self.path.restore(before)
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
        self.setup.head.read([tokens], self.path)

    def mark(self) -> None:
        """Remember this place, so that `cut` can come back to it."""
        if not self.path.cuttable and self._marks[-1][0] < len(self.tokens):
            self._marks.append((len(self.tokens), self.path.mark()))

    def cut(self, length: int) -> None:
        """Go back to a length, or to the last mark before it; nothing where the path is shorter."""
        if len(self.tokens) <= length:
            return
        if self.path.cuttable:
            self.path.cut(length)
        else:
            while self._marks[-1][0] > length:
                self._marks.pop()
            length, mark = self._marks[-1]
            self.path.restore(mark)
        del self.tokens[length:]

    def rows(self, parts: Sequence[list[int]], length: int, extra: int) -> PrefixCache:
        """A cache for rows after the path's first `length` tokens, each with a part of its own.

        Where rows can be padded nothing of the parts has been read, else all but the last tokens.
        `extra` positions may come after the parts.
        """
        self.cut(length)
        return rows_after(self.path, parts, extra, self.setup.head.read)


def batches(
    setup: Setup,
    rows: Sequence[int],
    widths: Sequence[int],
    *,
    shared: int,
    extra: int,
    max_tokens: int,
    equal: bool = False,
) -> Iterator[list[int]]:
    """Cut rows that hang on one prefix into batches that fit.

    Args:
        setup: Bounds on a batch: its rows, and its key/value caches, the path included.
        rows: Indices, in the order in which they are asked.
        widths: Own tokens of each row.
        shared: Length of the prefix.
        extra: Positions each row may add.
        max_tokens: Own tokens of a batch at most, padding included.
        equal: Whether the rows of a batch have equally many own tokens.
    """
    taken = setup.reuse.footprint
    left = setup.kv_cache_bytes - taken.path(shared)
    batch: list[int] = []
    widest = 0
    for row, tokens in zip(rows, widths, strict=True):
        width = max(widest, tokens)
        each = taken.row(width + extra) + (0 if setup.split else taken.path(shared))
        fits = (
            len(batch) < setup.settings.question_batch_size
            and (len(batch) + 1) * width <= max_tokens
            and not (equal and width != widest)
        )
        if batch and fits and (len(batch) + 1) * each > left:
            fits = False
            setup.counters.bounded(setup.kv_cache_bytes, len(batch))
        if batch and not fits:
            yield batch
            batch, width = [], tokens
        batch.append(row)
        widest = width
    if batch:
        yield batch
