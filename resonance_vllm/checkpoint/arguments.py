"""RoPE settings in lm-eval's `model_args`: written for a backend, and read back from any run."""

import ast
import json
import logging
import math
from collections.abc import Mapping
from typing import Any

from resonance_vllm.checkpoint.limits import check_length, length_notes
from resonance_vllm.checkpoint.overrides import VERIFY_ROPE_KEY, vllm_hf_overrides
from resonance_vllm.checkpoint.positions import PositionConfig
from resonance_vllm.checkpoint.rope_dict import (
    RopeDict,
    global_layer_types,
    is_per_layer_type,
    normalize_rope_dict,
)
from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.common.log import warn_once
from resonance_vllm.core.spec import (
    METHODS,
    ORIGINAL_LENGTH_KEY,
    RESONANCE,
    RESONANCE_PREFIX,
    RopeSpec,
    RopeType,
)

logger = logging.getLogger(__name__)

ROPE_PRECISIONS = ("float32", "model")
"""Precisions of the rotation on transformers: float32, or that of the activations."""

OVERRIDE_ARGUMENTS = ("hf_overrides", "json_model_override_args")
"""Arguments of vLLM and of SGLang that hold keys of config.json."""
_ROPE_KEYS = ("rope_parameters", "rope_scaling", "rope_theta")
_LENGTH_KEYS = ("max_position_embeddings", ORIGINAL_LENGTH_KEY)
"""Keys that follow from the RoPE settings and from the length of a run."""


def model_args(
    rope: RopeSpec | None,
    model: PositionConfig,
    *,
    library: str,
    model_path: str,
    context_length: int | None = None,
    rope_precision: str = "float32",
) -> dict[str, Any]:
    """Return `model_args` for lm-eval: settings in the form that a library's backend reads.

    What a user should know about the length (`length_notes`) is logged once.

    Args:
        rope: complete settings; None is the unmodified checkpoint.
        model: what the checkpoint's config says.
        library: `transformers` or `vllm`.
        model_path: checkpoint folder or hub name.
        context_length: longest sequence in tokens; None is the limit.
        rope_precision: one of `ROPE_PRECISIONS`, for transformers; vLLM rotates in the model's
            dtype.

    Raises:
        RopeConfigError: `context_length` is above the limit.
    """
    limit = check_length(model, rope, context_length)
    for note in length_notes(model, rope, context_length):
        warn_once(logger, "%s", note)
    length = context_length or limit
    model = model.with_length(limit)
    arguments: dict[str, Any] = {"pretrained": model_path}
    if library == "transformers":
        arguments |= {"max_length": length, "rope_precision": rope_precision}
        if rope is not None:
            arguments["rope_parameters"] = rope.to_dict()
        return arguments
    arguments["max_model_len"] = length
    if rope is not None:
        arguments["hf_overrides"] = vllm_hf_overrides(rope, model, length)
    elif length > model.max_positions:
        arguments["hf_overrides"] = model.nest({"max_position_embeddings": length})
    return arguments


def rope_from_model_args(
    arguments: Mapping[str, Any], model: PositionConfig | None = None
) -> RopeDict | None:
    """Return the RoPE settings that a run's `model_args` request, in one normal form.

    Read are `rope_parameters`, `rope_scaling` and `rope_theta` as arguments, and inside vLLM's
    `hf_overrides` and SGLang's `json_model_override_args`, which may be JSON text; nested under
    the config of a language model; one dictionary, or one per layer type; `type` or `rope_type`;
    and vLLM's own names of keys.

    Args:
        arguments: `model_args` of lm-eval as a mapping.
        model: what the checkpoint's config says, to complete the settings.

    Returns:
        None if nothing is requested. Else `rope_type` and the keys of its method whose value is
        not the default, numbers as floats where the method has floats; with `model`, and a method
        of this package, complete settings. A type that this package does not have is returned as it
        was written. Without `rope_type` the request changes the base of the checkpoint's own
        method alone.

    Raises:
        RopeConfigError: with `model`, the settings are wrong for it.
    """
    # Servers' options are spelled with dashes.
    arguments = {key.replace("-", "_"): value for key, value in arguments.items()}
    requested = {key: _parsed(arguments[key]) for key in _ROPE_KEYS if key in arguments}
    for name in OVERRIDE_ARGUMENTS:
        overrides = _parsed(arguments.get(name))
        if isinstance(overrides, Mapping):
            requested |= _language_model_overrides(overrides)
    rope = requested.get("rope_scaling") or requested.get("rope_parameters")
    base = requested.get("rope_theta")
    if not isinstance(rope, Mapping):
        return {"rope_theta": float(base)} if isinstance(base, int | float) else None
    if is_per_layer_type(rope):
        rope = rope[_requested_layer_type(rope)]
    result = normalize_rope_dict(rope)
    if base is not None:
        result.setdefault("rope_theta", base)
    result = _method_keys(result)
    if model is None or _method_name(result) not in METHODS:
        return result
    return model.complete(result).to_dict()


