"""Sweep configs as YAML files: found, included, overridden, parsed.

What the keys mean is `leval_harness.sweep.config`.
"""

import csv
import os
from collections.abc import Iterable, Mapping
from functools import reduce
from importlib.resources import files
from pathlib import Path
from typing import Any

from leval_harness.sweep import ConfigError
from leval_harness.sweep.config import SweepConfig, listed, parse_config
from leval_harness.yaml_files import parse_yaml, read_yaml
from resonance_vllm.errors import hint, not_allowed, shown
from resonance_vllm.files import user_path

SUFFIXES = (".yaml", ".yml")
SHIPPED = Path(str(files("harness_configs"))) / "sweeps"


def load_config(name: str, overrides: Iterable[str] = ()) -> SweepConfig:
    """A sweep config from a path or a shipped name, overrides applied, everything checked.

    Raises:
        ConfigError: names every field that is wrong, its value and what is allowed.
    """
    path = find_config(name)
    content = {"name": path.stem, **load_with_includes(path)}
    return parse_config(reduce(override, overrides, content))


def shipped_sweeps() -> dict[str, Path]:
    """Name -> file of every shipped sweep config."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.yaml"))}


def find_config(name: str) -> Path:
    """The file that `name` means: its path, or the name of a shipped sweep.

    Raises:
        ConfigError: neither a file nor a shipped name; near matches are given.
    """
    path, shipped = user_path(name), shipped_sweeps()
    if path.is_file():
        return path
    if name in shipped:
        return shipped[name]
    if path.is_dir():
        raise ConfigError(f"config: {name} is a folder; give a YAML file")
    if path.suffix in SUFFIXES or os.sep in name:
        raise ConfigError(f"config: there is no file {name}{hint(path.stem, shipped)}")
    raise ConfigError(f"config: {name!r} is no file and no shipped sweep{hint(name, shipped)}")


def load_with_includes(path: Path, _open: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A config with everything that it includes, the including file winning.

    `include` is a path or a list of paths, relative to the including file; later ones win.

    Raises:
        ConfigError: a file is missing, unreadable, or includes itself.
    """
    path = path.resolve()
    if path in _open:
        chain = " -> ".join(str(each) for each in (*_open, path))
        raise ConfigError(f"include: {chain} is a circle")
    content = read_yaml(path, ConfigError)
    layers = []
    for each in listed(content.pop("include", [])):
        if not isinstance(each, str):
            raise ConfigError(not_allowed(f"{path}: include", each, "a path or a list of paths"))
        target = path.parent / user_path(each)
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
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            same = value.get("rope_type", old.get("rope_type")) == old.get("rope_type")
            value = merge(old, value) if same else value
        merged[key] = value
    return merged


def override(config: Mapping[str, Any], text: str) -> dict[str, Any]:
    """A config with `key.key=value` laid over it; the value is YAML.

    An item of a list is named by its number or, among tasks, by the task. A name with a dot in it
    stands in quotes: `models."llama-3.1".dtype`. Messages do not repeat the value, which may be a
    credential.

    Raises:
        ConfigError: no `=`, a value that is not YAML, or a path through something that holds no
            keys. Whether the key means anything is checked with the rest of the config.
    """
    key, equals, raw = text.partition("=")
    where = f"--set {key.strip()[:80]}"
    if not equals:
        raise ConfigError(f"{where}: write it as key=value")
    try:
        parts = next(csv.reader([key.strip()], delimiter=".", strict=True), [])
    except csv.Error:
        parts = []
    if not parts or not all(parts):
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
        if head == "tasks" and rest and isinstance(inner, str):  # one task, named without a list
            inner = [inner]
        return {**(node or {}), head: _with_value(inner, rest, value, where)}
    if not isinstance(node, list):
        raise ConfigError(f"{where}: {shown(head)} lies in {type(node).__name__}, without keys")
    named = [at for at, item in enumerate(node) if head in _tasks(item)]
    index = int(head) if head.isdecimal() else next(iter(named), len(node))
    if index >= len(node):
        raise ConfigError(
            f"{where}: {shown(head)} is not allowed; allowed: the number of one of {len(node)} "
            "items (from 0), or the name of a task among them"
        )
    item = node[index]
    if named and rest and not isinstance(item, Mapping):
        item = {"tasks": item}
    return [*node[:index], _with_value(item, rest, value, where), *node[index + 1 :]]


def _tasks(item: Any) -> Any:
    """Tasks of an item of `tasks`: a name, a list of names, or a mapping that holds them."""
    return listed(item.get("tasks") if isinstance(item, Mapping) else item)
