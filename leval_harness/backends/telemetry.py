"""What a backend has done: tokens, seconds, failures; and the progress bar that shows it."""

import logging
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from leval_harness.backends.plan import Plan

if TYPE_CHECKING:
    import torch

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
    batches_bounded: int = 0
    _bar: Any = field(default=None, repr=False)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Add the wall time of a block."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - start

    @contextmanager
    def shown(self, title: str, *, disable: bool) -> Iterator[None]:
        """Show a block's tokens as they are computed, of those that are expected."""
        with tqdm(total=0, desc=title, unit="tok", unit_scale=True, disable=disable) as self._bar:
            try:
                yield
            finally:
                self._bar = None

    def asked(self, plan: Plan, *, generated: int = 0) -> None:
        """Count prompts that are asked; the bar also expects the tokens `generated` at most."""
        self.prompt_tokens += plan.prompt_tokens
        self.tokens_unique += plan.unique_tokens
        if self._bar is not None:
            self._bar.total += plan.computed_tokens + generated
            self._bar.refresh()

    def prefilled(self, tokens: int) -> None:
        """Count tokens of prompts that were just computed."""
        self.tokens_prefilled += tokens
        self.advance(tokens)

    def advance(self, tokens: int) -> None:
        """Move the progress bar by tokens that are computed or will not be."""
        if self._bar is not None:
            self._bar.update(tokens)

    def alone(self, reason: str) -> None:
        """Count a request that shares no prefix; the first for a reason is logged."""
        if reason not in self.requests_alone:
            logger.warning("requests that share no prefix: %s", reason)
        self.requests_alone[reason] = self.requests_alone.get(reason, 0) + 1

    def bounded(self, size: int, rows: int) -> None:
        """Count a batch that a bound of `size` bytes made smaller; the first is logged."""
        if not self.batches_bounded:
            logger.warning(
                "caches may take %.3g GiB: %d rows at a time instead of more (kv_cache_gib)",
                size / (1 << 30),
                rows,
            )
        self.batches_bounded += 1

    def failed(self, name: str, tokens: int) -> None:
        """Count a request for which memory did not suffice in any way."""
        logger.error(
            "out of memory: request %s (%d tokens) has no result; the others count", name, tokens
        )
        self.requests_failed.append(name)

    def work(self) -> dict[str, Any]:
        """Counts in tokens and seconds: what every backend of ours can tell."""
        return {
            "tokens_prefilled": self.tokens_prefilled,
            "tokens_shared": self.prompt_tokens - self.tokens_prefilled,
            "tokens_generated": self.tokens_generated,
            "tokens_unique": self.tokens_unique,
            "seconds": self.seconds,
        }

    def telemetry(self, device: "torch.device") -> dict[str, Any]:
        """`work`, what went another way, and the peak of memory in bytes.

        On CUDA the peak is that of the device's tensors, elsewhere that of the whole process.
        """
        return {
            **self.work(),
            "peak_memory_bytes": _peak_memory_bytes(device),
            "requests_failed": list(self.requests_failed),
            "requests_alone": dict(self.requests_alone),
            "near_ties": list(self.near_ties),
            "batches_bounded": self.batches_bounded,
        }


def _peak_memory_bytes(device: "torch.device") -> int:
    if device.type == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)
