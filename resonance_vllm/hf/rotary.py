"""Rotary modules of transformers: finding them, what they hold and return, the hook that one needs.

Families keep features in halves or in pairs, once, or as complex numbers, and take them from
several axes of positions. No config states that, so a module's own `forward` is probed.
"""

import contextlib
import copy
import functools
from typing import Any

import torch
from torch import Tensor, nn

from resonance_vllm.checkpoint.positions import language_model_config
from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.core.spec import RopeSpec
from resonance_vllm.hf.building import CODE_ERRORS, build_rotary_module, code_errors_of
from resonance_vllm.hf.hooks import AngleHook, FeatureLayout, remove_hooks
from resonance_vllm.hf.registry import RequestedRotation, requested_rotation, requested_spec
from resonance_vllm.verify import RotaryState, compare_states, mismatch_error

_AXES = 3
"""Axes of positions in transformers: time, height and width of images and video."""
_SAME_ANGLE = 1e-4
_SAME_AMPLITUDE = 1e-5
_ORIGINAL = "_original_inv_freq"

# Finding rotary modules.


def layer_types(module: nn.Module) -> list[str | None]:
    """Return the layer types that a module has a rotation for.

    `[None]` is a single rotation, `[]` a module that is not rotary.
    """
    config = getattr(module, "config", None)
    # Falcon builds a rotary module beside ALiBi and does not use it.
    has_other_positions = getattr(config, "position_embedding_type", None) in ("nope", "absolute")
    if has_other_positions or getattr(config, "alibi", False):
        return []
    if "inv_freq" in module._buffers:
        return [None] if hasattr(module, "rope_type") else []
    return [name.removesuffix(_ORIGINAL) for name in module._buffers if name.endswith(_ORIGINAL)]


def rotary_modules(model: Any) -> list[tuple[str, Any]]:
    """Return names and rotary modules of a model's text part; those of images and audio excluded.

    A model of several parts without one text model has all of them.
    """
    text = type(language_model_config(model.config)[0])
    modules = [(name, module) for name, module in model.named_modules() if layer_types(module)]
    of_text = [(name, module) for name, module in modules if isinstance(module.config, text)]
    return of_text or modules


def device_of(module: nn.Module) -> torch.device:
    """Return the device of a rotary module's buffers."""
    return next(buffer.device for buffer in module._buffers.values() if buffer is not None)


def buffer_name(layer_type: str | None) -> str:
    """Return the name of the buffer that holds the inverse frequencies of a layer type."""
    return "inv_freq" if layer_type is None else f"{layer_type}_inv_freq"


def rebuild_rotary_modules(model: Any) -> None:
    """Give rotary modules what they hold in a newly built model.

    Their hooks are removed. What was read before does not count (`dynamic` keeps the frequencies
    of a long sequence), nor whether the model was cast.
    """
    for _, module in rotary_modules(model):
        remove_hooks(module)
        device = device_of(module)
        fresh = build_rotary_module(type(module), module.config)
        for key, value in vars(fresh).items():
            if key.startswith("_") or key in ("config", "training"):
                continue
            if isinstance(value, Tensor):
                value = value.to(device)
            setattr(module, key, value)
        for key, buffer in fresh._buffers.items():
            module.register_buffer(key, buffer.to(device), persistent=False)


def keep_own_frequencies(module: Any, layer_type: str | None) -> None:
    """Stop a module from changing the frequencies of a layer type itself.

    Where frequencies follow the length, its hook changes them. transformers' own change for
    `longrope` fails at the second long sequence if a module has several layer types.
    `rebuild_rotary_modules` undoes this.
    """
    if layer_type is not None:
        module.rope_type = {**module.rope_type, layer_type: "default"}


# What a module holds and returns, and the hook that it needs.


def prepare_module(
    name: str,
    module: Any,
    layer_type: str | None,
    *,
    required: bool,
    specs: dict[tuple[int, str | None], RopeSpec],
) -> tuple[AngleHook | None, RotaryState]:
    """Compare a rotary module with its config, and make the hook that it needs to agree.

    Args:
        name: Of the module in its model, for messages.
        module: The rotary module.
        layer_type: The layer type, where it has several.
        required: Whether a difference is an error. Where it is not, a module that differs is left
            as it is: its family computes something of its own.
        specs: The settings that were read before, by the id of their config and the layer type.
            Those of this module are added: layers with a module each share one config.

    Returns:
        The hook, or None where the module's own frequencies are right; and what the module rotates
        by with it.

    Raises:
        RopeConfigError: The module rotates by something else than requested.
    """
    built = build_rotary_module(type(module), module.config)
    inv_freq = getattr(built, buffer_name(layer_type)).detach()
    prefix = "" if layer_type is None else f"{layer_type}_"
    stated_factor = float(getattr(built, f"{prefix}attention_scaling", 1.0))
    held = RotaryState(inv_freq, stated_factor)
    try:
        source = (id(module.config), layer_type)
        if source not in specs:
            specs[source] = requested_spec(module.config, layer_type)
        requested = requested_rotation(module.config, layer_type, spec=specs[source])
        wanted = RotaryState(
            requested.rotation.inv_freq, requested.attention_factor, requested.rotation.exact
        )
        with code_errors_of(type(built)):
            _, amplitudes = probe(built, layer_type, torch.ones(1, 1, dtype=torch.int64))
        held = RotaryState(inv_freq, float(amplitudes.max()))
        clauses = compare_states(held, wanted)
        if clauses:
            raise mismatch_error(requested.spec, f"{name} ({type(module).__name__})", clauses)
        hook = _hook(built, layer_type, requested)
    except (KeyError, RopeConfigError):
        if required:
            raise
        return None, held
    if hook is None:
        return None, RotaryState(inv_freq, requested.attention_factor)
    return hook, wanted


