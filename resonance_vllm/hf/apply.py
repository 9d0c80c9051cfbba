"""RoPE settings in transformers: `load` a model with them, or `apply_rope` to a loaded one.

`apply_rope` adds a hook to each rotary module that needs what a function of transformers' registry
cannot give (the exact phase, frequencies of each row's own length, float32 cos and sin), and
compares what every module returns with the request.
"""

import copy
import logging
from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from resonance_vllm.checkpoint.arguments import ROPE_PRECISIONS
from resonance_vllm.checkpoint.overrides import VERIFY_ROPE_KEY, with_rope
from resonance_vllm.checkpoint.positions import PositionConfig, complete_rope, language_model_config
from resonance_vllm.checkpoint.reached_layers import refuse_unused
from resonance_vllm.checkpoint.rope_dict import (
    is_windowed,
    refuse_contradictions,
    rope_by_layer_type,
    rope_of_present_layers,
)
from resonance_vllm.common.errors import RopeConfigError, check_choice
from resonance_vllm.core.remapping import RemappedMethod
from resonance_vllm.core.spec import ORIGINAL_LENGTH_KEY, OWN_TYPES, RopeSpec
from resonance_vllm.hf import remapping
from resonance_vllm.hf.buffers import verify_frequencies
from resonance_vllm.hf.hooks import AngleHook, Float32InputHook, remove_hooks
from resonance_vllm.hf.position_table import refuse_beyond_position_table
from resonance_vllm.hf.precision import restore_precision, rotate_in_float32
from resonance_vllm.hf.registry import register
from resonance_vllm.hf.rotary import (
    device_of,
    keep_own_frequencies,
    layer_types,
    prepare_module,
    rebuild_rotary_modules,
    rotary_modules,
)
from resonance_vllm.verify import RotaryReport, differing_constants

logger = logging.getLogger(__name__)

Rope = RopeSpec | Mapping[str, Any] | str
"""Settings as the public functions take them."""

_WRITTEN = ("rope_parameters", "max_position_embeddings", ORIGINAL_LENGTH_KEY, "head_dim")
"""Attributes of a config that settings change."""
_LOADED = "_rope_loaded"
"""Attribute of a model: its configs, and what they held of `_WRITTEN` when it was loaded."""
_HUB_ARGUMENTS = ("revision", "trust_remote_code", "token", "cache_dir", "subfolder")


def load(
    path: str,
    rope: Rope | None = None,
    *,
    precision: str = "model",
    limit: int | None = None,
    auto_class: Any = AutoModelForCausalLM,
    **arguments: Any,
) -> Any:
    """Load a checkpoint's model with RoPE settings, and verify what it rotates by.

    Args:
        path: Checkpoint folder or hub name.
        rope: Settings as for `apply_rope`; None loads the unmodified checkpoint.
        precision: As for `apply_rope`.
        limit: Longest sequence in tokens, written into the config beside the settings.
        auto_class: The class of transformers whose `from_pretrained` is called.
        arguments: Of `from_pretrained`; a `config` among them is changed.

    Returns:
        The model of transformers.

    Raises:
        RopeConfigError: The settings are wrong, the model does not rotate by them or holds
            inverse frequencies that nobody computed, or `limit` exceeds its learned positions.
        OSError: From transformers: there is no such checkpoint.
    """
    register()
    config = arguments.pop("config", None)
    hub_arguments = {key: arguments[key] for key in _HUB_ARGUMENTS if key in arguments}
    content, _ = PreTrainedConfig.get_config_dict(path, **hub_arguments)
    refuse_contradictions(content)
    if config is None:
        config = AutoConfig.from_pretrained(path, **hub_arguments)
    spec = settings_to_write(rope, config)
    if spec is not None:
        with_rope(config, spec, limit)
    model = auto_class.from_pretrained(path, config=config, **arguments)
    refuse_beyond_position_table(model, limit)
    verify_frequencies(model)
    install_rotations(model, spec, precision)
    return model


def apply_rope(
    model: Any, spec: Rope | None = None, precision: str = "model"
) -> list[RotaryReport]:
    """Give a loaded model other RoPE settings, and verify what every module rotates by.

    It may be called any number of times. The numbers are bitwise those of a model that was loaded
    with the settings. The config is changed, so that a saved model has them. Nothing outside the
    model is changed, and `apply_rope(model)` undoes everything.

    Args:
        model: Of transformers, or of PEFT around one.
        spec: Settings: a `RopeSpec`, a dictionary, or text as on the command line
            (`yarn:factor=2`). Required keys that are missing are taken from the model's config.
            None is what the model was loaded with.
        precision: `float32` computes cos, sin and the rotation of queries and keys in float32;
            `model` in the dtype of the activations. The model's attribute `rope_precision_used`
            says which one was possible.

    Returns:
        What each rotary module rotates by: inverse frequencies in radians per token, and the
        attention factor. Methods that follow the length report the original context length.

    Raises:
        RopeConfigError: The settings are wrong; or a module rotates by something else, and is
            named; or no layer uses the settings. The model then rotates as it was loaded.
    """
    check_choice("rope_precision", precision, ROPE_PRECISIONS, RopeConfigError)
    register()
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    is_first_call = _LOADED not in vars(inner)
    if is_first_call:
        verify_frequencies(inner)
        setattr(inner, _LOADED, _loaded_settings(inner))
    _restore_settings(inner)  # new settings replace earlier ones; they are not added to them
    try:
        settings = settings_to_write(spec, inner.config)
        if settings is not None:
            for config, _ in getattr(inner, _LOADED):
                with_rope(config, settings)
        rebuild_rotary_modules(inner)
        has_loaded_constants = is_first_call and spec is None
        if not has_loaded_constants:
            _recompute_constants(inner)
        return install_rotations(inner, settings, precision)
    except RopeConfigError:
        if spec is not None:
            apply_rope(inner, None, precision)  # leaves no half-changed model behind
        raise


