"""What a vLLM model's config requests of its layers."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from resonance_vllm.checkpoint.limits import length_limit
from resonance_vllm.checkpoint.overrides import VERIFY_ROPE_KEY, vllm_hf_overrides
from resonance_vllm.checkpoint.positions import PositionConfig, complete_rope
from resonance_vllm.checkpoint.reached_layers import refuse_unused
from resonance_vllm.checkpoint.rope_dict import (
    is_per_layer_type,
    is_windowed,
    model_specific_keys,
    refuse_two_rope_dicts,
    rope_by_layer_type,
    rope_of_present_layers,
)
from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.core.spec import OWN_TYPES, RESONANCE, RopeSpec, RopeType
from resonance_vllm.vllm.build_context import current_build

SHARE = "partial_rotary_factor"
_VLLM_KEYS = ("type", "rope_dim", "short_mscale", "long_mscale")
"""Keys that may be beside those of a method: vLLM's names for what this package calls otherwise."""


class LayerRequest(NamedTuple):
    """What is requested of the layers of one type.

    Attributes:
        spec: The settings.
        rope: The dictionary that they were read from, with the model's own keys.
    """

    spec: RopeSpec
    rope: Mapping[str, Any]


def is_own_type(rope: object) -> bool:
    """Return whether a RoPE dictionary has a type of this package.

    A misspelt one counts, too, so that it is refused as such.
    """
    rope_type = rope.get("rope_type") if isinstance(rope, Mapping) else None
    return rope_type in OWN_TYPES or str(rope_type).startswith(RESONANCE)


def read_request(
    rope: Mapping[str, Any], shipped: Mapping[str, Any], served_length: int
) -> LayerRequest:
    """Read what a RoPE dictionary of a vLLM config requests.

    The dictionary mixes keys of the method with keys of the model and of vLLM. Those of the method
    become the settings; where a method follows the current length, they are fixed at the served one.

    Args:
        rope: The dictionary, complete.
        shipped: The checkpoint's own dictionary.
        served_length: The engine's `max_model_len` in tokens.

    Returns:
        The settings and the dictionary; for types of this package with the model's own keys.

    Raises:
        RopeConfigError: The settings are wrong, or vLLM cannot run them.
    """
    method_keys = {"rope_type", *RopeType.parse(rope.get("rope_type")).method.key_names()}
    # Only keys that the checkpoint or vLLM is known to have beside a method's are omitted: any
    # other one is a mistake, which `from_dict` refuses.
    other_keys = {*shipped, *_VLLM_KEYS} - method_keys
    settings = {key: value for key, value in rope.items() if key not in other_keys}
    spec = RopeSpec.from_dict(settings)
    spec.method.to_vllm({"rope_type": spec.rope_type})  # refuses what vLLM cannot run
    spec = dataclasses.replace(spec, method=spec.method.at_length(served_length))
    if not is_own_type(rope):
        return LayerRequest(spec, rope)  # vLLM runs it as it is
    # vLLM's overrides have replaced the checkpoint's dictionary as a whole, and with it what
    # describes the model (sections of axes, share of rotated dimensions). Model files need that.
    model_keys = {*model_specific_keys(shipped), SHARE}
    of_model = {key: value for key, value in shipped.items() if key in model_keys}
    return LayerRequest(spec, {**of_model, **rope})


def complete_settings(
    rope: Mapping[str, Any] | str | None, model_config: Any
) -> Mapping[str, Any] | None:
    """Return settings for a running engine, completed from the model's config.json.

    Settings that state all that their method needs are returned as they are, and so are those by
    layer type and those of types that this package does not have.

    Args:
        rope: `"yarn:factor=2"`, a dictionary, or None for the unmodified config.json.
        model_config: The engine's `ModelConfig`.

    Raises:
        RopeConfigError: The settings are wrong, or do not fit the model.
    """
    if rope is None or (isinstance(rope, Mapping) and not _lacks_keys(rope)):
        return rope
    positions = PositionConfig.from_config(shipped_text_config(model_config))
    spec = complete_rope(rope, positions)
    overrides = vllm_hf_overrides(spec, positions, int(model_config.max_model_len))
    written: Mapping[str, Any] = overrides["rope_parameters"]
    return written


