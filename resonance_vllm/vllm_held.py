"""What the rotary modules of a model that vLLM built hold."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from resonance_vllm.core.frequencies import Rotation
from resonance_vllm.core.spec import RopeSpec
from resonance_vllm.errors import RopeConfigError
from resonance_vllm.positions import by_layer_type
from resonance_vllm.verify import RotaryReport, Turns


class Given(NamedTuple):
    """What a rotary module was given, kept as its attribute `resonance`."""

    spec: RopeSpec
    rotation: Rotation
    scale: float


def table_of(module: Any) -> tuple[str, torch.Tensor]:
    """The buffer of a module that holds cos and sin by position, and its name."""
    for name, buffer in module.named_buffers(recurse=False):
        if name.endswith("cos_sin_cache") and buffer.ndim == 2 and buffer.is_floating_point():
            return name, buffer
    raise RopeConfigError(
        f"rope_type: vLLM's {type(module).__name__} has no table of cos and sin by position, so "
        "no settings can be given to it; allowed: models whose rotation is such a table"
    )


def held_turns(module: Any) -> Turns:
    """What a module turns by, read from the second row of its table; frequencies are float64."""
    _, table = table_of(module)
    first = 0
    if getattr(module, "use_long_rope", False):  # that of long sequences is behind the other one
        first = min(int(module.original_max_position_embeddings), len(table) // 2)
    cos, sin = table[first : first + 2].double().cpu().chunk(2, dim=-1)
    return Turns(torch.atan2(sin[1], cos[1]), float(cos[0].max()))


def rotary_modules(model: nn.Module, config: Any) -> Iterator[tuple[str, str | None, Any]]:
    """Name, layer type and module of every rotary module of a model's text part, by each name.

    The layer type is as transformers names it; None where the config has none.
    """
    whole: Any = model
    text = whole.get_language_model() if hasattr(whole, "get_language_model") else model
    prefix = next((name for name, module in model.named_modules() if module is text), "")
    kinds = getattr(config, "layer_types", None) or []
    for name, module in text.named_modules(prefix=prefix, remove_duplicate=False):
        if "RotaryEmbedding" in type(module).__name__:
            index = re.search(r"\.(\d+)\.", name)
            known = index is not None and int(index[1]) < len(kinds)
            yield name, str(kinds[int(index[1])]) if known and index else None, module


def rotary_report(model: nn.Module, config: Any) -> list[RotaryReport]:
    """What every rotary module of a built model turns by, one entry for each layer type.

    Layers that share a module are one entry, with the name that it has in the first of them.
    """
    found: dict[tuple[int, str | None], RotaryReport] = {}
    modules = list(rotary_modules(model, config))
    several = len({id(module) for _, _, module in modules}) > 1
    several |= by_layer_type(getattr(config, "rope_parameters", None) or {})
    for name, kind, module in modules:
        key = id(module), kind if several else None
        if key not in found:
            given: Given | None = getattr(module, "resonance", None)
            exact = given is not None and given.rotation.exact
            turns = Turns(given.rotation.inv_freq, given.scale) if given else held_turns(module)
            inv_freq = tuple(turns.inv_freq.tolist())
            found[key] = RotaryReport(name, key[1], inv_freq, turns.attention_factor, exact)
    return list(found.values())
