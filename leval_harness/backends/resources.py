"""What a backend uses: tokens, seconds and memory, and how it continues when memory runs out."""

import gc
import logging
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil
import torch
from tqdm import tqdm

Result = TypeVar("Result")
logger = logging.getLogger(__name__)

_GPU_SHARE, _MAIN_MEMORY_SHARE = 0.8, 0.5  # of the free memory, for caches
_CGROUP = Path("/sys/fs/cgroup")


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
    _ahead: int = field(default=0, repr=False)  # tokens that the bar shows before they count

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Add the wall time of a block."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - start

    @contextmanager
    def progress(self, title: str, *, disable: bool) -> Iterator[None]:
        """Show a progress bar of the tokens that a block computes."""
        # smoothing 0: the time left goes by the mean rate, steps are of very different lengths
        settings: dict[str, Any] = {"unit": "tok", "unit_scale": True, "smoothing": 0}
        with tqdm(total=0, desc=title, disable=disable, **settings) as self._bar:
            try:
                yield
            finally:
                self._bar = None

    def expect(self, prompts: int, unique: int, computed: int) -> None:
        """Count the tokens of prompts: all, unique ones, and those that will be computed.

        The last is the total of the progress bar, the longest answers included.
        """
        self.prompt_tokens += prompts
        self.tokens_unique += unique
        if self._bar is not None:
            self._bar.total += computed
            self._bar.refresh()

    def prefilled(self, tokens: int) -> None:
        """Count tokens of prompts that were just computed."""
        self.tokens_prefilled += tokens
        self.advance(tokens - self._ahead)
        self._ahead = 0

    def advance(self, tokens: int) -> None:
        """Move the progress bar by tokens that are computed or will not be."""
        if self._bar is not None:
            self._bar.update(tokens)

    @contextmanager
    def within(self, layers: Sequence[torch.nn.Module], tokens: int) -> Iterator[None]:
        """Move the progress bar after each layer of one forward pass over `tokens`.

        `prefilled`, which counts the tokens of a pass that succeeded, adds what is missing.
        """
        if self._bar is None or not layers:
            yield
            return

        def move(*_: Any) -> None:
            self._ahead += tokens // len(layers)
            self.advance(tokens // len(layers))

        hooks = [layer.register_forward_hook(move) for layer in layers]
        try:
            yield
        except BaseException:
            self.advance(-self._ahead)
            self._ahead = 0
            raise
        finally:
            for hook in hooks:
                hook.remove()

    def alone(self, reason: str) -> None:
        """Count a request that shares no prefix; the first for each reason is logged."""
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
        """Count a request that does not fit into memory in any way."""
        logger.error(
            "out of memory: request %s (%d tokens) has no result; the others continue", name, tokens
        )
        self.requests_failed.append(name)

    def work(self) -> dict[str, Any]:
        """Tokens and seconds, which every backend of ours reports."""
        return {
            "tokens_prefilled": self.tokens_prefilled,
            "tokens_shared": self.prompt_tokens - self.tokens_prefilled,
            "tokens_generated": self.tokens_generated,
            "tokens_unique": self.tokens_unique,
            "seconds": self.seconds,
        }

    def telemetry(self, device: torch.device) -> dict[str, Any]:
        """`work`, exceptional requests and steps, and the peak of memory in bytes.

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


def _peak_memory_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)


def free_bytes(devices: Iterable[torch.device]) -> int:
    """Bytes for caches on the devices that hold a model: a share of what is free.

    On a GPU, blocks that PyTorch holds and does not use count as free. Main memory is bounded by
    the process's cgroup, and a smaller share is taken because other processes use it.
    """
    gpus = {device for device in devices if device.type == "cuda"}
    if gpus:
        held = (torch.cuda.memory_reserved(gpu) - torch.cuda.memory_allocated(gpu) for gpu in gpus)
        return int(_GPU_SHARE * (sum(torch.cuda.mem_get_info(gpu)[0] for gpu in gpus) + sum(held)))
    free = [psutil.virtual_memory().available]
    with suppress(OSError, ValueError):  # cgroups of version 1 lack these files; no limit is "max"
        used = int((_CGROUP / "memory.current").read_text(encoding="ascii"))
        pages = (_CGROUP / "memory.stat").read_text(encoding="ascii").split()
        cached = int(pages[pages.index("file") + 1])
        free.append(int((_CGROUP / "memory.max").read_text(encoding="ascii")) - used + cached)
    return int(_MAIN_MEMORY_SHARE * max(0, min(free)))


def attempt(run: Callable[..., Result], *args: Any) -> Result | None:
    """The result of `run`. None if it ran out of memory; unused blocks are freed then."""
    from accelerate.utils.memory import should_reduce_batch_size

    try:
        return run(*args)
    except Exception as error:
        known = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not known and not should_reduce_batch_size(error):
            raise
    # Outside of the handler: the error keeps the tensors of every frame that it passed.
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return None


def halving(
    run: Callable[[list[int]], Sequence[Result]], rows: list[int], what: str
) -> Iterator[tuple[int, Result | None]]:
    """Each row with its result, computed together or in halves; None for a row that never fits."""
    results = attempt(run, rows)
    half = len(rows) // 2
    if results is not None:
        yield from zip(rows, results, strict=True)
    elif half:
        logger.warning("out of memory: %d %s at a time instead of %d", half, what, len(rows))
        yield from halving(run, rows[:half], what)
        yield from halving(run, rows[half:], what)
    else:
        yield rows[0], None
