"""Names of methods and settings in the columns of result frames."""

import json
from collections.abc import Mapping
from typing import Any

SHIPPED, SERVED = "unmodified", "as served"
"""A method that a results file does not name: of a checkpoint, of a server's model."""

SETTING = "setting "
"""Prefix of the columns with settings of a task."""


def method_of(rope: Mapping[str, Any]) -> str:
    """A method by its type and factor; several where layers have their own."""
    kind, factor = rope.get("rope_type") or rope.get("type"), rope.get("factor")
    if kind:
        return f"{kind} x{factor:g}" if isinstance(factor, int | float) and factor else f"{kind}"
    layers = [method_of(each) for each in rope.values() if isinstance(each, dict) and each]
    return " / ".join(dict.fromkeys(layers)) or f"rope {json.dumps(rope, sort_keys=True)}"
