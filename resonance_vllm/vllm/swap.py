"""Swapping the RoPE settings of a running vLLM engine, its tables replaced in place.

Only a model's own code knows what it makes of RoPE settings. So its model is built a second time
with the new settings, without weights, the two are compared, and the tables are copied.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from resonance_vllm.checkpoint.overrides import VERIFY_ROPE_KEY
from resonance_vllm.checkpoint.rope_dict import (
    global_layer_type,
    is_per_layer_type,
    model_specific_keys,
    rope_by_layer_type,
)
from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.core.frequencies import Rotation
from resonance_vllm.core.phase import cos_sin_table
from resonance_vllm.verify import RotaryReport, differing_constants
from resonance_vllm.vllm.build_context import SeparateBuild
from resonance_vllm.vllm.building import BUILD_ERRORS, build_separately
from resonance_vllm.vllm.requests import shipped_text_config
from resonance_vllm.vllm.tables import REQUESTED, STATE, reports_of_model, rotary_modules, table_of

_FORWARD = ("forward", "forward_native", "forward_cuda", "forward_cpu")
"""Methods by which two rotary classes have to agree."""


def swap(model: nn.Module, engine: Any, rope: Mapping[str, Any] | None) -> list[RotaryReport]:
    """Give a running model other RoPE settings.

    Args:
        model: The model of an engine's worker.
        engine: Its `VllmConfig`, which is not changed.
        rope: What `--hf-overrides` takes as `rope_parameters`; None is the unmodified config.json.

    Returns:
        What each rotary module rotates by afterwards.

    Raises:
        RopeConfigError: The settings are wrong, or only a new engine can have them. The model is
            then unchanged.
    """
    requested = _with_settings(engine, rope)
    text = requested.model_config.hf_text_config
    served_length = int(requested.model_config.max_model_len)
    tables = [table_of(module)[1] for _, _, module in rotary_modules(model, text)]
    if not tables:
        raise RopeConfigError(f"rope_type: {type(model).__name__} has no rotary module in vLLM")
    build = SeparateBuild(tables[0].device, max(map(len, tables)), for_running_engine=True)
    try:
        fresh = build_separately(requested, build)
    except BUILD_ERRORS as error:
        raise _cannot_swap(f"{type(model).__name__} needs weights to be built: {error}") from error
    pairs = _pairs(model, fresh, text)
    different_numbers = differing_constants(model, fresh)
    if different_numbers:
        raise _cannot_swap(different_numbers[0][-1])
    # All tables are made before the first is copied: a refusal leaves the model unchanged.
    new_tables = [_full_table(fresh_module, served_length) for _, fresh_module in pairs]
    for (module, fresh_module), new_table in zip(pairs, new_tables, strict=True):
        name, table = table_of(module)
        rows = min(len(table), len(new_table))
        for held in (table, getattr(module, f"{name}_bf16", None)):
            if held is not None:
                held[:rows].copy_(new_table[:rows])
        for attribute in (STATE, REQUESTED):
            setattr(module, attribute, getattr(fresh_module, attribute, None))
    return reports_of_model(model, text)


def _cannot_swap(reason: str) -> RopeConfigError:
    return RopeConfigError(
        f"rope_type: cannot be changed in a running engine; start a new one: {reason}"
    )


def _with_settings(engine: Any, rope: Mapping[str, Any] | None) -> Any:
    """Return a copy of an engine's config with other RoPE settings."""
    requested = copy.copy(engine)
    model_config = copy.copy(engine.model_config)
    requested.model_config = model_config
    # Together: the language model's config may be a part of the other, or the same object.
    configs = copy.deepcopy((model_config.hf_config, model_config.hf_text_config))
    model_config.hf_config, model_config.hf_text_config = configs
    shipped_config = shipped_text_config(model_config)
    shipped = copy.deepcopy(getattr(shipped_config, "rope_parameters", None) or {})
    setattr(model_config.hf_config, VERIFY_ROPE_KEY, rope is not None)
    model_config.hf_text_config.rope_parameters = _settings_to_write(rope, shipped)
    for settings in rope_by_layer_type(model_config.hf_text_config).values():
        if settings.get("rope_type") == "dynamic":
            raise _cannot_swap("vLLM fixes the base of 'dynamic' at the length that it starts with")
    return requested


def _settings_to_write(rope: Mapping[str, Any] | None, shipped: dict[str, Any]) -> dict[str, Any]:
    """Return requested settings with the model's own keys, in the form of its config.json."""
    if rope is None:
        return shipped
    if is_per_layer_type(shipped) and not is_per_layer_type(rope):
        layer_type = global_layer_type(shipped)
        return {**shipped, layer_type: {**model_specific_keys(shipped[layer_type]), **rope}}
    return {**model_specific_keys(shipped), **rope}


def _pairs(model: nn.Module, fresh: nn.Module, config: Any) -> list[tuple[Any, Any]]:
    """Return each rotary module of a running model with the one whose table it is to get.

    Raises:
        RopeConfigError: A module cannot become like its counterpart by another table alone.
    """
    fresh_modules = {name: module for name, _, module in rotary_modules(fresh, config)}
    pairs: dict[int, tuple[Any, Any]] = {}
    for name, _, module in rotary_modules(model, config):
        counterpart = fresh_modules[name]
        _, partner = pairs.setdefault(id(module), (module, counterpart))
        if partner is not counterpart:
            raise _cannot_swap(f"{name} shares its table with layers that need another one")
        if not _same_code(module, counterpart):
            raise _cannot_swap(
                f"{name} is {type(module).__name__} and not {type(counterpart).__name__}"
            )
        if getattr(counterpart, "use_long_rope", False):
            raise _cannot_swap(f"{name} has two tables, for short and for long sequences")
    return list(pairs.values())


def _same_code(module: Any, other: Any) -> bool:
    """Return whether two rotary modules differ in their tables at most."""
    module_name, module_table = table_of(module)
    other_name, other_table = table_of(other)
    if module_name != other_name or module_table.shape[1] != other_table.shape[1]:
        return False
    for name in _FORWARD:
        if getattr(type(module), name, None) is not getattr(type(other), name, None):
            return False
    return True


def _full_table(module: Any, rows: int) -> torch.Tensor:
    """Return a module's table in float32 with a row for each served position.

    vLLM's YaRN ends at its own limit, which may be below the length that the engine serves.
    """
    _, table = table_of(module)
    if len(table) >= rows:
        return table
    if hasattr(module, "mscale"):  # YaRN
        inv_freq = module._compute_inv_freq(module.scaling_factor)
        scale = module.mscale
    else:
        inv_freq = module._compute_inv_freq(module.base)
        scale = 1.0
    no_periods = torch.zeros(len(inv_freq), dtype=torch.int64)
    rotation = Rotation(inv_freq, no_periods)
    longer = cos_sin_table(rotation, scale, rows, device=table.device)
    if not torch.equal(longer[: len(table)], table):
        raise _cannot_swap(
            f"{type(module).__name__} has {len(table)} positions, and {rows} are served"
        )
    return longer
