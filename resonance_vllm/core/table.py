"""The documentation's tables of methods and of their keys, made from the classes."""

from collections.abc import Iterator, Mapping
from typing import Any

from resonance_vllm.core.method import Method
from resonance_vllm.core.spec import METHODS

_RANGES = {
    "exclusiveMinimum": "above {:g}",
    "minimum": "at least {:g}",
    "maximum": "at most {:g}",
}


def methods_table() -> str:
    """Markdown: a line a method, then a line a key."""
    return "\n".join([*_method_lines(), "", *_key_lines()]) + "\n"


def _method_lines() -> Iterator[str]:
    yield "| `rope_type` | frequency of feature j | keys | vLLM and transformers have it |"
    yield "|---|---|---|---|"
    for method in METHODS.values():
        own = [key for key in method.key_names() if key not in Method.model_fields]
        keys = ", ".join(f"`{key}`" for key in own)
        stock = "yes" if method.stock else "no"
        yield f"| `{method.name}` | {method.formula} | {keys} | {stock} |"
    names = "`resonance`, `resonance_<any of these>`"
    yield f"| {names} | wavelengths rounded to the nearest integer | those of the base | no |"


def _key_lines() -> Iterator[str]:
    yield "| key | of | allowed | default | |"
    yield "|---|---|---|---|---|"
    common = list(Method.model_fields)
    keys = {key for each in METHODS.values() for key in each.model_fields} - set(common)
    for key in [*common, *sorted(keys)]:
        having = {name: each for name, each in METHODS.items() if key in each.model_fields}
        holders = list(having.values())
        names = "all" if key in common else ", ".join(having)
        field = holders[0].model_fields[key]
        default = "" if field.is_required() or field.default is None else f"`{field.default}`"
        needed = [name for name, each in having.items() if each.model_fields[key].is_required()]
        if needed:
            some = f": {', '.join(needed)}" if len(needed) < len(holders) else ""
            default = f"required{some}"
        allowed = _allowed(holders[0].model_json_schema()["properties"][key])
        yield f"| `{key}` | {names} | {allowed} | {default} | {field.description} |"


def _allowed(schema: Mapping[str, Any]) -> str:
    """Range of a key in words, from its JSON schema."""
    schema = next((s for s in schema.get("anyOf", ()) if s.get("type") != "null"), schema)
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if schema["type"] == "array":
        return f"a list, each {_allowed(schema['items'])}"
    if schema["type"] == "boolean":
        return "`true` or `false`"
    return ", ".join(text.format(schema[name]) for name, text in _RANGES.items() if name in schema)
