"""The documentation's tables of methods and of their keys, made from the classes."""

from collections.abc import Iterator, Mapping
from typing import Any

from resonance_vllm.core.method import Method
from resonance_vllm.core.methods import METHODS


def methods_table() -> str:
    """Markdown: a line a method, then a line a key."""
    lines = ["| `rope_type` | frequency of feature j | keys | vLLM and transformers have it |"]
    lines += ["|---|---|---|---|"]
    for method in METHODS.values():
        names = ", ".join(f"`{name}`" for name in (method.name, *method.variants))
        keys = ", ".join(f"`{key}`" for key in _own_keys(method))
        stock = "yes" if method.stock else "no"
        if method.stock and method.variants:
            stock = f"`{method.name}`"
        lines.append(f"| {names} | {method.formula} | {keys} | {stock} |")
    names = "`resonance`, `resonance_<any of these>`"
    lines.append(
        f"| {names} | wavelength rounded to the nearest integer | those of the base | no |"
    )
    lines += ["", "| key | of | allowed | default | |", "|---|---|---|---|---|"]
    return "\n".join([*lines, *_key_lines()]) + "\n"


def _own_keys(method: type[Method]) -> list[str]:
    return [key for key in method.key_names() if key not in Method.model_fields]


def _key_lines() -> Iterator[str]:
    methods = list(METHODS.values())
    keys = dict.fromkeys(key for method in methods for key in _own_keys(method))
    for key in [*Method.model_fields, *sorted(keys)]:
        holders = [method for method in methods if key in method.model_fields]
        field = holders[0].model_fields[key]
        needed = [method.name for method in holders if method.model_fields[key].is_required()]
        default = "" if field.is_required() or field.default is None else f"`{field.default}`"
        if needed:
            default = (
                "required" if len(needed) == len(holders) else f"required: {', '.join(needed)}"
            )
        names = "all" if len(holders) == len(methods) else ", ".join(m.name for m in holders)
        allowed = allowed_values(holders[0].model_json_schema()["properties"][key])
        yield f"| `{key}` | {names} | {allowed} | {default} | {field.description} |"


def allowed_values(schema: Mapping[str, Any]) -> str:
    """Range of a key in words, from its JSON schema."""
    schema = next((s for s in schema.get("anyOf", ()) if s.get("type") != "null"), schema)
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if schema["type"] == "array":
        return f"a list, each {allowed_values(schema['items'])}"
    if schema["type"] == "boolean":
        return "`true` or `false`"
    words = {
        "exclusiveMinimum": "above {:g}",
        "minimum": "at least {:g}",
        "maximum": "at most {:g}",
    }
    return ", ".join(text.format(schema[name]) for name, text in words.items() if name in schema)
