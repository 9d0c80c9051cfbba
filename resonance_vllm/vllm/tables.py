"""The rotary modules of a vLLM model: finding them, reading their tables, comparing with a request."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from resonance_vllm.checkpoint.rope_dict import is_per_layer_type, is_windowed, unscaled_rope_type
from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.verify import (
    RELATIVE_TOLERANCE,
    RotaryReport,
    RotaryState,
    compare_states,
    mismatch_error,
)
from resonance_vllm.vllm.requests import LayerRequest, is_own_type
from resonance_vllm.vllm.stock_view import AXES

STATE = "resonance"
"""Attribute of a rotary module that this package made: what it rotates by."""
REQUESTED = "resonance_settings"
"""Attribute of a rotary module that this package made: the `RopeSpec` that it was made for."""
_LAYER = re.compile(r"\.(\d+)\.")


def table_of(module: Any) -> tuple[str, torch.Tensor]:
    """Return the name of the buffer that holds cos and sin by position, and the buffer.

    Returns:
        The name, and `[rows, 2 * features]`: cos of every feature, then sin.

    Raises:
        RopeConfigError: The module has none.
    """
    for name, buffer in module.named_buffers(recurse=False):
        is_table = buffer.ndim == 2 and buffer.is_floating_point()
        if is_table and name.endswith("cos_sin_cache"):
            return name, buffer
    raise RopeConfigError(
        f"rope_type: vLLM's {type(module).__name__} has no table of cos and sin by position"
    )


def held_state(module: Any) -> RotaryState:
    """Return what a module rotates by, read from the first two rows of its table.

    Frequencies are float64, as exact as the dtype of the table.
    """
    _, table = table_of(module)
    first = 0
    if getattr(module, "use_long_rope", False):  # the table of long sequences follows the short one
        first = min(int(module.original_max_position_embeddings), len(table) // 2)
    cos, sin = table[first : first + 2].double().cpu().chunk(2, dim=-1)
    return RotaryState(torch.atan2(sin[1], cos[1]), float(cos[0].max()))


def rotary_modules(model: nn.Module, config: Any) -> Iterator[tuple[str, str | None, Any]]:
    """Yield name, layer type and module of the rotary modules of a model's text part.

    A module that layers share comes once for each of its names.

    Args:
        model: A model of vLLM.
        config: The config of its language model, whose `layer_types` name the layers. Without
            them the layer type is None.
    """
    whole: Any = model
    text = model
    if hasattr(whole, "get_language_model"):
        text = whole.get_language_model()
    prefix = next((name for name, module in model.named_modules() if module is text), "")
    types = getattr(config, "layer_types", None) or []
    for name, module in text.named_modules(prefix=prefix, remove_duplicate=False):
        if "RotaryEmbedding" not in type(module).__name__:
            continue
        layer_type = None
        layer = _LAYER.search(name)
        if layer is not None and int(layer[1]) < len(types):
            layer_type = str(types[int(layer[1])])
        yield name, layer_type, module


def reports_of_model(model: nn.Module, config: Any) -> list[RotaryReport]:
    """Return what the rotary modules of a built model rotate by, one report per layer type.

    Layers that share a module have one report, with the module's name in the first of them.
    """
    modules = list(rotary_modules(model, config))
    several_modules = len({id(module) for _, _, module in modules}) > 1
    several_settings = is_per_layer_type(getattr(config, "rope_parameters", None) or {})
    reports: dict[tuple[int, str | None], RotaryReport] = {}
    for name, layer_type, module in modules:
        if not several_modules and not several_settings:
            layer_type = None
        key = (id(module), layer_type)
        if key not in reports:
            state = getattr(module, STATE, None) or held_state(module)
            reports[key] = RotaryReport.from_state(name, layer_type, state)
    return list(reports.values())


def verify_model(
    model: nn.Module, config: Any, requests: Mapping[str | None, LayerRequest]
) -> None:
    """Compare every rotary module of a language model with what was requested.

    Args:
        model: A model of vLLM.
        config: The config of its language model.
        requests: What is requested by layer type.

    Raises:
        RopeConfigError: A module rotates by something else, and is named; or there is none.
    """
    reached = False
    for name, layer_type, module in rotary_modules(model, config):
        request = requests.get(layer_type, requests.get(None))
        is_own = getattr(module, STATE, None) is not None
        if not is_own and (request is None or is_windowed(layer_type)):
            continue  # keeps a rotation of its own
        reached = True
        clauses: list[str] = []
        if is_own:
            clauses = _own_differences(module, request, layer_type)
        elif request is not None:
            unscaled = unscaled_rope_type(config, layer_type)
            clauses = _stock_differences(module, request, unscaled)
        if clauses:
            spec = next(iter(requests.values())).spec
            raise mismatch_error(spec, f"{name} ({type(module).__name__}) in vLLM", clauses)
    if not reached:
        raise RopeConfigError(f"rope_type: {type(model).__name__} has no rotary module in vLLM")


def _own_differences(
    module: Any, request: LayerRequest | None, layer_type: str | None
) -> list[str]:
    """Return how a module that this package made differs from what its layers requested.

    Two things may have gone wrong: the model file gave the module to layers that requested other
    settings or none, or the table does not hold what was written into it.

    Args:
        module: With `STATE`, what was written into its table, and `REQUESTED`, for which settings.
        request: Of the layers that use it; None where they requested nothing.
        layer_type: Of these layers; None where the module's name has no number of a layer.

    Returns:
        A clause per difference; empty where they agree.
    """
    if request is None:
        if layer_type is None:
            return []  # a module for all layers, which is not given to one type
        return [f"layers of type {layer_type} were to keep their own settings"]
    made_for = getattr(module, REQUESTED)
    if made_for != request.spec:
        return [f"it was made for {made_for.to_dict()}, which other layers requested"]
    written: RotaryState = getattr(module, STATE)
    return compare_states(held_state(module), written, close=_tolerance(module))


def _tolerance(module: Any) -> float:
    """Return the relative difference that the dtype of a module's table alone explains."""
    _, table = table_of(module)
    return max(RELATIVE_TOLERANCE, 2 * torch.finfo(table.dtype).eps)


def _stock_differences(module: Any, request: LayerRequest, unscaled: str) -> list[str]:
    """Return how a module that vLLM made by itself differs from what its layers requested.

    Args:
        module: The module.
        request: Of the layers that use it.
        unscaled: The family's RoPE type without scaling.

    Returns:
        A clause per difference; empty where they agree.
    """
    method = request.spec.method
    if is_own_type(request.rope):
        return ["the model's code fixes its rotation"]
    if AXES in request.rope and not getattr(module, AXES, None):
        return ["it rotates by positions of one axis, and those of this model have several"]
    if unscaled == "proportional" and method.name != "proportional":
        return ["dimensions of this family are paired over whole heads"]
    held = held_state(module)
    inv_freq = method.compute_inv_freq(2 * len(held.inv_freq))
    requested = RotaryState(inv_freq, method.compute_attention_factor())
    return compare_states(held, requested, close=_tolerance(module))
