"""How RoPE settings are written into a model's config, and the longest sequence that they allow.

The only place that makes the forms in which libraries and lm-eval read settings. No torch.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from resonance_vllm.core.spec import LENGTH, OWN_TYPES, RopeSpec
from resonance_vllm.errors import RopeConfigError, one_of
from resonance_vllm.positions import (
    ModelPositions,
    Settings,
    global_layers,
    model_keys,
    text_config,
)

__all__ = ["ModelPositions", "hf_overrides", "length_limit", "model_args", "vllm_hf_overrides"]

ROPE_PRECISIONS = ("float32", "model")
COMPARED = "rope_compared"
"""Key of vLLM's `hf_overrides` beside requested settings of a stock type: what vLLM builds is
compared with them. Overrides without it are not compared."""


def length_limit(
    model: ModelPositions, rope: RopeSpec | None = None, requested: int | None = None
) -> int:
    """Longest sequence in tokens that a model may be given, on transformers and vLLM alike.

    Each method has its own (`Method.length_limit`). Two kinds follow the requested length:
    `dynamic`, whose base grows with it, and methods that extend nothing, which then extrapolate.

    Args:
        model: the model's config, overrides applied where there are any.
        rope: complete settings; None for the checkpoint as it is, whose stock types are written
            scaled.
        requested: length in tokens that the user requests explicitly.

    Raises:
        RopeConfigError: neither the config nor the user gives a length, or the config has a type
            of ours that cannot be read.
    """
    model = model.with_length(requested or (rope.method.trained_length if rope else None))
    if rope is None:
        if model.plain:
            return max(model.max_positions, requested or 0)
        if model.rope["rope_type"] not in OWN_TYPES:
            return model.max_positions
        rope = model.shipped()
    # What extends nothing has the trained length, also where it replaces a shipped scaling.
    positions = model.original_length if rope.method.extrapolates else model.max_positions
    limit = rope.method.length_limit(positions)
    if rope.method.follows_length or rope.method.extrapolates:
        return max(limit, requested or 0)
    return limit


def with_rope(config: Any, rope: Mapping[str, Any], limit: int | None = None) -> Any:
    """Write complete settings into a transformers config, where its language model reads them.

    Args:
        config: it is changed.
        rope: `RopeSpec.to_dict()`.
        limit: longest sequence in tokens; None is the limit of the settings.

    Returns:
        The config.

    Raises:
        RopeConfigError: the settings are wrong.
    """
    text, _ = text_config(config)
    written = _for_transformers(RopeSpec.from_dict(rope), ModelPositions.of_config(config), limit)
    for key, value in written.items():
        setattr(text, key, value)
    if vars(text).get("head_dim", 0) is None:  # Mixtral: scaled types of transformers multiply it
        text.head_dim = text.hidden_size // text.num_attention_heads
    return config


def hf_overrides(
    rope: RopeSpec, model: ModelPositions, context_length: int | None = None
) -> dict[str, Any]:
    """Keys of config.json with which transformers runs complete settings, as `with_rope` has them.

    Without a `context_length` in tokens the limit of the settings counts.
    """
    return model.in_place(_for_transformers(rope, model, context_length))


def _for_transformers(rope: RopeSpec, model: ModelPositions, length: int | None) -> dict[str, Any]:
    """Keys of the language model's config.

    `max_position_embeddings` stays the trained length for types that follow the length, because
    transformers takes it for that.
    """
    limit = length_limit(model, rope, length)
    original = rope.method.trained_length or model.with_length(limit).max_positions
    positions = original if rope.method.follows_length else limit
    return _written(model, rope.to_dict(), positions, original)


def vllm_hf_overrides(
    rope: RopeSpec, model: ModelPositions, max_model_len: int | None = None
) -> dict[str, Any]:
    """The `hf_overrides` of vLLM.

    vLLM fixes the frequencies when it starts, so `dynamic` is written as `ntk_aware` with the base
    of the served length. It multiplies `max_position_embeddings` by factors of ours, so the engine
    is to be given its `max_model_len`. Without one in tokens the limit of the settings counts.
    """
    fixed = fixed_for_vllm(rope, model, max_model_len)
    limit = length_limit(model, fixed, max_model_len)
    original = fixed.method.trained_length or limit
    parameters = fixed.method.for_vllm(fixed.to_dict())
    if model.nested:  # vLLM updates a dictionary key by key there: what is shipped would stay
        stays = model_keys(model.rope)
        parameters = {key: None for key in model.rope if key not in stays} | parameters
    # vLLM's own linear multiplies it by the factor, its table too, but for Gemma 3
    multiplied = fixed.rope_type == "linear" and "gemma3" not in str(model.model_type)
    written = _written(model, parameters, original if multiplied else limit, original)
    if fixed.method.name == "longrope":
        written[LENGTH] = original  # vLLM reads it there
    compared = {COMPARED: True} if fixed.is_stock and not model.ships(fixed) else {}
    return {**model.in_place(written), **compared}


def fixed_for_vllm(rope: RopeSpec, model: ModelPositions, max_model_len: int | None) -> RopeSpec:
    """The settings that vLLM runs: those whose frequencies follow the length are frozen at it."""
    if not rope.method.follows_length:
        return rope
    length = max_model_len or length_limit(model, rope)
    return dataclasses.replace(rope, method=rope.method.at_length(length))


def _written(
    model: ModelPositions, parameters: Settings, positions: int, original: int
) -> dict[str, Any]:
    """Settings and the lengths that belong to them, under the keys that the model's config has."""
    parameters = {**model_keys(model.rope), **parameters}
    if model.by_layer_type:
        shipped = model.rope_parameters
        parameters = {**shipped, global_layers(shipped): parameters}
    result: dict[str, Any] = {"rope_parameters": parameters}
    if model.max_position_embeddings is not None:
        result["max_position_embeddings"] = positions
    # Where a config has this key at the top, both libraries let it win over the dictionary.
    if model.original_max_position_embeddings is not None:
        result[LENGTH] = original
    return result


