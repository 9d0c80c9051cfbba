"""Rotary embeddings for vLLM: what vLLM builds for a model, with another cos/sin table.

Classes, kernels, torch.compile and CUDA graphs are vLLM's and the rotation costs what it always
costs; only the content of the table differs. The maths is `resonance_vllm.core`.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from vllm.model_executor.layers import rotary_embedding

from resonance_vllm.core.frequencies import base_frequencies, rotation
from resonance_vllm.core.phase import cos_sin_table
from resonance_vllm.errors import RopeConfigError
from resonance_vllm.verifier import RequestedRotation
from resonance_vllm.verify import CLOSE, Turns, differences, refusal

ROWS_FOR_A_LOOK = 4096
"""Rows of the tables from which only frequencies are read; no head has that many features."""

# vLLM's multi-axis YaRN takes the length enlarged for video positions for the trained one.
_SAMPLE = {"dtype": torch.float32, "mrope_positions_factor": 1}

longest_table: ContextVar[int | None] = ContextVar("longest_table", default=None)
"""Rows beyond which no table is built, where a model is only looked at."""


class ResonanceYaRNRotaryEmbedding(rotary_embedding.YaRNScalingRotaryEmbedding):
    """YaRN with wavelengths rounded to integers, and exact phase (arXiv 2403.00071)."""


@dataclass(eq=False)
class TableRotation(RequestedRotation):
    """What a module was given, kept as its attribute `resonance`.

    Attributes:
        rows: positions in the table.
    """

    rows: int


class ShortTables(TorchFunctionMode):
    """Lets vLLM compute the first rows of its tables only.

    Tables are made of `arange(rows)`; `longest` is the largest number of rows that vLLM wanted.
    """

    longest = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Cut a long `arange`."""
        if func is torch.arange and len(args) == 1:
            self.longest = max(self.longest, math.ceil(args[0]))
            args = (min(args[0], ROWS_FOR_A_LOOK),)
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _own_cache() -> Iterator[None]:
    """An empty cache of modules: one that we change must not be found by others."""
    cache = rotary_embedding._ROPE_DICT
    before = dict(cache)
    cache.clear()
    try:
        yield
    finally:
        cache.clear()
        cache.update(before)


def build(original: Callable[..., Any], call: Mapping[str, Any], served_length: int | None) -> Any:
    """The embedding that vLLM builds for a call of `get_rope`, turning by our settings.

    Args:
        original: vLLM's `get_rope`.
        call: its arguments, with a stock dictionary whose base is a `request.TaggedBase`.
        served_length: vLLM's `max_model_len`; None where no engine is configured.

    Raises:
        RopeConfigError: what vLLM builds is not what the settings start from: a model file may name
            a type of its own, or drop a key.
    """
    base = call["rope_parameters"]["rope_theta"]
    spec, dtype = base.spec, call.get("dtype") or torch.get_default_dtype()
    with _own_cache(), ShortTables() as tables:
        module = original(**{**call, "dtype": dtype})
        with torch.device("cpu"):
            sample = original(**{**call, **_SAMPLE})
    held = held_turns(sample)
    by_formula = base.by_library and spec.method.name != "default"
    wrong = differences(held, spec.method if by_formula else Turns(held.inv_freq, 1.0))
    if wrong:
        where = f"{type(module).__name__} of type {call['rope_parameters'].get('rope_type')!r}"
        allowed = "settings that this model's code reads"
        raise refusal(spec, f"{where} in vLLM", wrong, held, allowed)
    made = rotation(spec, base_frequencies(spec, held.inv_freq, by_library=base.by_library))
    limit = spec.method.length_limit(call["max_position"])
    # vLLM's kernels do not check: a position without a row reads foreign memory.
    rows = max(limit, call["max_position"], served_length or 0, tables.longest)
    rows = min(rows, longest_table.get() or rows)
    give_table(module, TableRotation(spec, made, spec.method.scale(), rows))
    return module


def held_turns(module: Any) -> Turns:
    """What a module turns by, read from its table; frequencies are float64.

    Raises:
        RopeConfigError: it has no table of cos and sin by position.
    """
    _, table = table_of(module)
    requested: TableRotation | None = getattr(module, "resonance", None)
    first = 0
    if requested is not None:
        first = max(len(table) - requested.rows, 0)
    elif getattr(module, "use_long_rope", False):
        # LongRoPE keeps the table of long sequences behind the other one.
        rows = int(module.original_max_position_embeddings)
        first = rows if len(table) > 2 * ROWS_FOR_A_LOOK else min(rows, ROWS_FOR_A_LOOK)
    cos, sin = table[first : first + 2].double().cpu().chunk(2, dim=-1)
    return Turns(torch.atan2(sin[1], cos[1]), float(cos[0].max()))


def table_of(module: Any) -> tuple[str, torch.Tensor]:
    """The buffer of a module that holds cos and sin by position, and its name.

    Raises:
        RopeConfigError: there is none.
    """
    for name, buffer in module.named_buffers(recurse=False):
        if name.endswith("cos_sin_cache") and buffer.ndim == 2 and buffer.is_floating_point():
            return name, buffer
    raise RopeConfigError(
        f"rope_type: vLLM's {type(module).__name__} has no table of cos and sin by position, so "
        "none of our types can be given to it; allowed: models whose rotation is such a table"
    )


def tolerance(module: Any) -> float:
    """How near frequencies can be read from a module's table, relative."""
    return max(CLOSE, 2 * torch.finfo(table_of(module)[1].dtype).eps)


def give_table(module: Any, requested: TableRotation) -> None:
    """Replace a module's table."""
    name, old = table_of(module)
    table = cos_sin_table(
        requested.rotation, requested.scale, requested.rows, dtype=old.dtype, device=old.device
    )
    if getattr(module, "use_long_rope", False):
        offset = int(module.original_max_position_embeddings)
        table = torch.cat((table[:offset], table))
    setattr(module, name, table)
    if getattr(module, f"{name}_bf16", None) is not None:
        setattr(module, f"{name}_bf16", table.to(torch.bfloat16))
    if requested.spec.resonance and type(module) is rotary_embedding.YaRNScalingRotaryEmbedding:
        module.__class__ = ResonanceYaRNRotaryEmbedding
    if isinstance(getattr(module, "base", None), float):
        module.base = float(module.base)
    module.resonance = requested
