"""RoPE settings written for a library: the one place that makes these keys. No torch."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from resonance_vllm.checkpoint.limits import length_limit
from resonance_vllm.checkpoint.positions import PositionConfig, language_model_config
from resonance_vllm.checkpoint.rope_dict import (
    RopeDict,
    global_layer_type,
    is_per_layer_type,
    model_specific_keys,
)
from resonance_vllm.common.log import warn_once
from resonance_vllm.core.spec import ORIGINAL_LENGTH_KEY, RESONANCE, RopeSpec

logger = logging.getLogger(__name__)

VERIFY_ROPE_KEY = "rope_compared"
"""Key of vLLM's `hf_overrides` beside requested settings of a stock type: the plugin compares what
vLLM builds with them. Overrides without it are not compared."""


def with_rope(config: Any, rope: RopeSpec | Mapping[str, Any], limit: int | None = None) -> Any:
    """Write complete settings into a transformers config, where its language model reads them.

    Args:
        config: a `PreTrainedConfig`, which is changed.
        rope: complete settings.
        limit: longest sequence in tokens; None is the limit of the settings.

    Returns:
        `config`.

    Raises:
        RopeConfigError: the settings are wrong or incomplete.
    """
    spec = rope if isinstance(rope, RopeSpec) else RopeSpec.from_dict(rope)
    text, _ = language_model_config(config)
    written = _for_transformers(spec, PositionConfig.from_config(config), limit)
    for key, value in written.items():
        setattr(text, key, value)
    if vars(text).get("head_dim", 0) is None:  # Mixtral: scaled types of transformers multiply it
        text.head_dim = text.hidden_size // text.num_attention_heads
    return config


def hf_overrides(
    rope: RopeSpec, model: PositionConfig, context_length: int | None = None
) -> dict[str, Any]:
    """Return the keys of config.json with which transformers runs settings, as `with_rope`.

    Args:
        rope: complete settings.
        model: what the checkpoint's config says.
        context_length: longest sequence in tokens; None is the limit of the settings.
    """
    return model.nest(_for_transformers(rope, model, context_length))


def _for_transformers(rope: RopeSpec, model: PositionConfig, length: int | None) -> dict[str, Any]:
    """Return keys of the language model's config.

    `max_position_embeddings` stays the original context length for types that depend on the length,
    because transformers reads it as that.
    """
    limit = length_limit(model, rope, length)
    original_length = rope.method.original_length or model.with_length(limit).max_positions
    positions = original_length if rope.method.depends_on_length else limit
    parameters = rope.to_dict()
    if model.is_mla and rope.rope_type == RESONANCE:
        # DeepSeek's code reads `factor` under any type but `default`; 1 leaves its scale alone.
        parameters["factor"] = 1.0
    return _with_lengths(model, parameters, positions, original_length)


def vllm_hf_overrides(
    rope: RopeSpec, model: PositionConfig, max_model_len: int | None = None
) -> dict[str, Any]:
    """Return the `hf_overrides` with which vLLM runs settings.

    vLLM fixes frequencies when it starts, so types that depend on the length are written as they
    are at the served length.

    Args:
        rope: complete settings.
        model: what the checkpoint's config says.
        max_model_len: of the engine, in tokens; None is the limit of the settings.

    Raises:
        RopeConfigError: vLLM cannot run the method.
    """
    if rope.method.depends_on_length:
        length = max_model_len or length_limit(model, rope)
        message = "vLLM runs %r with the frequencies of the served length, %d tokens"
        warn_once(logger, message, rope.rope_type, length)
        rope = replace(rope, method=rope.method.at_length(length))
    limit = length_limit(model, rope, max_model_len)
    original_length = rope.method.original_length or limit
    parameters = rope.method.to_vllm(rope.to_dict())
    if model.nested:
        # vLLM updates a nested dictionary key by key: without None the model's own keys would stay.
        kept = model_specific_keys(model.rope)
        removed = {key: None for key in model.rope if key not in kept}
        parameters = {**removed, **parameters}
    # vLLM's own linear multiplies the length by the factor, and its table; Gemma 3's does not.
    is_multiplied = rope.rope_type == "linear" and "gemma3" not in str(model.model_type)
    positions = original_length if is_multiplied else limit
    written = _with_lengths(model, parameters, positions, original_length)
    if rope.method.name == "longrope":
        written[ORIGINAL_LENGTH_KEY] = original_length  # vLLM reads it beside the dictionary
    overrides = model.nest(written)
    if rope.is_stock and rope != model.own_spec_or_none:
        overrides[VERIFY_ROPE_KEY] = True
    return overrides


def _with_lengths(
    model: PositionConfig, parameters: RopeDict, positions: int, original_length: int
) -> dict[str, Any]:
    """Return settings and the lengths that belong to them, under the keys of the model's config."""
    parameters = {**model_specific_keys(model.rope), **parameters}
    own = model.rope_parameters
    if is_per_layer_type(own):
        parameters = {**own, global_layer_type(own): parameters}
    result: dict[str, Any] = {"rope_parameters": parameters}
    if model.max_position_embeddings is not None:
        result["max_position_embeddings"] = positions
    # Where a config has this key beside the dictionary, both libraries prefer it.
    if model.original_max_position_embeddings is not None:
        result[ORIGINAL_LENGTH_KEY] = original_length
    return result
