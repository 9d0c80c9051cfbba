"""Which tasks this project brings, read from their YAML without lm-eval's index of 13,000 names.

Building that index takes seconds in every cell; ours alone takes milliseconds.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from leval_border.errors import SettingError, near, one_of
from leval_sweep.config_files import SUFFIXES
from leval_sweep.errors import ConfigError
from leval_sweep.identity import file_sha256
from leval_tasks.closed.catalog import TASKS
from leval_tasks.metadata import ClosedSettings, PerplexitySettings, TaskSettings, read_metadata

FAMILIES = ("closed", "perplexity", "posgen")
SETTINGS: dict[str, type[TaskSettings]] = {
    "closed": ClosedSettings,
    "perplexity": PerplexitySettings,
}
"""Family -> its settings in `--metadata`; those of PosGen come from the checkpoint as well."""


class _TagLoader(yaml.SafeLoader):
    """A safe loader that reads lm-eval's `!function name` as its text instead of refusing it."""


_TagLoader.add_multi_constructor("!", lambda loader, suffix, node: f"!{suffix} {node.value}")


@dataclass(frozen=True, kw_only=True)
class OwnTask:
    """A task or group of ours.

    Attributes:
        name: as lm-eval has it.
        family: its folder below `leval_tasks`.
        version: another one makes other results.
        members: the tasks in a group; itself for a task.
        file: of its documents; None for a group, and where a task reads none.
    """

    name: str
    family: str
    version: str
    members: tuple[str, ...]
    file: str | None = None


def task_folders() -> list[Path]:
    """Folders of our task YAML, as lm-eval's `include_path` wants them."""
    root = Path(str(files("leval_tasks")))
    return [root / family / "tasks" for family in FAMILIES]


def _load(path: Path) -> dict[str, Any]:
    """A task file with what it includes below it."""
    content = yaml.load(path.read_text(encoding="utf-8"), Loader=_TagLoader)
    if not isinstance(content, dict):
        return {}
    includes = content.pop("include", [])
    merged: dict[str, Any] = {}
    for name in [includes] if isinstance(includes, str) else includes:
        merged |= _load(path.parent / name)
    return merged | content


def _class_version(content: dict[str, Any]) -> str:
    """`VERSION` of a task's class, read from its module's text: importing it would cost lm-eval."""
    reference = str(content.get("class", "")).removeprefix("!function ")
    module = reference.split(".")[1:-1]
    path = Path(str(files("leval_tasks"))).joinpath(*module).with_suffix(".py")
    match = re.search(r"^VERSION\b.*?= *(\S+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    return match[1] if match else "none"


@cache
def own_tasks() -> dict[str, OwnTask]:
    """Name -> task or group, from every YAML file below `task_folders`."""
    known: dict[str, OwnTask] = {}
    for family, folder in zip(FAMILIES, task_folders(), strict=True):
        for path in sorted(folder.rglob("*.yaml")):
            content = _load(path)
            metadata = content.get("metadata") or {}
            version = str(metadata.get("version") or _class_version(content))
            task = content.get("task")
            if isinstance(content.get("group"), str) and isinstance(task, list):
                name = content["group"]
                inside = tuple(each["task"] if isinstance(each, dict) else each for each in task)
                known[name] = OwnTask(name=name, family=family, version=version, members=inside)
            elif isinstance(task, str):
                closed, corpus = TASKS.get(task), metadata.get("corpus")
                file = closed.file.name if closed else f"{corpus}.jsonl" if corpus else None
                known[task] = OwnTask(
                    name=task, family=family, version=version, members=(task,), file=file
                )
    return known


def is_file(name: str) -> bool:
    """Whether a task is given as a YAML file instead of by name."""
    return name.endswith(SUFFIXES)


def members(names: Iterable[str]) -> list[str]:
    """The single tasks behind names of tasks and groups; unknown names stand for themselves."""
    known = own_tasks()
    flat: list[str] = []
    for name in names:
        inside = known[name].members if name in known else (name,)
        flat += inside if inside == (name,) else members(inside)
    return list(dict.fromkeys(flat))


def versions(names: Iterable[str]) -> dict[str, str]:
    """What tells a task from its earlier and later forms.

    Ours: the version in the YAML. A task given as a file: the hash of the YAML and Python files
    beside it. Tasks of lm-eval go by its version, recorded with the packages.
    """
    known = own_tasks()
    versions: dict[str, str] = {}
    for name in [*names, *members(names)]:
        if name in known:
            versions[name] = known[name].version
        else:
            versions[name] = _folder_hash(Path(name).parent) if is_file(name) else "lm_eval"
    return versions


def _folder_hash(folder: Path) -> str:
    """SHA-256 (hex) of the YAML and Python files in a folder."""
    hashed = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file() and (
            path.suffix == ".py" or "yaml" in path.name or path.suffix == ".yml"
        ):
            hashed.update(f"{path.name} {file_sha256(path)}\n".encode())
    return hashed.hexdigest()


def check_names(names: Iterable[str]) -> None:
    """Refuse a task that nobody knows, before a model is loaded for it.

    Raises:
        ConfigError: unknown name (near matches are given) or a missing file.
    """
    known = own_tasks()
    foreign = [name for name in names if name not in known and not _is_there(name)]
    prefixes = {name.split("_")[0] for name in known}
    for name in foreign:
        if name.split("_")[0] in prefixes:
            one_of("tasks", name, known, ConfigError)
    if not foreign:
        return
    from lm_eval.tasks import TaskManager

    known_to_all = {*known, *TaskManager().all_tasks}
    for name in foreign:
        if name not in known_to_all:
            near_ones = near(name, sorted(known_to_all)) or "; `lm_eval ls tasks` lists them all"
            raise ConfigError(f"tasks: {name!r} is no task{near_ones}")


def check_settings(names: Iterable[str], metadata: Mapping[str, Any]) -> None:
    """Refuse settings that one of our tasks would refuse, before a model is loaded for it.

    Raises:
        ConfigError: names the setting, its value and what is allowed.
    """
    known = own_tasks()
    families = {known[name].family for name in members(names) if name in known}
    for family in families & set(SETTINGS):
        try:
            read_metadata(SETTINGS[family], metadata)
        except SettingError as error:
            lines = str(error).splitlines()
            raise ConfigError("\n".join(f"metadata.{line}" for line in lines)) from error


def _is_there(name: str) -> bool:
    """Whether a task is given as a YAML file.

    Raises:
        ConfigError: it is, and there is no such file.
    """
    if is_file(name) and not Path(name).is_file():
        raise ConfigError(f"tasks: there is no file {name}")
    return is_file(name)
