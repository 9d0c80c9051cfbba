"""Names of methods and settings in the columns of result frames."""

import json
from collections.abc import Mapping
from typing import Any

SHIPPED, SERVED = "unmodified", "as served"
"""A method that a results file does not name: of a checkpoint, of a server's model."""

SETTING = "setting "
"""Prefix of the columns with settings of a task."""


def method_of(rope: Mapping[str, Any]) -> str:
    """Return the name of a method: its type with the factor, or with the base it changes.

    Args:
        rope: RoPE settings of a run; a dictionary per layer type where layers have their own.
    """
    rope_type = rope.get("rope_type") or rope.get("type")
    factor = rope.get("factor")
    base = rope.get("rope_theta")
    if rope_type in (None, "default") and isinstance(base, int | float):
        # The base is all that such a request can change; without it two of them look alike.
        return f"{rope_type or SHIPPED} base {base:.12g}"
    if rope_type is None:
        layers = [settings for settings in rope.values() if isinstance(settings, dict) and settings]
        names = dict.fromkeys(method_of(settings) for settings in layers)
        return " / ".join(names) or f"rope {json.dumps(rope, sort_keys=True)}"
    if isinstance(factor, int | float) and factor:
        return f"{rope_type} x{factor:g}"
    return str(rope_type)
