"""From what a user writes to what each library must be given.

`config` is always the dictionary of a model's config.json. Nobody else writes rope dictionaries.
Standard library only at import.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.core.spec import METHOD_KEYS, PREFIX, RopeSpec, dynamic_factor, split_rope_type
from resonance_vllm.model_config import (
    GLOBAL_LAYERS,
    check_family,
    max_positions,
    original_length,
    own_rope,
)

logger = logging.getLogger(__name__)

# vLLM takes the length of these types from max_position_embeddings; all others it multiplies by
# `factor` (vllm/config/model.py, _get_and_verify_max_len).
VLLM_UNMULTIPLIED = frozenset({"yarn", "llama3", "longrope"})


def parse_rope(text: str) -> dict[str, Any]:
    """Read a `--rope` argument.

    Args:
        text: a type name, the short form `yarn:factor=2,original_max_position_embeddings=8192`,
            or a JSON dictionary.

    Returns:
        The dictionary as written, with `rope_type`; `complete` fills in what the model knows.

    Raises:
        RopeConfigError: the text is none of these.
    """
    text = text.strip()
    if text.startswith("{"):
        try:
            parsed = json.loads(text)
        except json.JSONDecodeError as error:
            raise RopeConfigError(f"rope: {text!r} is not JSON: {error}") from error
        return dict(parsed)
    rope_type, _, rest = text.partition(":")
    result: dict[str, Any] = {"rope_type": rope_type.strip()}
    for item in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = item.partition("=")
        if not equals:
            raise RopeConfigError(
                f"rope: {item!r} in {text!r} has no value; allowed: TYPE:key=value,key=value or a "
                "JSON dictionary"
            )
        result[key.strip()] = _parsed_value(value.strip())
    return result


def _parsed_value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def long_name(rope_type: str) -> str:
    """Resolve the short form `ntk` (and `resonance_ntk`) of our command line to `ntk_aware`."""
    return {"ntk": "ntk_aware", PREFIX + "ntk": PREFIX + "ntk_aware"}.get(rope_type, rope_type)


def complete(rope: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """The full `rope_parameters` of a request, with what the model's config knows filled in.

    Filled in: `rope_theta`, the trained length, `partial_rotary_factor`, and, where the model
    already uses the same base method, any of that method's keys. The trained length is the
    `original_max_position_embeddings` of the config, else its `max_position_embeddings`.

    Args:
        rope: at least `rope_type`; `ntk` is short for `ntk_aware`.
        config: the model's config.json.

    Returns:
        A dictionary that `RopeSpec.from_dict` accepts.

    Raises:
        RopeConfigError: a key is unknown or missing, a value is not allowed, or the model's
            positions cannot be described.
    """
    check_family(config)
    filled = {key: value for key, value in rope.items() if value is not None}
    if isinstance(filled.get("rope_type"), str):
        filled["rope_type"] = long_name(filled["rope_type"])
    own = own_rope(config)
    method = split_rope_type(filled.get("rope_type"))[0] if "rope_type" in filled else None
    if method is not None and _base_method(own) == method:
        known = METHOD_KEYS[method][0] | METHOD_KEYS[method][1]
        filled = {**{k: v for k, v in own.items() if k in known}, **filled}
    for key in ("rope_theta", "partial_rotary_factor"):
        if own.get(key) is not None:
            filled.setdefault(key, own[key])
    if "rope_theta" not in filled:
        raise RopeConfigError(
            f"rope_theta: neither given nor in the config of this {config.get('model_type')!r} "
            "model; give rope_theta if it is a RoPE model"
        )
    if method not in (None, "default"):
        filled.setdefault("original_max_position_embeddings", original_length(config))
    if method == "longrope" and "factor" not in filled:
        extended = max_positions(config) / filled["original_max_position_embeddings"]
        filled["factor"] = max(extended, 1.0)
    return RopeSpec.from_dict(filled).to_dict()


def _base_method(own: Mapping[str, Any]) -> str | None:
    try:
        return split_rope_type(own["rope_type"])[0]
    except RopeConfigError:
        return None


def context_limit(
    rope: Mapping[str, Any] | None, config: Mapping[str, Any], context_length: int | None = None
) -> int:
    """Longest sequence a model may be asked with these settings, on HF and vLLM alike.

    `RopeSpec.length_limit`, except for two kinds of method that follow the length asked for:
    `dynamic`, whose base grows with it, and the unscaled ones, which then extrapolate.

    Args:
        rope: the request; None for the checkpoint as it is.
        config: the model's config.json.
        context_length: length that the user asks for by name.
    """
    if rope is None:
        own = own_rope(config)
        if own["rope_type"] in ("default", "linear", "dynamic", "yarn", "llama3", "longrope"):
            return max_positions(config)
        rope = own
    spec = RopeSpec.from_dict(complete(rope, config))
    limit = spec.length_limit(max_positions(config))
    if spec.is_dynamic or spec.factor is None:
        return max(limit, context_length or 0)
    return limit


def hf_overrides(
    rope: Mapping[str, Any], config: Mapping[str, Any], context_length: int | None = None
) -> dict[str, Any]:
    """What to pass to transformers' `from_pretrained`, or to write into config.json.

    Returns:
        `rope_parameters` (by layer type where the model has several) and
        `max_position_embeddings`; the latter stays the trained length for dynamic types, because
        transformers takes it for that.
    """
    spec = RopeSpec.from_dict(complete(rope, config))
    params = spec.to_dict()
    if params["rope_type"] in ("linear", "dynamic"):
        params.pop("original_max_position_embeddings", None)  # transformers warns of it there
    for key in ("short_mscale", "long_mscale"):
        params.pop(key, None)  # vLLM's names of attention_factor
    if spec.method == "longrope" and spec.long_mscale is not None:
        params.setdefault("attention_factor", spec.long_mscale)
    original = spec.original_max_position_embeddings or max_positions(config)
    limit = context_limit(rope, config, context_length)
    written = _overrides(params, config, original if spec.is_dynamic else limit, original)
    if config.get("original_max_position_embeddings") is None:
        # from_pretrained takes a key only where the model's config has it already.
        written.pop("original_max_position_embeddings", None)
    return written


def vllm_hf_overrides(
    rope: Mapping[str, Any], config: Mapping[str, Any], max_model_len: int | None = None
) -> dict[str, Any]:
    """The `hf_overrides` of vLLM for a request.

    vLLM fixes the frequencies when it starts, so `dynamic` is written as `ntk_aware` with the base
    of the served length (and logged).

    Args:
        rope: the request.
        config: the model's config.json.
        max_model_len: length to be served; None is the limit of the settings.

    Returns:
        `rope_parameters` and `max_position_embeddings` in the form from which vLLM derives the
        limit of `context_limit`.
    """
    spec = RopeSpec.from_dict(complete(rope, config))
    limit = context_limit(rope, config, max_model_len)
    if spec.is_dynamic:
        spec = static_ntk(spec, max_model_len or limit)
        limit = spec.length_limit(max_positions(config))
        logger.warning(
            "vLLM fixes RoPE frequencies at start-up: dynamic runs as %s with factor %g, the base "
            "of %d tokens",
            spec.rope_type,
            spec.factor,
            max_model_len or limit,
        )
    params = spec.to_dict()
    if spec.method == "longrope":
        params.update(_vllm_mscale(spec))
    original = spec.original_max_position_embeddings or limit
    multiplied = (
        spec.factor is not None
        and spec.method != "llama3"
        and spec.rope_type not in VLLM_UNMULTIPLIED
        and "gemma3" not in str(config.get("model_type"))
    )
    return _overrides(params, config, original if multiplied else limit, original)


def static_ntk(spec: RopeSpec, length: int) -> RopeSpec:
    """`dynamic` frozen at a length: `ntk_aware` with the very base that `dynamic` has there."""
    if spec.factor is None or spec.original_max_position_embeddings is None:
        raise RopeConfigError("original_max_position_embeddings: missing; dynamic needs it here")
    factor = dynamic_factor(spec.factor, length, spec.original_max_position_embeddings)
    return replace(spec, method="ntk_aware", factor=factor)


def _vllm_mscale(spec: RopeSpec) -> dict[str, float]:
    from resonance_vllm.core.frequencies import attention_factor

    factor = attention_factor(spec)
    return {
        "short_mscale": spec.short_mscale or factor,
        "long_mscale": spec.long_mscale or factor,
    }


def _overrides(
    params: dict[str, Any], config: Mapping[str, Any], positions: int, original: int
) -> dict[str, Any]:
    """Put settings where this model's config keeps them."""
    result: dict[str, Any] = {"rope_parameters": params, "max_position_embeddings": positions}
    own = config.get("rope_parameters") or {}
    if GLOBAL_LAYERS in own:
        result["rope_parameters"] = {**own, GLOBAL_LAYERS: params}
    elif config.get("rope_local_base_freq") is not None:
        # Gemma 3 as it was first published: its sliding layers keep their own base.
        local = {"rope_type": "default", "rope_theta": float(config["rope_local_base_freq"])}
        result["rope_parameters"] = {GLOBAL_LAYERS: params, "sliding_attention": local}
    # Where a config has this key at the top, both libraries let it win over the dictionary.
    longrope = params["rope_type"].endswith("longrope")
    if config.get("original_max_position_embeddings") is not None or longrope:
        result["original_max_position_embeddings"] = original
    return result