def settings_to_write(rope: Rope | None, config: Any) -> RopeSpec | None:
    """Return complete settings to write into a config; None where it has them already.

    Args:
        rope: Settings as for `apply_rope`.
        config: The config of the model as it was loaded, which completes them.

    Raises:
        RopeConfigError: A key is unknown or missing, a value is not allowed, or no layer would use
            the settings.
    """
    if rope is None:
        return None
    refuse_unused(language_model_config(config)[0])
    positions = PositionConfig.from_config(config)
    spec = complete_rope(rope, positions)
    if spec.rope_type != positions.rope["rope_type"]:
        return spec  # without reading the config's own settings
    return None if spec == positions.own_spec_or_none else spec


def _loaded_settings(model: Any) -> list[tuple[Any, dict[str, Any]]]:
    """Return each config that a model's text part reads, and what settings would change in it."""
    configs = [language_model_config(model.config)[0]]
    configs += [module.config for _, module in rotary_modules(model)]
    distinct = {id(config): config for config in configs}
    return [
        (config, {key: vars(config)[key] for key in _WRITTEN if key in vars(config)})
        for config in distinct.values()
    ]


def _restore_settings(model: Any) -> None:
    """Give a model's configs the settings with which it was loaded."""
    for config, values in getattr(model, _LOADED):
        for key, value in values.items():
            setattr(config, key, copy.deepcopy(value))


def _recompute_constants(model: Any) -> None:
    """Set plain numbers that constructors compute from RoPE settings to those of the config.

    One is DeepSeek's softmax scale. Which numbers there are is known to the constructors alone: a
    second model without weights is constructed from the config, and its numbers are taken.
    """
    with torch.device("meta"):
        constructed = type(model)(model.config)
    for module, key, number, _ in differing_constants(model, constructed):
        setattr(module, key, number)


def install_rotations(model: Any, spec: RopeSpec | None, precision: str) -> list[RotaryReport]:
    """Add hooks to a model whose configs hold its settings, and verify every rotary module.

    Args:
        model: A model of transformers.
        spec: The settings that were requested, which are verified; None where the model has its
            own, of which only types of this package are verified.
        precision: As for `apply_rope`.

    Raises:
        RopeConfigError: As for `apply_rope`.
    """
    check_choice("rope_precision", precision, ROPE_PRECISIONS, RopeConfigError)
    remapping.remove(model)
    restore_precision(model)
    is_requested = spec is not None or getattr(model.config, VERIFY_ROPE_KEY, False)
    verified = _layer_types_to_verify(model, is_requested=is_requested)
    specs: dict[tuple[int, str | None], RopeSpec] = {}
    reached: set[str | None] = set()
    reports: list[RotaryReport] = []
    hooks: list[tuple[Any, AngleHook | None]] = []
    for name, module in rotary_modules(model):
        remove_hooks(module)
        for layer_type in layer_types(module):
            required = layer_type in verified and layer_type in rope_by_layer_type(module.config)
            if required:
                reached.add(layer_type)
            hook, state = prepare_module(name, module, layer_type, required=required, specs=specs)
            if required or hook is not None:
                keep_own_frequencies(module, layer_type)
            hooks.append((module, hook))
            reports.append(RotaryReport.from_state(name, layer_type, state))
    _refuse_unread(model, verified, reached)
    for module, hook in hooks:
        if hook is not None:
            hook.to(device_of(module))
            module.register_forward_hook(hook, with_kwargs=True)
            if isinstance(hook.method, RemappedMethod):
                remapping.install(model, module, hook)
    model.rope_precision_used = _set_precision(model, precision)
    return reports


def _layer_types_to_verify(model: Any, *, is_requested: bool) -> set[str | None]:
    """Return the layer types whose rotation has to be that of the config.

    They are those without a window: methods leave layers that read a part of the text unmodified.
    Of an unmodified model only types of this package are verified, for transformers' own are run
    by transformers' own code.

    Raises:
        RopeConfigError: No layer of the model uses requested settings.
    """
    config = language_model_config(model.config)[0]
    settings = rope_of_present_layers(config)
    if is_requested:
        refuse_unused(config)
        return {layer_type for layer_type in settings if not is_windowed(layer_type)}
    return {
        layer_type
        for layer_type, rope in settings.items()
        if not is_windowed(layer_type) and rope.get("rope_type") in OWN_TYPES
    }


def _refuse_unread(model: Any, verified: set[str | None], reached: set[str | None]) -> None:
    """Refuse settings that no rotary module reads, or that an encoder would read too."""
    name = type(model).__name__
    if verified - reached:
        raise RopeConfigError(f"rope_parameters: {name} has no rotary module that reads them")
    if verified and getattr(model.config, "is_encoder_decoder", False):
        raise RopeConfigError(
            f"rope_type: not supported for {name}, whose encoder reads the text; allowed: models "
            "with a decoder alone"
        )


def _set_precision(model: Any, precision: str) -> str:
    """Let a model rotate in a precision, and return the one that it has then."""
    if precision == "model":
        return "model"
    modules = rotary_modules(model)
    if not modules or not rotate_in_float32(model):
        logger.warning(
            "rope_precision: %s rotates in its own precision, not in float32", type(model).__name__
        )
        return "model"
    for _, module in modules:
        module.register_forward_pre_hook(Float32InputHook(), with_kwargs=True)
    return "float32"
