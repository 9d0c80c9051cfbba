"""Going on where memory runs out."""

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")
logger = logging.getLogger(__name__)


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


def free_memory() -> None:
    """Give freed blocks back before a smaller attempt."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
