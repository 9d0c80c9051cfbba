"""What a model's config states about its RoPE beside the settings: layer types, keys of the family.

No torch.
"""

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from resonance_vllm.core.methods import METHODS
from resonance_vllm.core.spec import LENGTH, PREFIX, RESONANCE, RopeSpec, RopeType
from resonance_vllm.core.wavelengths import Resonance
from resonance_vllm.errors import RopeConfigError

if TYPE_CHECKING:
    from resonance_vllm.model_config.model_positions import ModelPositions

Settings = dict[str, Any]
"""One RoPE dictionary: `rope_type` and its keys."""

# In the names of layer types that attend to a part of the text only.
_WINDOWS = ("sliding", "chunked")
# Mistral's code scales queries by this and by the trained length, whatever the method is.
QUERY_SCALE_BETA = "llama_4_scaling_beta"
# Keys that model code reads and its config class does not declare -> beginning of the model types.
_FAMILY_KEYS: dict[str, str | tuple[str, ...]] = {
    "alpha": "hunyuan",
    "xdrope_section": "hunyuan",
    "mrope_section": "paddleocr",
    QUERY_SCALE_BETA: ("ministral3", "mistral4"),
    "max_position_embeddings": ("ministral3", "mistral4"),
}
# Published dictionaries keep keys of methods that they do not name; no code reads `finetuned`.
_SHARED_KEYS = {key for method in METHODS.values() if method.stock for key in method.key_names()}
_SHARED_KEYS |= {"rope_type", "type", "finetuned"}
METHOD_KEYS = {"rope_type", "type", *Resonance.model_fields}.union(
    *(method.key_names() for method in METHODS.values())
)
"""Keys of a RoPE dictionary that belong to a method; all others belong to the model."""


def windowed(layer_type: str | None) -> bool:
    """Whether layers of a type attend to a part of the text only; methods leave them as shipped."""
    return any(word in str(layer_type) for word in _WINDOWS)


def by_layer_type(rope: Mapping[str, Any]) -> bool:
    """Whether a dictionary holds one dictionary for each layer type."""
    return "rope_type" not in rope and any(isinstance(value, Mapping) for value in rope.values())


def without_window(rope: Mapping[str, Any]) -> list[str]:
    """The layer types without a window that have settings, those with a scaling first."""
    wide = [k for k, settings in rope.items() if isinstance(settings, Mapping) and not windowed(k)]
    return sorted(wide, key=lambda k: rope[k].get("rope_type", "default") in ("default", RESONANCE))


def global_layers(rope: Mapping[str, Any]) -> str:
    """The layer type whose settings methods change, of settings by layer type.

    Raises:
        RopeConfigError: no type, or several, have no window.
    """
    wide = without_window(rope)
    if len(wide) != 1:
        raise RopeConfigError(
            f"rope_type: the model has a RoPE for each of {', '.join(map(str, rope))}, and not one "
            "alone for layers without a window, which methods change; allowed: no method, which "
            f"runs it as shipped{', or resonance on each of them' if wide else ''}"
        )
    return wide[0]


def model_keys(rope: Mapping[str, Any]) -> Settings:
    """What belongs to the model in a RoPE dictionary: it stays under any method."""
    read = {LENGTH} if QUERY_SCALE_BETA in rope else set()
    return {key: value for key, value in rope.items() if key not in METHOD_KEYS - read}


def by_layer(config: Any, *, windows: bool = True) -> dict[str | None, Any]:
    """RoPE settings of a transformers config by layer type; None is the key for all layers.

    Without `windows` the settings of layer types that attend to a part of the text are left out.
    """
    rope = getattr(config, "rope_parameters", None)
    if not isinstance(rope, Mapping):
        return {}
    nested = {key: value for key, value in rope.items() if isinstance(value, Mapping)}
    if not nested:
        return {None: rope}
    return {key: value for key, value in nested.items() if windows or not windowed(key)}


def of_present_layers(config: Any) -> dict[str | None, Settings]:
    """`by_layer` without the settings of layer types of which the model has no layer."""
    rope, present = by_layer(config), set(getattr(config, "layer_types", None) or ())
    if not present & set(rope):
        return rope
    return {key: settings for key, settings in rope.items() if key in present}


