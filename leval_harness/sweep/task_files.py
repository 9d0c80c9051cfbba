"""What the tasks of a cell consist of and read: versions, task files, documents, as hashes."""

import hashlib
import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from leval_harness.checkpoint_files import files_below
from leval_harness.sweep import ConfigError
from leval_harness.sweep.file_hashes import cached_sha256
from leval_harness.sweep.module_files import module_files
from leval_harness.sweep.task_registry import SETTINGS, is_file, members, own_tasks
from leval_tasks.closed.catalog import TASKS
from leval_tasks.metadata import family_settings

PYTHON_FILE = "pydocs.jsonl"
"""Stands for the language reference that every Python brings along; it is no file of a folder."""


def versions(names: Iterable[str]) -> dict[str, str]:
    """What distinguishes a task from its earlier and later forms.

    Ours: the version in the YAML. A task given as a file: `task_hash`. Tasks of lm-eval: its
    version, recorded with the packages.
    """
    known = own_tasks()
    found: dict[str, str] = {}
    for name in [*names, *members(names)]:
        if name in known:
            found[name] = known[name].version
        else:
            found[name] = task_hash(Path(name)) if is_file(name) else "lm_eval"
    return found


def task_hash(file: Path) -> str:
    """SHA-256 (hex) over the names and contents of everything that makes a task given as a file.

    That is the file with those that it includes, the modules that its `!function` names load, and
    the files and folders that its data set names on this machine.
    """
    parts: set[Path] = set()
    for each, content in _with_includes(file, {}).items():
        parts |= {each, *_data(content)}
        for name in _strings(content, _FunctionName):
            parts |= module_files(name.rpartition(".")[0], each.parent)
    hashed = hashlib.sha256()
    for name, path in sorted((Path(os.path.relpath(p, file.parent)).as_posix(), p) for p in parts):
        hashed.update(f"{name} {cached_sha256(path)}\n".encode())
    return hashed.hexdigest()


class _FunctionName(str):
    """The argument of `!function` in a task file: a module and a function in it."""


class _TaskLoader(yaml.BaseLoader):
    """Makes text of every value."""


_TaskLoader.add_constructor("!function", lambda _, node: _FunctionName(node.value))


def _with_includes(file: Path, seen: dict[Path, Any]) -> dict[Path, Any]:
    """A YAML file and those that it includes -> their contents."""
    if file in seen or not file.is_file():
        return seen
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), Loader=_TaskLoader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        content = None  # lm-eval will say what is wrong with it
    seen[file] = content
    for each in _strings(content.get("include") if isinstance(content, dict) else None):
        _with_includes(Path(os.path.normpath(file.parent / each)), seen)
    return seen


def _data(content: Any) -> Iterator[Path]:
    """Files of this machine that the data set of a task names, as a path or as a pattern."""
    if not isinstance(content, dict):
        return
    for text in _strings([content.get("dataset_path"), content.get("dataset_kwargs")]):
        if not text or "://" in text or "\0" in text:
            continue
        path = Path(text)
        try:
            if "*" in text:
                start = Path(path.anchor)
                found = sorted(start.glob(str(path.relative_to(start))))
            else:  # a bare word is the name of a format or a data set, unless a file has it
                named = path.exists() and (path.is_file() or len(path.parts) > 1)
                found = [path] if named else []
        except (OSError, ValueError, NotImplementedError):
            continue
        for each in found:
            yield from files_below(each) if each.is_dir() else (each,)


def _strings(value: Any, kind: type[str] = str) -> Iterator[str]:
    """The texts of a kind in nested mappings and lists."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strings(each, kind)


def without_data_dir(names: Iterable[str], metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings of the tasks, without the folder of documents where all tasks are ours.

    What our tasks read of that folder is in `data_identity`; others may read any file of it.
    """
    if not set(members(names)) <= set(own_tasks()):
        return metadata
    groups = [family.group for family in SETTINGS.values()]

    def kept(settings: Mapping[str, Any]) -> dict[str, Any]:
        return {
            key: kept(value) if key in groups and isinstance(value, Mapping) else value
            for key, value in settings.items()
            if key != "data_dir"
        }

    return kept(metadata)


def data_identity(names: Iterable[str], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """`{"source": ..., "files": {name: sha256}}`, empty where no task of ours reads files.

    Families of tasks that were given different folders have such an entry each. Files of the hub
    are hashed when they are read, and that hash stands in lm-eval's results; tasks of lm-eval keep
    their own data.

    Raises:
        ConfigError: the folder, or a file of it, does not exist.
    """
    known = own_tasks()
    wanted: dict[str, dict[str, str]] = {}
    python: dict[str, Any] = {}
    for task in members(names):
        file = known[task].file if task in known else None
        if file == PYTHON_FILE:
            python = {"python": platform.python_version()}
        elif file:
            wanted.setdefault(known[task].family, {})[file] = task
    settings = {family: family_settings(SETTINGS[family], metadata) for family in wanted}
    found = {family: _documents(wanted[family], settings[family]) for family in wanted}
    if len({str(each.get("data_dir")) for each in settings.values()}) > 1:
        return {**found, **python}
    merged: dict[str, Any] = {}
    for each in found.values():
        merged = {**each, "files": {**merged.get("files", {}), **each["files"]}}
    return {**merged, **python}


def _documents(wanted: Mapping[str, str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """What one family reads; `wanted` maps each of its files to a task that reads it."""
    from leval_tasks.data import available, missing_file, resolve_source

    try:
        source = resolve_source(settings)
        hashes: dict[str, str] = {}
        for name, task in wanted.items():
            if task in TASKS and TASKS[task] not in available(source):
                raise missing_file(source, TASKS[task])
            if source.folder is None or (source.kind == "sample" and task not in TASKS):
                continue
            # texts for perplexity may lie in a subfolder
            places = [source.folder] + ([] if task in TASKS else [source.folder / "corpora"])
            path = next((each / name for each in places if (each / name).is_file()), None)
            if path is None:
                raise ConfigError(f"data_dir: {source.path} has no {name}")
            hashes[name] = cached_sha256(path)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return {"source": source.kind, "files": hashes}
