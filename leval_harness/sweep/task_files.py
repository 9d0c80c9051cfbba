"""What a task that is given as a YAML file consists of: that file and all that it reads."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from leval_harness.sweep.file_hashes import CODE, cached_sha256, files_below


def task_hash(file: Path) -> str:
    """SHA-256 (hex) over the names and contents of everything that makes the task.

    That is the YAML and Python below its folder and below that of each file it includes, and the
    files and folders that its data set names on this machine.
    """
    root = file.parent
    parts = {_name(path, root): path for path in _code(file)} | {
        _name(path, root): path for path in _data(file)
    }
    hashed = hashlib.sha256()
    for name in sorted(parts):
        hashed.update(f"{name} {cached_sha256(parts[name])}\n".encode())
    return hashed.hexdigest()


def _name(path: Path, root: Path) -> str:
    return Path(os.path.relpath(path, root)).as_posix()


def _chain(file: Path, seen: dict[Path, Any]) -> dict[Path, Any]:
    """A YAML file and those that it includes -> their contents."""
    if file in seen or not file.is_file():
        return seen
    try:
        # this loader makes text of every value, and of `!function name` its name
        content = yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        content = None  # lm-eval will say what is wrong with it
    seen[file] = content
    included = content.get("include", []) if isinstance(content, dict) else []
    for each in [included] if isinstance(included, str) else included:
        if isinstance(each, str):
            _chain(Path(os.path.normpath(file.parent / each)), seen)
    return seen


def _code(file: Path) -> Iterator[Path]:
    for each in _chain(file, {}):
        yield each
        for path in files_below(each.parent):
            if path.suffix in CODE or "yaml" in path.name:
                yield path


def _data(file: Path) -> Iterator[Path]:
    for content in _chain(file, {}).values():
        if not isinstance(content, dict):
            continue
        for text in _texts([content.get("dataset_path"), content.get("dataset_kwargs")]):
            for path in _on_this_machine(text):
                yield from files_below(path) if path.is_dir() else (path,)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def _on_this_machine(text: str) -> list[Path]:
    """Files and folders that a text names, by a pattern too, as `datasets` finds them."""
    if not text or "://" in text or "\0" in text:
        return []
    path = Path(text)
    try:
        if "*" in text:
            start = Path(path.anchor)
            return sorted(start.glob(str(path.relative_to(start))))
        # a bare word is the name of a format or a data set
        return [path] if path.exists() and (path.is_file() or len(path.parts) > 1) else []
    except (OSError, ValueError, NotImplementedError):
        return []