def _hook(built: Any, layer_type: str | None, requested: RequestedRotation) -> AngleHook | None:
    """Return the hook for a rotary module, here one newly built on the CPU; None without need."""
    spec, rotation, attention_factor = requested
    method = spec.method
    if spec.is_stock and method.switch_length is None and not method.depends_on_length:
        return None
    layout = feature_layout(built, layer_type, len(rotation.inv_freq))
    hook = AngleHook(layer_type, method, rotation, attention_factor, layout)
    at_length = functools.partial(requested_rotation, built.config, layer_type, spec=spec)
    if method.depends_on_length:
        hook.switch_length = method.original_length or built.config.max_position_embeddings
        hook.rotation_at = at_length
    elif method.switch_length is not None:
        hook.switch_length = method.switch_length
        hook.long_rotation = at_length(method.switch_length + 1).rotation
    return hook


def probe(module: Any, layer_type: str | None, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return angles and amplitudes `[components]` of a module on the CPU for one token.

    Args:
        module: A rotary module.
        layer_type: Passed where it has several rotations.
        positions: int64, `[1, 1]` or `[axes, 1, 1]`.

    Raises:
        ValueError: The result is not one vector per token.
    """
    keywords = {} if layer_type is None else {"layer_type": layer_type}
    with torch.no_grad(), torch.device("cpu"):
        result = module(torch.zeros(1), positions, **keywords)
    if isinstance(result, Tensor):
        cos = result.real
        sin = result.imag
    else:
        cos, sin = result
    if cos.ndim != 3:
        raise ValueError("the result has other axes than batch, length and components")
    return torch.atan2(sin, cos).flatten(), torch.hypot(sin, cos).flatten()


def feature_layout(module: Any, layer_type: str | None, count: int) -> FeatureLayout:
    """Find where a rotary module keeps each of its features in what it returns.

    A copy of the module gets `count` different frequencies, all below pi: its angles at position 1
    are these frequencies, in the order of the layout.

    Args:
        module: A rotary module on the CPU.
        layer_type: The layer type, where it has several.
        count: Number of features.

    Raises:
        RopeConfigError: It does not return cos and sin of position times its frequencies.
    """
    frequencies = torch.arange(1, count + 1) * (3.0 / (count + 1))
    probed = copy.copy(module)
    name = buffer_name(layer_type)
    original = name.replace("inv_freq", "original_inv_freq")
    probed._buffers = {**module._buffers, name: frequencies, original: frequencies}
    layout = None
    with contextlib.suppress(*CODE_ERRORS):
        layout = _layout_of_probed(probed, layer_type, frequencies)
    if layout is None:
        raise RopeConfigError(
            f"rope_type: {type(module).__name__} does not return cos and sin of position times "
            "the inverse frequencies that it holds, so its rotation cannot be replaced"
        )
    return layout


def _layout_of_probed(
    probed: Any, layer_type: str | None, frequencies: Tensor
) -> FeatureLayout | None:
    """Return the layout of a module whose frequencies are known, from what it returns for position 1.

    The angle of a component is then the frequency of its feature. Which axis of positions a feature
    follows shows where one axis is moved at a time.

    Args:
        probed: The module.
        layer_type: The layer type, where it has several.
        frequencies: Those that it holds, all different and below pi, `[features]`.

    Returns:
        The layout; None where the components are not these frequencies with one amplitude.
    """
    angles, amplitudes = probe(probed, layer_type, torch.ones(1, 1, dtype=torch.int64))
    distance, feature_at = (angles[:, None] - frequencies).abs().min(dim=-1)
    returns_frequencies = float(distance.max()) < _SAME_ANGLE
    same_amplitude = float(amplitudes.max() - amplitudes.min()) < _SAME_AMPLITUDE
    has_all = set(feature_at.tolist()) == set(range(len(frequencies)))
    if not (returns_frequencies and same_amplitude and has_all):
        return None
    axis_of = torch.zeros(len(frequencies), dtype=torch.int64)
    for axis in range(1, _AXES):
        positions = torch.zeros(_AXES, 1, 1, dtype=torch.int64)
        positions[axis] = 1
        # A module of text alone accepts one axis and fails here: its features keep axis 0.
        with contextlib.suppress(IndexError, RuntimeError, ValueError):
            moved, _ = probe(probed, layer_type, positions)
            if moved.shape == angles.shape:
                axis_of[feature_at[moved != 0]] = axis
    return FeatureLayout(feature_at, axis_of)