def is_family_key(config: Any, key: str) -> bool:
    """Whether a key beside a method's own is one that published files of a family may hold."""
    if key in _SHARED_KEYS or key in (getattr(config, "ignore_keys_at_rope_validation", ()) or ()):
        return True
    family = _FAMILY_KEYS.get(key)
    return family is not None and str(getattr(config, "model_type", "")).startswith(family)


def known_settings(config: Any, rope: Any) -> Any:
    """A shipped dictionary without keys that no code of the family reads.

    In a request they would count as misspelt.
    """
    if not isinstance(rope, Mapping):
        return rope
    try:
        known = set(RopeType.read(rope.get("rope_type", rope.get("type"))).key_names())
    except RopeConfigError:
        known = set(rope)  # of a type that only the model's code can read
    return {
        key: known_settings(config, value)
        for key, value in rope.items()
        if isinstance(value, Mapping) or key in known or is_family_key(config, key)
    }


def unscaled_type(config: Any, layer_type: str | None) -> str:
    """A family's type without scaling: `default`, or `proportional` where its config has that.

    With `proportional` (Gemma 4) dimensions are paired over the whole head, and the features that
    do not turn have frequency 0.
    """
    config_class: Any = type(config)
    rope = _rope_of_class(config_class)
    settings = rope.get(layer_type) or rope.get(None) or {}
    return "proportional" if settings.get("rope_type") == "proportional" else "default"


def pairs_whole_heads(config: Any) -> bool:
    """Whether a layer type of the family has `unscaled_type` `proportional`."""
    config_class: Any = type(config)
    rope = _rope_of_class(config_class)
    return any(settings.get("rope_type") == "proportional" for settings in rope.values())


@functools.cache
def _rope_of_class(config_class: Any) -> dict[str | None, Settings]:
    """RoPE settings that a config class has without any argument."""
    try:
        return by_layer(config_class())
    except Exception:  # noqa: BLE001 - many classes need arguments
        return {}


def refuse_part_of_a_head(model: "ModelPositions", requested: RopeSpec) -> None:
    """Refuse a type that makes features of another part of a head than the family's code turns.

    Where whole heads are paired (Gemma 4), a library's own types make features for the share that
    turns alone: transformers' model code fails on fewer features, vLLM pairs other dimensions.
    Where a part of a head turns, `proportional` makes features of all of it.

    Raises:
        RopeConfigError: `requested` is such a type.
    """
    share, name = requested.method.partial_rotary_factor, requested.rope_type
    if share == 1:
        return
    if requested.method.name == "proportional":
        if not model.whole_head:
            raise RopeConfigError(
                f"rope_type: {name!r} makes features of a whole head, and this "
                f"{model.model_type!r} model turns {share:g} of each; allowed: proportional types "
                "on families whose whole head is turned, or another method"
            )
    elif model.whole_head and requested.is_stock:
        ours = RESONANCE if name == "default" else PREFIX + name
        raise RopeConfigError(
            f"rope_type: {name!r} of the libraries does not fit this {model.model_type!r} "
            f"model, which turns {share:g} of each head and pairs dimensions over all of it; "
            f"allowed: {ours}, types of ours (ntk_aware), or Resonance on what is shipped"
        )


def text_config(config: Any) -> tuple[Any, tuple[str, ...]]:
    """The language model's part of a transformers config, and the keys under which it stands."""
    try:
        text = config.get_text_config(decoder=True)
    except ValueError:  # several, and transformers does not choose one
        return config, ()
    return text, _place_of(text, config) or ()


def _place_of(part: Any, config: Any) -> tuple[str, ...] | None:
    if part is config:
        return ()
    for name in getattr(config, "sub_configs", {}):
        below = getattr(config, name, None)
        place = None if below is None else _place_of(part, below)
        if place is not None:
            return (name, *place)
    return None


def value_of(config: Any, key: str) -> Any:
    """An attribute of a config; None where it has none."""
    try:
        return getattr(config, key, None)
    except Exception:  # noqa: BLE001 - a config whose layers differ refuses to give one value
        return None
