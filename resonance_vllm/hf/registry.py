"""This package's RoPE types in transformers' registry, and the rotation that a config requests."""

import copy
import functools
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.modeling_utils import local_torch_dtype

from resonance_vllm.checkpoint.positions import PositionConfig
from resonance_vllm.checkpoint.rope_dict import RopeDict, rope_by_layer_type, unscaled_rope_type
from resonance_vllm.core import frequencies
from resonance_vllm.core.frequencies import Rotation
from resonance_vllm.core.method import Method
from resonance_vllm.core.spec import OWN_TYPES, RopeSpec


class RequestedRotation(NamedTuple):
    """The rotation that a config requests of a rotary module.

    Attributes:
        spec: The settings.
        rotation: Inverse frequencies, and periods where the phase is exact.
        attention_factor: What cos and sin are multiplied by.
    """

    spec: RopeSpec
    rotation: Rotation
    attention_factor: float


@functools.cache
def register() -> None:
    """Add this package's RoPE types to transformers; a second call does nothing.

    Afterwards `from_pretrained` builds a model whose config.json has one of them. Exact phase and
    the comparison with the request need `apply_rope` or `load`.
    """
    for name in OWN_TYPES:
        ROPE_INIT_FUNCTIONS[name] = rope_function
        # transformers looks for this method, and warns of a type that has none.
        setattr(PreTrainedConfig, f"_validate_{name}_rope_parameters", _accept_settings)


def _accept_settings(*_: Any, **__: Any) -> None:
    """Leave the validation of settings to `RopeSpec`."""


def rope_function(
    config: Any, device: Any = None, seq_len: Any = None, layer_type: str | None = None
) -> tuple[Tensor, float]:
    """Compute a rotation as transformers' registry does; the entry of each of this package's types.

    Args:
        config: The config of the language model.
        device: Of the result; None is torch's default device.
        seq_len: Length of the sequence in tokens, a number or a tensor; None up to the original one.
        layer_type: The layer type, where a config has settings for several.

    Returns:
        Inverse frequencies in radians per token, float32 `[features]`, and the attention factor.
    """
    length = None if seq_len is None else int(seq_len)
    requested = requested_rotation(config, layer_type, length)
    target = torch.get_default_device() if device is None else device
    return requested.rotation.inv_freq.to(target, torch.float32), requested.attention_factor


def requested_spec(config: Any, layer_type: str | None) -> RopeSpec:
    """Return the settings that a language model's config has for a layer type.

    Raises:
        KeyError: The config has none for it.
        RopeConfigError: They cannot be read: a type of the model's own.
    """
    rope = rope_by_layer_type(config)[layer_type]
    return replace(PositionConfig.from_config(config), rope_parameters=rope).own_spec()


def requested_rotation(
    config: Any,
    layer_type: str | None,
    length: int | None = None,
    spec: RopeSpec | None = None,
) -> RequestedRotation:
    """Return the rotation that a config requests of its rotary module.

    transformers' own function for the family decides how many features are rotated; stock methods
    take its numbers unchanged.

    Args:
        config: The config of the language model.
        layer_type: The layer type, where it has settings for several; else None.
        length: Length of the sequence in tokens, for methods that follow it.
        spec: The settings where they are known; None reads them from the config.

    Raises:
        KeyError: The config has no settings for the layer type.
        RopeConfigError: The settings cannot be read.
    """
    rope = rope_by_layer_type(config)[layer_type]
    if spec is None:
        spec = requested_spec(config, layer_type)
    registry_type = _registry_type(config, layer_type, spec)
    registry_config = _registry_config(config, layer_type, spec, registry_type, rope)
    compute = ROPE_INIT_FUNCTIONS[registry_type]
    # A model is built under its own default device and dtype; frequencies are float32 on the CPU.
    with torch.device("cpu"), local_torch_dtype(torch.float32):
        inv_freq, attention_factor = compute(
            registry_config, "cpu", seq_len=length, layer_type=layer_type
        )
    if spec.is_stock:
        rotation = frequencies.rotation_from_base(spec, inv_freq.double())
        return RequestedRotation(spec, rotation, attention_factor)
    base = frequencies.base_inv_freq(spec.method, inv_freq, length)
    return RequestedRotation(
        spec, frequencies.rotation_from_base(spec, base), spec.method.compute_attention_factor()
    )


def _registry_type(config: Any, layer_type: str | None, spec: RopeSpec) -> str:
    """Return the type of transformers' registry from which a method's frequencies are made."""
    rope = rope_by_layer_type(config)[layer_type]
    pairs_whole_head = unscaled_rope_type(config, layer_type) != "default"
    if pairs_whole_head and rope.get("partial_rotary_factor"):
        return "proportional"  # a share of the features is not rotated
    name = spec.method.name
    if name == "proportional" or (spec.is_stock and name != "default"):
        return name
    return "linear"  # with factor 1: the registry has no entry for plain RoPE


def _registry_config(
    config: Any, layer_type: str | None, spec: RopeSpec, registry_type: str, rope: RopeDict
) -> Any:
    """Return a copy of a config that asks transformers for a type of its registry."""
    settings = {key: value for key, value in rope.items() if key != "type"}
    settings["rope_type"] = registry_type
    if registry_type != spec.method.name:
        for key in set(spec.method.key_names()) - set(Method.model_fields):
            settings.pop(key, None)
        settings["factor"] = 1.0
    changed = copy.copy(config)
    if layer_type is None:
        changed.rope_parameters = settings
    else:
        changed.rope_parameters = {**config.rope_parameters, layer_type: settings}
    if vars(changed).get("head_dim", 0) is None:  # Mixtral: transformers' functions multiply None
        changed.head_dim = changed.hidden_size // changed.num_attention_heads
    if spec.method.depends_on_length and spec.method.original_length is not None:
        changed.max_position_embeddings = spec.method.original_length
    return changed