def _parsed(value: object) -> Any:
    """Return the value that a JSON or Python text describes, or the value itself."""
    if not isinstance(value, str):
        return value
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(value)
        except (ValueError, SyntaxError):
            continue
    return value


def _language_model_overrides(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the RoPE keys of overrides, or of the nested config that has some.

    Configs of images and audio are passed over; a language model may be nested twice, as in
    `thinker_config.text_config`.
    """
    found = {key: overrides[key] for key in _ROPE_KEYS if overrides.get(key) is not None}
    if found:
        return found
    for key, value in overrides.items():
        is_other_part = any(word in key for word in ("vision", "audio", "talker", "encoder"))
        # The rest nests a config: keys of settings hold lists and numbers.
        if isinstance(value, Mapping) and not is_other_part:
            found = _language_model_overrides(value)
            if found:
                return found
    return {}


def other_overrides(overrides: Any) -> dict[str, Any]:
    """Return what `hf_overrides` change besides RoPE settings and lengths; empty if nothing.

    Args:
        overrides: the value of an argument of `OVERRIDE_ARGUMENTS`, which may be JSON text.
    """
    overrides = _parsed(overrides)
    if not isinstance(overrides, Mapping):
        return {}
    others = {}
    for key, value in overrides.items():
        if key in (*_ROPE_KEYS, *_LENGTH_KEYS, VERIFY_ROPE_KEY):
            continue
        other = value
        if isinstance(value, Mapping):
            other = other_overrides(value)
        if other != {}:
            others[key] = other
    return others


def _requested_layer_type(rope: Mapping[str, Any]) -> str:
    """Return the layer type whose settings are the method: the first without a window."""
    candidates = global_layer_types(rope) or [key for key in rope if isinstance(rope[key], Mapping)]
    return candidates[0]


def _method_name(rope: RopeDict) -> str:
    rope_type = str(rope["rope_type"])
    if rope_type == RESONANCE:
        return "default"
    return rope_type.removeprefix(RESONANCE_PREFIX)


def _method_keys(rope: RopeDict) -> RopeDict:
    """Return the keys of a dictionary's method, without defaults, floats as floats."""
    method = METHODS.get(_method_name(rope))
    if method is None:
        return rope
    result: RopeDict = {"rope_type": rope["rope_type"]}
    if method.name == "longrope":
        attention_factor = _longrope_attention_factor(rope)
        if attention_factor is not None:
            rope = {"attention_factor": attention_factor, **rope}
    for key in method.key_names():
        value = rope.get(key)
        if isinstance(value, float) and key == ORIGINAL_LENGTH_KEY and value.is_integer():
            value = int(value)
        elif isinstance(value, int) and not isinstance(value, bool) and key != ORIGINAL_LENGTH_KEY:
            value = float(value)
        if isinstance(value, list | tuple):
            value = [float(number) for number in value]
        if value is not None and value != method.model_fields[key].default:
            result[key] = value
    return result


def _longrope_attention_factor(rope: RopeDict) -> float | None:
    """Return the attention factor in a longrope dictionary of vLLM, if it needs to be written.

    vLLM has two, `short_mscale` and `long_mscale`, for short and for long sequences. This package
    has one, so that they are read only where they are equal.

    Returns:
        The factor; None where there is no single one, or where the method computes the same value
        from its other settings.
    """
    stated: float | None = rope.get("long_mscale")
    if stated is None or rope.get("short_mscale") != stated:
        return None
    settings = {key: rope[key] for key in METHODS["longrope"].key_names() if key in rope}
    try:
        method = RopeSpec.from_settings(RopeType.parse("longrope"), settings).method
    except RopeConfigError:
        return stated  # the settings are incomplete, and nothing can be computed from them
    if math.isclose(method.compute_attention_factor(), stated):
        return None
    return stated
