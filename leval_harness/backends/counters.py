"""What a backend has done since it was loaded."""

import logging
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from leval_harness.backends.documents import unique_tokens

logger = logging.getLogger(__name__)


@dataclass
class Counters:
    """Tokens, seconds, and requests that share nothing, by reason; see `work`."""

    tokens_prompt: int = 0
    tokens_prefilled: int = 0
    tokens_generated: int = 0
    tokens_unique: int = 0
    seconds: float = 0.0
    requests_alone: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Add the wall time of a block."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - start

    def add_texts(self, texts: Sequence[list[int]]) -> None:
        """Count the token ids of requests."""
        self.tokens_prompt += sum(map(len, texts))
        self.tokens_unique += unique_tokens(texts)

    def alone(self, reason: str) -> None:
        """Count a request that shares nothing; the first for each reason is logged."""
        if reason not in self.requests_alone:
            logger.warning("requests that share no text: %s", reason)
        self.requests_alone[reason] = self.requests_alone.get(reason, 0) + 1

    def work(self) -> dict[str, Any]:
        """Tokens and seconds, which every backend of ours reports."""
        return {
            "tokens_prefilled": self.tokens_prefilled,
            "tokens_shared": self.tokens_prompt - self.tokens_prefilled,
            "tokens_generated": self.tokens_generated,
            "tokens_unique": self.tokens_unique,
            "seconds": self.seconds,
        }


def peak_memory_bytes(device: Any) -> int:
    """The peak of the device's tensors on CUDA, elsewhere that of the whole process."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)