def effective_rope_precision(library: str, rope_precision: str) -> str:
    """What `rope_precision` really is: vLLM always rotates in the model's dtype."""
    one_of("rope_precision", rope_precision, ROPE_PRECISIONS, RopeConfigError)
    return "model" if library == "vllm" else rope_precision


def model_args(
    rope: RopeSpec | None,
    model: ModelPositions,
    *,
    library: str,
    model_path: str,
    context_length: int | None = None,
    rope_precision: str = "float32",
) -> dict[str, Any]:
    """`model_args` for lm-eval: settings in the form that the library's backend reads.

    Args:
        rope: complete settings; None runs the checkpoint as it is.
        model: the model's config.
        library: the one that runs the model, `transformers` or `vllm`.
        model_path: checkpoint folder or hub name.
        context_length: longest sequence in tokens; None is the limit of the settings.
        rope_precision: of the rotation on transformers, see `ROPE_PRECISIONS`.

    Raises:
        RopeConfigError: `context_length` is above the limit.
    """
    precision = effective_rope_precision(library, rope_precision)
    limit = length_limit(model, rope, context_length)
    if context_length is not None and context_length > limit:
        raise RopeConfigError(
            f"context_length: {context_length} is above the limit of {limit} tokens; allowed: up "
            f"to {limit}, or a larger factor"
        )
    length, model = context_length or limit, model.with_length(limit)
    args: dict[str, Any] = {"pretrained": model_path}
    if library == "transformers":
        args |= {"max_length": length, "rope_precision": precision}
        return args if rope is None else {**args, "rope_parameters": rope.to_dict()}
    args["max_model_len"] = length
    if rope is not None:
        args["hf_overrides"] = vllm_hf_overrides(rope, model, length)
    elif length > model.max_positions:
        args["hf_overrides"] = model.in_place({"max_position_embeddings": length})
    return args
