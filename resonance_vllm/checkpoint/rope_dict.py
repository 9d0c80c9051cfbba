"""RoPE dictionaries in configs: spellings, layer types, and keys that belong to the model.

A config holds either one dictionary for all layers (`{"rope_type": "yarn", "factor": 4.0, …}`) or
one dictionary per layer type (`{"full_attention": {…}, "sliding_attention": {…}}`). Methods change
the rotation of the layers without a window; windowed layers never see a distance beyond their
window, so they keep their own rotation.
"""

import json
from collections.abc import Mapping
from typing import Any

from resonance_vllm.common.errors import RopeConfigError, short_repr
from resonance_vllm.core.spec import METHODS, ORIGINAL_LENGTH_KEY

RopeDict = dict[str, Any]
"""One RoPE dictionary: `rope_type` and the keys of its method."""

LANGUAGE_MODEL_KEYS = ("text_config", "llm_config", "language_config")
"""Keys under which vision-language checkpoints nest the config of their language model."""

QUERY_SCALE_BETA = "llama_4_scaling_beta"
"""Mistral's code scales queries by this and by the original context length, whatever the method."""

# Names that transformers 4 and vLLM accept for types with another name. `deepseek_yarn` is vLLM's
# name of YaRN in DeepSeek's models, which some checkpoints have in config.json.
_OTHER_NAMES = {"su": "longrope", "mrope": "default", "deepseek_yarn": "yarn"}
_METHOD_KEYS = {"rope_type", "type"}.union(*(method.key_names() for method in METHODS.values()))


def normalize_rope_dict(rope: Mapping[str, Any]) -> RopeDict:
    """Return a flat RoPE dictionary in today's spelling.

    `type` becomes `rope_type`, other names of a type become the usual one (`su` is `longrope`,
    `deepseek_yarn` is `yarn`, `mrope` is `default` with `mrope_section`), keys without a value are
    dropped, and a dictionary without a type is `default`.
    """
    result = {key: value for key, value in rope.items() if value is not None}
    legacy_type = result.pop("type", None)
    rope_type = result.get("rope_type") or legacy_type or "default"
    result["rope_type"] = _OTHER_NAMES.get(rope_type, rope_type)
    return result


def is_windowed(layer_type: str | None) -> bool:
    """Return whether layers of a type attend to a window of the text only."""
    return any(word in str(layer_type) for word in ("sliding", "chunked"))


def is_per_layer_type(rope: Mapping[str, Any]) -> bool:
    """Return whether a dictionary holds one dictionary per layer type."""
    return "rope_type" not in rope and any(isinstance(value, Mapping) for value in rope.values())


def global_layer_types(rope: Mapping[str, Any]) -> list[str]:
    """Return the layer types without a window that have settings."""
    return [
        layer_type
        for layer_type, settings in rope.items()
        if isinstance(settings, Mapping) and not is_windowed(layer_type)
    ]


def global_layer_type(rope: Mapping[str, Any]) -> str:
    """Return the one layer type without a window, whose settings methods change.

    Raises:
        RopeConfigError: there is none, or there are several.
    """
    candidates = global_layer_types(rope)
    if len(candidates) != 1:
        names = ", ".join(map(str, rope))
        raise RopeConfigError(
            f"rope_type: the model has settings for {names}; a method needs exactly one layer type "
            "without a window"
        )
    return candidates[0]


def rope_by_layer_type(config: Any) -> dict[str | None, Any]:
    """Return the RoPE dictionaries of a transformers config by layer type; None is all layers."""
    rope = getattr(config, "rope_parameters", None)
    if not isinstance(rope, Mapping):
        return {}
    per_layer_type = {key: value for key, value in rope.items() if isinstance(value, Mapping)}
    return per_layer_type or {None: rope}


def rope_of_present_layers(config: Any) -> dict[str | None, RopeDict]:
    """Return `rope_by_layer_type` without the layer types of which the model has no layer."""
    rope = rope_by_layer_type(config)
    present = set(getattr(config, "layer_types", None) or ())
    if not present & set(rope):
        return rope
    return {key: settings for key, settings in rope.items() if key in present}


def model_specific_keys(rope: Mapping[str, Any]) -> RopeDict:
    """Return what belongs to the model in a RoPE dictionary: it stays under any method.

    An example is `mrope_section`, which says how axes of positions share the features.
    """
    method_keys = set(_METHOD_KEYS)
    if QUERY_SCALE_BETA in rope:
        method_keys.discard(ORIGINAL_LENGTH_KEY)
    return {key: value for key, value in rope.items() if key not in method_keys}


def unscaled_rope_type(config: Any, layer_type: str | None) -> str:
    """Return a family's type without scaling: `default`, or `proportional` in Gemma 4.

    Gemma 4's global layers pair dimensions over the whole head and rotate a part of the pairs.
    """
    is_gemma4 = str(config.model_type).startswith("gemma4")
    return "proportional" if is_gemma4 and not is_windowed(layer_type) else "default"


