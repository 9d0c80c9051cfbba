"""RoPE settings by layer type, and the one type whose settings methods change. No torch."""

from collections.abc import Mapping
from typing import Any

from resonance_vllm.core.errors import RopeConfigError

# In the names of layer types that look back a part of the text only.
_WINDOWS = ("sliding", "chunked")


def windowed(layer_type: str | None) -> bool:
    """Whether layers of a type look back a part of the text only; methods leave them as shipped."""
    return any(word in str(layer_type) for word in _WINDOWS)


def by_layer_type(rope: Mapping[str, Any]) -> bool:
    """Whether a dictionary holds one dictionary for each layer type."""
    return "rope_type" not in rope and any(isinstance(value, Mapping) for value in rope.values())


def one_global(rope: Mapping[str, Any]) -> str | None:
    """The one layer type without a window that has settings; None if none or several have."""
    wide = [k for k, settings in rope.items() if isinstance(settings, Mapping) and not windowed(k)]
    return wide[0] if len(wide) == 1 else None


def global_layers(rope: Mapping[str, Any]) -> str:
    """The layer type whose settings methods change, of settings by layer type.

    Raises:
        RopeConfigError: no type, or several, have no window.
    """
    found = one_global(rope)
    if found is None:
        raise RopeConfigError(
            f"rope_type: the model has a RoPE for each of {', '.join(map(str, rope))}, and not one "
            "alone for layers without a window, which methods change; allowed: no method, which "
            "runs it as shipped"
        )
    return found


def rope_dictionaries(config: Any) -> list[dict[str, Any]]:
    """The rope settings of a transformers config: one, or one for each layer type that it has."""
    rope = getattr(config, "rope_parameters", None)
    if not isinstance(rope, dict):
        return []
    present = getattr(config, "layer_types", None) or rope
    nested = {key: value for key, value in rope.items() if isinstance(value, dict)}
    if "rope_type" in rope or not nested:
        return [rope]
    return [value for key, value in nested.items() if key in present]
