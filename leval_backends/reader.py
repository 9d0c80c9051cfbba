"""Executing a plan's prefixes: one path of cached positions, extended in chunks and cut back."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from leval_backends import cache
from leval_backends.plan import Plan, Step
from leval_backends.reuse import Reuse, forward, keeps_logits

logger = logging.getLogger(__name__)


@dataclass
class Counters:
    """What a backend has done since it was loaded; see `telemetry`."""

    prompt_tokens: int = 0
    tokens_prefilled: int = 0
    tokens_generated: int = 0
    tokens_unique: int = 0
    seconds: float = 0.0
    requests_failed: list[str] = field(default_factory=list)
    requests_alone: dict[str, int] = field(default_factory=dict)
    near_ties: list[dict[str, Any]] = field(default_factory=list)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Add the wall time of a block."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - start

    def planned(self, plan: Plan) -> None:
        """Count what a plan is asked for; what it computes is counted as it happens."""
        self.prompt_tokens += plan.prompt_tokens
        self.tokens_unique += plan.unique_tokens

    def work(self) -> dict[str, Any]:
        """Counts in tokens and seconds: what every backend of ours can tell."""
        return {
            "tokens_prefilled": self.tokens_prefilled,
            "tokens_shared": self.prompt_tokens - self.tokens_prefilled,
            "tokens_generated": self.tokens_generated,
            "tokens_unique": self.tokens_unique,
            "seconds": self.seconds,
        }

    def telemetry(self, device: torch.device) -> dict[str, Any]:
        """Counts in tokens, seconds, and the peak of memory in bytes.

        On CUDA the peak is that of the device's tensors, elsewhere that of the whole process.
        """
        return {
            **self.work(),
            "peak_memory_bytes": peak_memory_bytes(device),
            "requests_failed": list(self.requests_failed),
            "requests_alone": dict(self.requests_alone),
            "near_ties": list(self.near_ties),
        }


def peak_memory_bytes(device: torch.device) -> int:
    """Largest use so far: allocated on the device for CUDA, else resident size of the process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)


def out_of_memory(error: Exception) -> bool:
    """Whether an exception says that memory ran out, on whatever device."""
    from accelerate.utils.memory import should_reduce_batch_size

    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or should_reduce_batch_size(
        error
    )


class PathReader:
    """The one path of cached positions that a walk over a plan needs.

    Args:
        model: A causal language model of transformers.
        reuse: What `reuse.examine` found.
        capacity: Longest prefix of the plan, in tokens.
        chunk: Tokens in one forward pass at most; halved when memory runs out.
        counters: Where computed tokens are counted.
    """

    def __init__(
        self, model: Any, reuse: Reuse, capacity: int, chunk: int, counters: Counters
    ) -> None:
        self.model = model
        self.reuse = reuse
        self.split = reuse.mode == "split"
        self.chunk = chunk
        self.counters = counters
        self.path = cache.path_cache(capacity, split=self.split)
        self.tokens: list[int] = []
        self._keep = {"logits_to_keep": 1} if keeps_logits(model) else {}

    def extend(
        self,
        step: Step,
        prompt: Sequence[int],
        *,
        call: Callable[[list[int], int], object] | None = None,
        progress: Callable[[int], object] = lambda tokens: None,
    ) -> None:
        """Bring the path to `prompt[:step.length]`, keeping the positions before `step.start`.

        Args:
            step: Where the walk is.
            prompt: The step's source.
            call: Runs one chunk instead of a bare forward pass; given the chunk's tokens and the
                position of the first. Scoring uses it.
            progress: Told how many tokens were computed.

        Raises:
            torch.OutOfMemoryError: Not even a chunk of one token fits.
        """
        self._cut(step.start)
        while len(self.tokens) < step.length:
            first = len(self.tokens)
            tokens = list(prompt[first : min(first + self.chunk, step.length)])
            try:
                if call is None:
                    forward(self.model, [tokens], self.path, split=self.split, **self._keep)
                else:
                    call(tokens, first)
            except Exception as error:
                self._cut(first)
                if not out_of_memory(error) or self.chunk == 1:
                    raise
                self.chunk = max(1, len(tokens) // 2)
                logger.warning("out of memory: chunks of %d tokens from now on", self.chunk)
                free_memory()
                continue
            self.tokens += tokens
            self.counters.tokens_prefilled += len(tokens)
            progress(len(tokens))

    def _cut(self, length: int) -> None:
        del self.tokens[length:]
        for layer in self.path.layers:
            layer.truncate(length)

    def rows(self, length: int, extra: int, pads: torch.Tensor | None) -> cache.PrefixCache:
        """A cache for rows after the first `length` positions of the path."""
        return cache.rows_cache(self.path, length, extra, split=self.split, pads=pads)


def free_memory() -> None:
    """Give freed blocks back before a smaller attempt."""
    import gc

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def batches(
    rows: Sequence[int],
    own: Sequence[int],
    *,
    shared: int,
    extra: int,
    reuse: Reuse,
    budget_bytes: int,
    max_rows: int,
    max_tokens: int,
) -> Iterator[list[int]]:
    """Cut rows that hang on one prefix into batches that fit.

    Args:
        rows: Indices, in the order in which they are asked.
        own: Own tokens of each row, in the same order.
        shared: Length of the shared prefix, copied for each row if the mode is `copied`.
        extra: Positions each row may add.
        reuse: Mode and bytes per position.
        budget_bytes: For the key/value caches of one batch, the path included.
        max_rows: Rows in a batch at most.
        max_tokens: Own tokens of a batch at most, padding included.
    """
    left = budget_bytes - shared * reuse.bytes_per_position
    batch: list[int] = []
    widest = 0
    for row, tokens in zip(rows, own, strict=True):
        width = max(widest, tokens)
        positions = width + extra + (shared if reuse.mode == "copied" else 0)
        fits = (
            len(batch) < max_rows
            and (len(batch) + 1) * width <= max_tokens
            and (len(batch) + 1) * positions * reuse.bytes_per_position <= left
        )
        if batch and not fits:
            yield batch
            batch, width = [], tokens
        batch.append(row)
        widest = width
    if batch:
        yield batch
