"""What the tasks of a cell consist of and read: versions, task files, documents, as hashes."""

import ast
import hashlib
import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard

import yaml

from leval_harness.checkpoint_files import cached_sha256, files_below
from leval_harness.sweep import ConfigError
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


LONGEST_NAME = 200
"""Characters of a text that may name a file."""
_IMPORTING = ("import_module", "importlib.import_module", "__import__")
_PATTERN = re.compile(r"\*[^*/]*\.\w+$")
"""A pattern of file names with their ending: `*.json`, `docs/part-*.txt`."""


def module_files(module: str, task: Path) -> set[Path]:
    """The file of a module, of everything that it imports from here, and files that these name.

    An import is looked up in the folder of the importing file, in that of the task, and in the
    root of the package. Installed packages are not among them: they have versions. A file counts
    as named where texts in the source are its path, or a pattern of it, below the folder of the
    source: one text, or one for each part (`Path(__file__).parent / "data" / "words.json"`).

    Args:
        module: dotted name, as in `!function module.name`.
        task: folder of the task file.
    """
    found: set[Path] = set()
    waiting = [(task, module)]
    while waiting:
        for file in _sources(*waiting.pop()) - found:
            found.add(file)
            try:
                nodes = list(ast.walk(ast.parse(file.read_bytes())))
            except (SyntaxError, ValueError, RecursionError):
                continue  # lm-eval will say what is wrong with it
            waiting += [each for node in nodes for each in _imports(node, file, task)]
            texts = {node.value for node in nodes if isinstance(node, ast.Constant)}
            found |= _named({each for each in texts if _may_be_path(each)}, file.parent)
    return found


def _sources(folder: Path, module: str) -> set[Path]:
    """The existing files of a module and of the packages that it lies in."""
    parts = module.split(".")
    places = [folder.joinpath(*parts[: n + 1]) for n in range(len(parts))]
    files = [path for place in places for path in (place / "__init__.py", Path(f"{place}.py"))]
    return {path for path in files if path.is_file()}


def _imports(node: ast.AST, file: Path, task: Path) -> Iterator[tuple[Path, str]]:
    """Folder and dotted name of what an import may load."""
    level = 0
    if isinstance(node, ast.Import):
        names = [each.name for each in node.names]
    elif isinstance(node, ast.ImportFrom):
        level = node.level
        names = [f"{node.module or ''}.{each.name}".strip(".") for each in node.names]
    elif isinstance(node, ast.Call) and ast.unparse(node.func) in _IMPORTING:
        written = [each.value for each in node.args[:1] if isinstance(each, ast.Constant)]
        level = len(str(*written)) - len(str(*written).lstrip("."))
        names = [str(each).strip(".") for each in written]
    else:
        return
    root = file.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    relative = file.parents[min(level, len(file.parents)) - 1]
    for place in {relative} if level else {file.parent, task, root}:
        yield from ((place, name) for name in names if _may_be_path(name))


def _may_be_path(text: object) -> TypeGuard[str]:
    return isinstance(text, str) and 0 < len(text) <= LONGEST_NAME and text.isprintable()


def _named(texts: set[str], folder: Path) -> set[Path]:
    """Files below a folder that texts name, alone or below folders that other texts name."""
    found, folders, waiting = set[Path](), {folder}, [folder]
    while waiting:
        place = waiting.pop()
        for text in texts:
            pattern = _PATTERN.search(text) and not text.startswith("/")
            for path in place.glob(text) if pattern else [place / text]:
                if path.is_file():
                    found.add(path)
                elif path.is_dir() and folder in path.parents and path not in folders:
                    folders.add(path)
                    waiting.append(path)
    return found
