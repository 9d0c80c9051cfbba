"""Sweep configs as YAML files: found, read with a safe loader, included, overridden, parsed.

What the keys mean is `leval_harness.sweep.config`. The JSON Schema of the files is for editors.
"""

import csv
import inspect
import os
import re
from collections.abc import Iterable, Mapping
from functools import reduce
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from leval_harness.sweep import ConfigError
from leval_harness.sweep.config import (
    CellRequest,
    EntrySettings,
    ModelConfig,
    SweepConfig,
    TaskEntry,
    parse_config,
)
from leval_harness.yaml_files import parse_yaml, read_yaml
from resonance_vllm.core.spec import ROPE_TYPES
from resonance_vllm.errors import hint, not_allowed, shown
from resonance_vllm.files import user_path

SUFFIXES = (".yaml", ".yml")
SHIPPED = Path(str(files("harness_configs")))


def load_config(name: str, overrides: Iterable[str] = ()) -> SweepConfig:
    """A sweep config from a path or a shipped name, overrides applied, everything checked.

    Raises:
        ConfigError: names every field that is wrong, its value and what is allowed; or an override
            that reaches no cell.
    """
    path, texts = find_config(name), list(overrides)
    content = {"name": path.stem, **load_with_includes(path)}
    config = parse_config(reduce(override, texts, content))
    for number, text in enumerate(texts):
        others = reduce(override, [*texts[:number], *texts[number + 1 :]], content)
        try:
            without = parse_config(others)
        except ConfigError:
            continue  # the config needs it
        if config != without and _seen_by_cells(config) == _seen_by_cells(without):
            why = "no model runs this method"
            if not text.startswith("methods."):
                entries = f"0 to {len(config.tasks) - 1}" if len(config.tasks) > 1 else "0"
                why = f"the task entries have their own; write tasks.N.{text} (N: {entries})"
            raise ConfigError(f"--set {text}: reaches no cell: {why}")
    return config


def _seen_by_cells(config: SweepConfig) -> tuple[list[CellRequest], dict[str, Any]]:
    """What the cells get of a config, and its settings of the whole sweep."""
    shared = {*EntrySettings.model_fields, "context_lengths", "models", "methods", "tasks"}
    rest = {key: getattr(config, key) for key in SweepConfig.model_fields if key not in shared}
    return list(map(_used, config.requests())), rest


def _used(request: CellRequest) -> CellRequest:
    """A request without a folder of documents that its tasks do not read."""
    if not all(name.endswith("_pydocs") for name in request.task.tasks):
        return request
    metadata = {key: each for key, each in request.task.metadata.items() if key != "data_dir"}
    return request._replace(task=request.task.model_copy(update={"metadata": metadata}))


def shipped_sweeps() -> dict[str, Path]:
    """Name (path below `sweeps/` without suffix) -> file of every shipped sweep config."""
    folder = SHIPPED / "sweeps"
    paths = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES)
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in paths}


def find_config(name: str) -> Path:
    """The file that `name` means: its path, or the name of a shipped sweep.

    Raises:
        ConfigError: neither a file nor a shipped name; near matches are given.
    """
    path = user_path(name, "config")
    shipped = shipped_sweeps()
    if path.is_file() or name in shipped:
        return path if path.is_file() else shipped[name]
    if path.is_dir():
        raise ConfigError(f"config: {name} is a folder; give a YAML file")
    if path.suffix in SUFFIXES or os.sep in name:
        raise ConfigError(f"config: there is no file {name}{hint(path.stem, shipped)}")
    raise ConfigError(f"config: {name!r} is no file and no shipped sweep{hint(name, shipped)}")


def load_with_includes(path: Path, _open: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A config with everything it includes, the including file winning.

    `include` is a path or a list of paths, relative to the including file; later ones win over
    earlier ones.

    Raises:
        ConfigError: a file is missing, unreadable, or includes itself.
    """
    path = path.resolve()
    if path in _open:
        chain = " -> ".join(str(each) for each in (*_open, path))
        raise ConfigError(f"include: {chain} is a circle")
    content = read_yaml(path, ConfigError)
    includes = content.pop("include", [])
    if isinstance(includes, str):
        includes = [includes]
    if not isinstance(includes, list) or not all(isinstance(each, str) for each in includes):
        raise ConfigError(not_allowed(f"{path}: include", includes, "a path or a list of paths"))
    layers = []
    for each in includes:
        target = path.parent / user_path(each, f"{path}: include")
        if not target.is_file():
            raise ConfigError(f"{path}: include: there is no file {target}")
        layers.append(load_with_includes(target, (*_open, path)))
    return reduce(merge, [*layers, content])


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid on `base`: mappings key by key, everything else (lists too) replaced.

    A RoPE method is one value: a dictionary with another `rope_type` replaces the old one whole,
    so that no parameter of the old method stays behind.
    """
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if (
            isinstance(old, Mapping)
            and isinstance(value, Mapping)
            and value.get("rope_type", old.get("rope_type")) == old.get("rope_type")
        ):
            merged[key] = merge(old, value)
        else:
            merged[key] = value
    return merged


def override(config: Mapping[str, Any], text: str) -> dict[str, Any]:
    """A config with `key.key=value` laid over it; the value is YAML.

    An item of a list is named by its number or, among tasks, by the task.

    Raises:
        ConfigError: no `=`, a value that is not YAML, or a path through something that holds no
            keys. Whether the key means anything is checked with the rest of the config.
    """
    key, equals, raw = text.partition("=")
    short = text if len(text) <= 80 else f"{text[:77]}..."
    if not equals:
        raise ConfigError(f"--set {short}: write it as key=value")
    value = parse_yaml(raw, f"--set {short}", ConfigError)
    changed: dict[str, Any] = _with_value(config, _split_key(key.strip()), value, short)
    return changed


def _split_key(key: str) -> list[str]:
    """`models."llama-3.1".dtype` -> ['models', 'llama-3.1', 'dtype']."""
    try:
        parts = next(csv.reader([key], delimiter=".", strict=True), [])
    except csv.Error:
        parts = []
    if not parts or not all(parts):
        raise ConfigError(f"--set {key}: write it as key.key=value, dotted names in quotes")
    return parts


def _tasks(item: Any) -> list[Any]:
    """Tasks of an item of `tasks`: a name, a list of names, or a mapping that holds them."""
    named = item.get("tasks") if isinstance(item, Mapping) else item
    return named if isinstance(named, list) else [named]


def _with_value(node: Any, parts: list[str], value: Any, text: str) -> Any:
    """A copy of `node` in which the item at `parts` is `value`."""
    if not parts:
        return value
    head, rest = parts[0], parts[1:]
    if isinstance(node, list):
        named = [at for at, item in enumerate(node) if head in _tasks(item)]
        index = int(head) if head.isdecimal() and len(head) < 10 else next(iter(named), len(node))
        if index >= len(node):
            raise ConfigError(
                f"--set {text}: {shown(head)} is not allowed; allowed: the number of one of "
                f"{len(node)} items (from 0), or the name of a task among them"
            )
        item = node[index]
        if named and rest and not isinstance(item, Mapping):
            item = {"tasks": item}
        return [*node[:index], _with_value(item, rest, value, text), *node[index + 1 :]]
    if node is None:
        node = {}
    if not isinstance(node, Mapping):
        raise ConfigError(f"--set {text}: {shown(head)} lies in {shown(node)}, which has no keys")
    inner = node.get(head)
    if head == "tasks" and rest and isinstance(inner, str):  # one task, named without a list
        inner = [inner]
    return {**node, head: _with_value(inner, rest, value, text)}


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
