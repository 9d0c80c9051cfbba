"""Sweep configs as YAML files: found, included, overridden, parsed.

What the keys mean is `leval_harness.sweep.config`.
"""

import csv
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from leval_harness.sweep import ConfigError
from leval_harness.sweep.config import SweepConfig, listed, parse_config, task_entries
from leval_harness.yaml_files import parse_yaml, read_yaml, shipped
from resonance_vllm.errors import hint, shown
from resonance_vllm.files import user_path


def load_config(name: str, overrides: Sequence[str] = ()) -> SweepConfig:
    """A sweep config from a path or a shipped name, overrides applied, everything checked.

    Raises:
        ConfigError: names every field that is wrong, its value and what is allowed.
    """
    path = find_config(name)
    return configured({"name": path.stem, **load_with_includes(path)}, overrides)


def configured(content: Mapping[str, Any], overrides: Sequence[str] = ()) -> SweepConfig:
    """A sweep config from plain dictionaries, overrides applied, everything checked.

    Raises:
        ConfigError: names every field that is wrong, its value and what is allowed.
    """
    return parse_config(reduce(override, overrides, content))


def find_config(name: str) -> Path:
    """The file that `name` means: its path, or the name of a shipped sweep.

    Raises:
        ConfigError: neither a file nor a shipped name; near matches are given.
    """
    path, known = user_path(name), shipped("sweeps")
    if path.is_file():
        return path
    if name not in known:
        raise ConfigError(f"config: {name!r} is no file and no shipped sweep{hint(name, known)}")
    return known[name]


def load_with_includes(path: Path) -> dict[str, Any]:
    """A config with everything that it includes, the including file winning.

    `include` is a path or a list of paths, relative to the including file; later ones win.

    Raises:
        ConfigError: a file is missing or unreadable.
    """
    content = read_yaml(path, ConfigError)
    paths = [path.parent / user_path(str(each)) for each in listed(content.pop("include", []))]
    return reduce(merge, [*map(load_with_includes, paths), content])


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid on `base`: mappings key by key, everything else (lists too) replaced.

    A RoPE method is one value: a dictionary with another `rope_type` replaces the old one whole,
    so that no parameter of the old method stays behind.
    """
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            same = value.get("rope_type", old.get("rope_type")) == old.get("rope_type")
            value = merge(old, value) if same else value
        merged[key] = value
    return merged


def override(config: Mapping[str, Any], text: str) -> dict[str, Any]:
    """A config with `key.key=value` laid over it; the value is YAML.

    An entry of `tasks` is named by its number or by a task. A name with a dot in it stands in
    quotes: `models."llama-3.1".dtype`. Messages do not repeat the value, which may be a credential.

    Raises:
        ConfigError: no `=`, a value that is not YAML, or a path through something that holds no
            keys. Whether the key means anything is checked with the rest of the config.
    """
    key, equals, raw = text.partition("=")
    where = f"--set {key.strip()[:80]}"
    try:
        parts = next(csv.reader([key.strip()], delimiter=".", strict=True), [])
    except csv.Error:
        parts = []
    if not equals or not parts or not all(parts):
        raise ConfigError(f"{where}: write it as key.key=value, dotted names in quotes")
    changed: dict[str, Any] = _with_value(config, parts, parse_yaml(raw, where, ConfigError), where)
    return changed


def _with_value(node: Any, parts: list[str], value: Any, where: str) -> Any:
    """A copy of `node` in which the item at `parts` is `value`."""
    if not parts:
        return value
    head, rest = parts[0], parts[1:]
    if isinstance(node, Mapping | None):
        inner = (node or {}).get(head)
        if head == "tasks" and rest:
            inner = task_entries(inner)
        return {**(node or {}), head: _with_value(inner, rest, value, where)}
    if not isinstance(node, list):
        raise ConfigError(f"{where}: {shown(head)} lies in {type(node).__name__}, without keys")
    named = (at for at, item in enumerate(node) if head in listed(item.get("tasks")))
    index = int(head) if head.isdecimal() else next(named, len(node))
    if index >= len(node):
        raise ConfigError(
            f"{where}: {shown(head)} is not allowed; allowed: the number of one of {len(node)} "
            "entries (from 0), or the name of a task among them"
        )
    return [*node[:index], _with_value(node[index], rest, value, where), *node[index + 1 :]]
