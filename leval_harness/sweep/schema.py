"""The JSON Schema of sweep files, for editors that complete and check YAML."""

import inspect
import re
from typing import Any

from pydantic import BaseModel

from leval_harness.sweep.config import ModelConfig, SweepConfig, TaskEntry
from resonance_vllm.core.spec import ROPE_TYPES

TEXTS = {"type": "array", "items": {"type": "string"}}


def file_schema() -> dict[str, Any]:
    """The schema of a file as it is written.

    It differs from that of `SweepConfig`: no key is required, since a file can include others; a
    single value may stand for a list; a task may stand for an entry.
    """
    schema = SweepConfig.model_json_schema()
    definitions = schema["$defs"]
    for model, described in (
        (SweepConfig, schema),
        (ModelConfig, definitions["ModelConfig"]),
        (TaskEntry, definitions["TaskEntry"]),
    ):
        _describe(model, described)
        described.pop("required")
    entry = {"$ref": "#/$defs/TaskEntry"}
    one_entry = {"anyOf": [{"type": "string"}, TEXTS, entry]}
    properties = _single_values(schema["properties"])
    properties["tasks"] = {
        **schema["properties"]["tasks"],
        "anyOf": [{"type": "array", "items": one_entry}, *one_entry["anyOf"]],
    }
    del properties["tasks"]["type"], properties["tasks"]["items"]
    properties["include"] = {
        "description": "Files that this one builds on, relative to it; later ones win.",
        "anyOf": [{"type": "string"}, TEXTS],
    }
    method = properties["methods"]["additionalProperties"]["anyOf"][0]
    method["properties"] = {"rope_type": {"enum": sorted(ROPE_TYPES)}}
    schema["properties"] = properties
    for part in definitions.values():
        part["properties"] = _single_values(part["properties"])
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, **schema, "title": "leval-harness sweep"}


def _single_values(value: Any) -> Any:
    """A copy in which each list of something may also be one of it."""
    if isinstance(value, list):
        return [_single_values(each) for each in value]
    if not isinstance(value, dict):
        return value
    copy = {key: _single_values(inside) for key, inside in value.items()}
    if copy.get("type") != "array":
        return copy
    shared = {key: copy.pop(key) for key in ("title", "description", "default") if key in copy}
    return {**shared, "anyOf": [copy, copy["items"]]}


def _describe(model: type[BaseModel], schema: dict[str, Any]) -> None:
    """Give each property the text that the `Attributes` of the class and its bases have for it."""
    for base in reversed(model.__mro__):
        _, _, attributes = inspect.cleandoc(vars(base).get("__doc__") or "").partition(
            "Attributes:\n"
        )
        for name, text in re.findall(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", attributes, re.MULTILINE):
            if name in schema["properties"]:
                text = re.sub(r"\s+", " ", text)
                schema["properties"][name]["description"] = text[0].upper() + text[1:]
    schema["description"] = inspect.cleandoc(model.__doc__ or "").split("\n")[0]
