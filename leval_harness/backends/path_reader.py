"""Reading a plan's prefixes: one path of cached positions, extended in chunks and cut back."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from leval_harness.backends.arguments import HFLongSettings
from leval_harness.backends.cache import PrefixCache
from leval_harness.backends.forward import Head, rows_after
from leval_harness.backends.prefix_selfcheck import PrefixReuse
from leval_harness.backends.resources import Counters, attempt

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Setup:
    """What decoding and scoring have in common. `model` is a causal model of transformers.

    `kv_cache_bytes` bounds the caches held at once, that of the path included.
    """

    model: Any
    reuse: PrefixReuse
    head: Head
    settings: HFLongSettings
    counters: Counters
    kv_cache_bytes: int

    def refusal(self, length: int) -> str:
        """Why a sequence of this length cannot use a shared prefix; empty if it can."""
        reuse, bound = self.reuse, self.settings.kv_cache_gib
        if reuse.mode == "none":
            return reuse.reason
        if reuse.max_length is not None and length > reuse.max_length:
            return f"longer than {reuse.max_length} tokens, where the RoPE base changes"
        if bound is not None and reuse.footprint.path(length) > self.kv_cache_bytes:
            return f"their cache takes more than kv_cache_gib={bound:g}"
        return ""

    @property
    def split(self) -> bool:
        """Whether the shared part of a cache is stored apart."""
        return self.reuse.mode == "split"

    def batches(
        self,
        rows: Sequence[int],
        widths: Sequence[int],
        *,
        shared: int,
        extra: int,
        max_tokens: int,
        equal: bool = False,
    ) -> Iterator[list[int]]:
        """Divide the rows after one prefix into batches that fit.

        Args:
            rows: Indices, in the order in which they are run.
            widths: Own tokens of each row.
            shared: Length of the prefix.
            extra: Positions that each row may add.
            max_tokens: Largest number of own tokens of a batch, padding included.
            equal: Whether the rows of a batch must have equally many own tokens.
        """
        footprint = self.reuse.footprint
        free = self.kv_cache_bytes - footprint.path(shared)
        copied = 0 if self.split else footprint.path(shared)
        batch: list[int] = []
        widest = 0
        for row, tokens in zip(rows, widths, strict=True):
            width, size = max(widest, tokens), len(batch) + 1
            fits = (
                size <= self.settings.question_batch_size
                and size * width <= max_tokens
                and not (equal and width != widest)
            )
            if batch and fits and size * (footprint.row(width + extra) + copied) > free:
                fits = False
                self.counters.bounded(self.kv_cache_bytes, len(batch))
            if batch and not fits:
                yield batch
                batch, width = [], tokens
            batch.append(row)
            widest = width
        if batch:
            yield batch


class PathReader:
    """The one path of cached positions that a walk over a plan needs.

    Where a layer cannot be cut (a window that has dropped positions, a recurrent state), the path
    returns to snapshots, which are kept at the prefixes from which several steps start.

    Args:
        setup: The model, and where computed tokens are counted.
        capacity: Longest prefix of the plan, in tokens.
        chunk: Largest number of tokens in one forward pass, by default `prefill_chunk`. It is
            halved when memory runs out.
    """

    def __init__(self, setup: Setup, capacity: int, chunk: int | None = None) -> None:
        self.setup = setup
        self.chunk = chunk or setup.settings.prefill_chunk
        self.path = PrefixCache.path(setup.model.config, capacity, split=setup.split)
        self.tokens: list[int] = []
        self._snapshots = [(0, self.path.snapshot())]

    def extend(
        self,
        prompt: Sequence[int],
        start: int,
        length: int,
        read: Callable[[list[int], int], object] | None = None,
    ) -> bool:
        """Bring the path to `prompt[:length]`, keeping the positions before `start`.

        `read` computes a chunk, given its tokens and the position of the first, and does not return
        None. The result is False where not even one token fits into memory.
        """
        self.cut(start)
        while len(self.tokens) < length:
            first = len(self.tokens)
            tokens = list(prompt[first : min(first + self.chunk, length)])
            before = self.path.snapshot()
            if attempt(read or self._read, tokens, first) is None:
                self.path.restore(before)
                if self.chunk == 1:
                    return False
                self.chunk = max(1, len(tokens) // 2)
                logger.warning("out of memory: chunks of %d tokens from now on", self.chunk)
            else:
                self.tokens += tokens
                self.setup.counters.prefilled(len(tokens))
        return True

    def _read(self, tokens: list[int], position: int) -> bool:
        self.setup.head.read([tokens], self.path)
        return True

    def keep(self) -> None:
        """Keep a snapshot of this place, so that `cut` can return to it."""
        if not self.path.cuttable and self._snapshots[-1][0] < len(self.tokens):
            self._snapshots.append((len(self.tokens), self.path.snapshot()))

    def cut(self, length: int) -> None:
        """Return to a length, or to the last snapshot before it; nothing if the path is shorter."""
        if len(self.tokens) <= length:
            return
        if self.path.cuttable:
            self.path.cut(length)
        else:
            while self._snapshots[-1][0] > length:
                self._snapshots.pop()
            length, snapshot = self._snapshots[-1]
            self.path.restore(snapshot)
        del self.tokens[length:]

    def rows(self, parts: Sequence[list[int]], length: int, extra: int) -> PrefixCache:
        """`rows_after` the path's first `length` tokens."""
        self.cut(length)
        return rows_after(self.path, parts, extra, self.setup.head.read)
