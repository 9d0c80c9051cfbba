"""Going on where memory runs out."""

import gc
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


def attempt(run: Callable[..., Result], *args: Any, **options: Any) -> Result | None:
    """What `run` returns; None where memory did not suffice, after what it held is given back."""
    try:
        return run(*args, **options)
    except Exception as error:
        if not out_of_memory(error):
            raise
    # Outside of the handler: the error would keep the tensors of every frame that it passed.
    free_memory()
    return None


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
