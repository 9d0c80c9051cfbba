"""Going on where memory runs out."""

import gc
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")
logger = logging.getLogger(__name__)

_OF_A_GPU, _OF_MAIN_MEMORY = 0.8, 0.5
_CGROUP = Path("/sys/fs/cgroup")


def attempt(run: Callable[..., Result], *args: Any) -> Result | None:
    """What `run` returns; None where memory did not suffice, after what it held is given back."""
    try:
        return run(*args)
    except Exception as error:
        if not out_of_memory(error):
            raise
    # Outside of the handler: the error would keep the tensors of every frame that it passed.
    free_memory()
    return None


def halving(
    run: Callable[[list[int]], Sequence[Result]], rows: list[int], what: str
) -> Iterator[tuple[int, Result | None]]:
    """Each row with its result, asked together or in halves; None where one alone is too much."""
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


def out_of_memory(error: Exception) -> bool:
    """Whether an exception says that memory ran out, on whatever device."""
    from accelerate.utils.memory import should_reduce_batch_size

    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or should_reduce_batch_size(
        error
    )


def free_bytes(devices: Iterable[torch.device]) -> int:
    """Bytes for caches on devices that hold a model: what is free, less what computing takes.

    Of a GPU's memory, blocks that PyTorch holds and does not use count as free; main memory is
    shared with everything else on the machine, within what the process's cgroup may have.
    """
    gpus = {device for device in devices if device.type == "cuda"}
    if gpus:
        held = (torch.cuda.memory_reserved(gpu) - torch.cuda.memory_allocated(gpu) for gpu in gpus)
        return int(_OF_A_GPU * (sum(torch.cuda.mem_get_info(gpu)[0] for gpu in gpus) + sum(held)))
    import psutil

    free = [psutil.virtual_memory().available]
    with suppress(OSError, ValueError):  # there are other kinds of cgroups, and no limit is "max"
        used = int((_CGROUP / "memory.current").read_text(encoding="ascii"))
        pages = (_CGROUP / "memory.stat").read_text(encoding="ascii").split()
        cached = int(pages[pages.index("file") + 1])
        free.append(int((_CGROUP / "memory.max").read_text(encoding="ascii")) - used + cached)
    return int(_OF_MAIN_MEMORY * max(0, min(free)))


def free_memory() -> None:
    """Give freed blocks back before a smaller attempt."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