def refuse_contradictions(config: Mapping[str, Any], path: str = "") -> None:
    """Refuse a config.json that says the same thing in two places, and differently.

    Libraries take one of the two without a message: the base inside a RoPE dictionary, the newer
    name of its type (vLLM refuses two), and of nested configs the settings of the language model.

    Args:
        config: content of the file, or of a part of it.
        path: the key under which `config` was found, with a point behind.

    Raises:
        RopeConfigError: names both places and what to write.
    """
    refuse_two_rope_dicts(config)
    _refuse_contradictions_of_part(config, path)


def _refuse_contradictions_of_part(config: Mapping[str, Any], path: str) -> None:
    """Refuse contradictions within a config, and between it and the configs nested in it."""
    key, rope = _written_rope(config)
    if rope and not is_per_layer_type(rope):
        _refuse_two_types(rope, f"{path}{key}")
        _refuse_two_bases(config, rope, path, key)
    for name, part in config.items():
        if name.endswith("_config") and isinstance(part, Mapping):
            _refuse_contradictions_of_part(part, f"{path}{name}.")
            if name in LANGUAGE_MODEL_KEYS and rope:
                _refuse_outer_rope(rope, part, f"{path}{key}", f"{path}{name}")


def _written_rope(config: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the key of a config's RoPE dictionary and the dictionary; it is empty without one."""
    for key in ("rope_parameters", "rope_scaling"):
        rope = config.get(key)
        if isinstance(rope, Mapping) and rope:
            return key, rope
    return "rope_parameters", {}


def _refuse_two_types(rope: Mapping[str, Any], where: str) -> None:
    """Refuse a RoPE dictionary with two types that are not two names of one."""
    newer, older = rope.get("rope_type"), rope.get("type")
    if newer is None or older is None:
        return
    if _OTHER_NAMES.get(str(newer), newer) != _OTHER_NAMES.get(str(older), older):
        raise RopeConfigError(
            f"{where}: has rope_type {newer!r} and type {older!r}; transformers takes the first, "
            "vLLM refuses both; remove the one that is not meant"
        )


def _refuse_two_bases(
    config: Mapping[str, Any], rope: Mapping[str, Any], path: str, key: str
) -> None:
    """Refuse a base beside a RoPE dictionary that has another one inside."""
    beside, inside = config.get("rope_theta"), rope.get("rope_theta")
    if beside is not None and inside is not None and beside != inside:
        raise RopeConfigError(
            f"{path}rope_theta: {beside!r} is given beside {path}{key}.rope_theta, {inside!r}, and "
            "libraries would drop the former; remove the one that is not meant"
        )


def _refuse_outer_rope(
    outer: Mapping[str, Any], language_model: Mapping[str, Any], outer_key: str, name: str
) -> None:
    """Refuse a RoPE dictionary outside of a nested language model that has other settings."""
    inner_key, inner = _written_rope(language_model)
    settings = normalize_rope_dict(outer)
    own = normalize_rope_dict(inner)
    differ = any(settings[key] != own[key] for key in settings.keys() & own.keys())
    if differ and not is_per_layer_type(outer) and not is_per_layer_type(inner):
        raise RopeConfigError(
            f"{outer_key}: {short_repr(dict(outer))} is given beside the settings of {name}, which "
            f"libraries take alone: {short_repr(own)}; write it as {name}.{inner_key}"
        )


def refuse_two_rope_dicts(config: Mapping[str, Any], path: str = "") -> None:
    """Refuse a config.json that has different settings in `rope_parameters` and `rope_scaling`.

    transformers and vLLM then take `rope_scaling` alone and lose the base that is in
    `rope_parameters`, without a message. Nested configs are checked as well; `path` is the key
    under which `config` was found.

    Raises:
        RopeConfigError: the two differ; the message says what to write.
    """
    parameters = config.get("rope_parameters")
    scaling = config.get("rope_scaling")
    if isinstance(parameters, Mapping) and isinstance(scaling, Mapping):
        _refuse_different(parameters, scaling, path)
    for key, value in config.items():
        if key.endswith("_config") and isinstance(value, Mapping):
            refuse_two_rope_dicts(value, f"{path}{key}.")


def _refuse_different(parameters: Mapping[str, Any], scaling: Mapping[str, Any], path: str) -> None:
    """Refuse two RoPE dictionaries of one config, unless they say the same or one is empty."""
    normal_parameters, normal_scaling = map(normalize_rope_dict, (parameters, scaling))
    if not parameters or not scaling or normal_parameters == normal_scaling:
        return
    merged = {**normal_parameters, **normal_scaling}
    raise RopeConfigError(
        f"{path}rope_scaling: {short_repr(dict(scaling))} is given beside {path}rope_parameters, "
        f"{short_repr(dict(parameters))}, and libraries would drop the latter; write one key: "
        f'"rope_parameters": {json.dumps(merged, default=str)}'
    )