def _lacks_keys(rope: Mapping[str, Any]) -> bool:
    """Return whether a RoPE dictionary of this package's methods lacks keys that it needs."""
    if is_per_layer_type(rope):
        return False
    try:
        method = RopeType.parse(rope.get("rope_type")).method
    except RopeConfigError:
        return False  # vLLM knows the type, or refuses it
    required = {key for key, field in method.model_fields.items() if field.is_required()}
    return not required <= rope.keys()


def requests_of(model_config: Any) -> dict[str | None, LayerRequest]:
    """Return what vLLM's `ModelConfig` requests, by layer type.

    Stock types count where `vllm_hf_overrides` wrote them; without any request the result is empty
    and vLLM does as it would without the plugin.

    Raises:
        RopeConfigError: The settings are wrong, no layer would use them, or `max_model_len`
            exceeds their limit.
    """
    ropes = _requested_dictionaries(model_config)
    if not ropes:
        return {}
    _refuse_two_dictionaries(model_config)
    served_length = int(model_config.max_model_len)
    shipped = shipped_text_config(model_config)
    shipped_ropes = rope_by_layer_type(shipped)
    requests = {}
    for layer_type, rope in ropes.items():
        shipped_rope = shipped_ropes.get(layer_type, shipped_ropes.get(None)) or {}
        requests[layer_type] = read_request(rope, shipped_rope, served_length)
    positions = PositionConfig.from_config(shipped)
    for request in requests.values():
        _check_length(model_config, positions, request.spec)
    return requests


def _requested_dictionaries(model_config: Any) -> dict[str | None, Mapping[str, Any]]:
    """Return the RoPE dictionaries that request something, by layer type."""
    text = model_config.hf_text_config
    whole = model_config.hf_config
    if whole is not text and any(map(is_own_type, rope_by_layer_type(whole).values())):
        raise RopeConfigError(
            f"rope_parameters: they are at the top level of a config of model_type "
            f"{whole.model_type!r}, which nests its language model; allowed: the --hf-overrides "
            "that `leval-harness check MODEL --rope ...` prints"
        )
    has_own_types = any(map(is_own_type, rope_by_layer_type(text).values()))
    if not has_own_types and not getattr(whole, VERIFY_ROPE_KEY, False):
        return {}
    refuse_unused(text)
    ropes = rope_of_present_layers(text)
    if has_own_types:
        return {key: rope for key, rope in ropes.items() if is_own_type(rope)}
    return {key: rope for key, rope in ropes.items() if not is_windowed(key)}


def _refuse_two_dictionaries(model_config: Any) -> None:
    """Refuse a config.json with different settings under two keys, of which vLLM reads one."""
    from transformers import PreTrainedConfig

    content, _ = PreTrainedConfig.get_config_dict(
        model_config.model, revision=model_config.revision
    )
    refuse_two_rope_dicts(content)


def _check_length(model_config: Any, positions: PositionConfig, spec: RopeSpec) -> None:
    """Refuse an engine that serves more tokens than settings of this package allow.

    A running engine may serve more than the settings that are swapped into it.
    """
    build = current_build.get()
    is_swap = build is not None and build.for_running_engine
    if spec.rope_type not in OWN_TYPES or is_swap:
        return
    limit = length_limit(positions, spec, model_config.original_max_model_len)
    served_length = int(model_config.max_model_len)
    if served_length > limit:
        raise RopeConfigError(
            f"max_model_len: {served_length} is above the limit of {limit} tokens of rope_type "
            f"{spec.rope_type!r}; allowed: --max-model-len {limit}, or a larger factor"
        )


def shipped_text_config(model_config: Any) -> Any:
    """Return the language model's config of a `ModelConfig` as config.json has it, no overrides."""
    from vllm.transformers_utils.config import get_config, get_hf_text_config

    path = getattr(model_config, "hf_config_path", None) or model_config.model
    config = get_config(
        path, model_config.trust_remote_code, model_config.revision, model_config.code_revision
    )
    return get_hf_text_config(config)
