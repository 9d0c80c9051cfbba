"""Which tasks this project brings, read from their YAML without lm-eval's index of 13,000 names.

Building that index takes seconds in every cell; ours alone takes milliseconds.
"""

import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from leval_border.errors import SettingError, near, one_of
from leval_border.files import user_path
from leval_harness.sweep.config_files import SUFFIXES
from leval_harness.sweep.errors import ConfigError
from leval_harness.sweep.file_hashes import cached_sha256
from leval_harness.sweep.lengths import lm_eval_index
from leval_harness.sweep.task_files import task_hash
from leval_tasks.closed.catalog import TASKS
from leval_tasks.metadata import (
    ClosedSettings,
    PerplexitySettings,
    ReachSettings,
    TaskSettings,
    family_settings,
    read_metadata,
)

# Stands for the language reference that every Python brings along; it is no file of a folder.
PYTHON_FILE = "pydocs.jsonl"
ROOT = Path(str(files("leval_tasks")))
FAMILIES = ("closed", "perplexity", "reach", "posgen")
SETTINGS: dict[str, type[TaskSettings]] = {
    "closed": ClosedSettings,
    "perplexity": PerplexitySettings,
    "reach": ReachSettings,
}
"""Family -> its settings in `--metadata`; those of PosGen come from the checkpoint as well."""


@dataclass(frozen=True, kw_only=True)
class OwnTask:
    """A task or group of ours.

    Attributes:
        family: its folder below `leval_tasks`.
        version: another one makes other results.
        members: the tasks in a group; itself for a task.
        file: of its documents; None for a group, and where a task reads none.
    """

    family: str
    version: str
    members: tuple[str, ...]
    file: str | None


def task_folders() -> list[Path]:
    """Folders of our task YAML, as lm-eval's `include_path` wants them."""
    return [ROOT / family / "tasks" for family in FAMILIES]


def _class_version(reference: str) -> str:
    """`VERSION` of a task's class, read from its module's text: importing it would cost lm-eval."""
    path = ROOT.joinpath(*reference.split(".")[1:-1]).with_suffix(".py")
    match = re.search(r"^VERSION\b.*?= *(\S+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    return match[1] if match else "none"


@cache
def own_tasks() -> dict[str, OwnTask]:
    """Name -> task or group, from every YAML file below `task_folders`."""
    known: dict[str, OwnTask] = {}
    for path in sorted(path for folder in task_folders() for path in folder.rglob("*.yaml")):
        # this loader makes text of every value, and of `!function name` its name
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
        name = content.get("group", content["task"])
        metadata = content.get("metadata", {})
        closed, corpus = TASKS.get(name), metadata.get("corpus")
        known[name] = OwnTask(
            family=path.relative_to(ROOT).parts[0],
            version=metadata.get("version") or _class_version(content["class"]),
            members=tuple(content["task"]) if "group" in content else (name,),
            file=closed.file.name if closed else f"{corpus}.jsonl" if corpus else None,
        )
    return known


def is_file(name: str) -> bool:
    """Whether a task is given as a YAML file instead of by name."""
    return name.endswith(SUFFIXES)


def foreign(names: Iterable[str]) -> list[str]:
    """The tasks, groups and tags that are lm-eval's own."""
    known = own_tasks()
    return [name for name in names if name not in known and not is_file(name)]


def members(names: Iterable[str]) -> list[str]:
    """The single tasks behind names of tasks and groups; unknown names stand for themselves."""
    known = own_tasks()
    flat: list[str] = []
    for name in names:
        flat += known[name].members if name in known else (name,)
    return list(dict.fromkeys(flat))


def versions(names: Iterable[str]) -> dict[str, str]:
    """What tells a task from its earlier and later forms.

    Ours: the version in the YAML. A task given as a file: `task_hash`. Tasks of lm-eval go by its
    version, recorded with the packages.
    """
    known = own_tasks()
    versions: dict[str, str] = {}
    for name in [*names, *members(names)]:
        if name in known:
            versions[name] = known[name].version
        else:
            versions[name] = task_hash(Path(name)) if is_file(name) else "lm_eval"
    return versions


def check_names(names: Iterable[str]) -> None:
    """Refuse a task that nobody knows, before a model is loaded for it.

    Raises:
        ConfigError: unknown name (near matches are given) or a missing file.
    """
    known = own_tasks()
    prefixes = {name.split("_")[0] for name in known}
    of_lm_eval = []
    for name in names:
        if is_file(name):
            if not Path(name).is_file():
                raise ConfigError(f"tasks: there is no file {name}")
        elif name.split("_")[0] in prefixes:
            one_of("tasks", name, known, ConfigError)
        else:
            of_lm_eval.append(name)
    if not of_lm_eval:
        return
    known_to_all = {*known, *lm_eval_index()}
    for name in of_lm_eval:
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
            asked = read_metadata(SETTINGS[family], metadata)
            given = asked.key_tokens if isinstance(asked, ReachSettings) else None
            if given and not user_path(given, "key_tokens").is_file():
                raise SettingError(f"key_tokens: there is no file {given}")
        except SettingError as error:
            lines = str(error).splitlines()
            raise ConfigError("\n".join(f"metadata.{line}" for line in lines)) from error


def check_keys_are_tasks(field: str, keys: Iterable[str], tasks: Iterable[str]) -> None:
    """Refuse a key of `field` that names none of `tasks`, where the names of all tasks are known.

    Raises:
        ConfigError: names the key and similar task names.
    """
    tasks = list(tasks)
    if not any(is_file(name) for name in tasks) and not foreign(tasks):
        for name in keys:
            one_of(field, name, members(tasks), ConfigError)


def of_entry(
    names: Iterable[str], asked: Iterable[str], task_gen_kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Generation settings of single tasks without those of tasks that only other entries ask."""
    others = set(members(asked)) - set(members(names))
    return {name: given for name, given in task_gen_kwargs.items() if name not in others}


def _in_folder(folder: Path, name: str, task: str) -> Path | None:
    """Where a task finds its file; texts for perplexity may lie in `corpora/` below."""
    places = [folder / name] + ([] if task in TASKS else [folder / "corpora" / name])
    return next((path for path in places if path.is_file()), None)


def only_own(names: Iterable[str]) -> bool:
    """Whether nobody else's task is among them."""
    return set(members(names)) <= set(own_tasks())


def without_data_dir(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of our tasks without those that say where documents lie."""
    groups = [each.group for each in SETTINGS.values() if each.group]
    kept = {key: value for key, value in metadata.items() if key != "data_dir"}
    for group in groups:
        if isinstance(given := kept.get(group), Mapping):
            kept[group] = {key: value for key, value in given.items() if key != "data_dir"}
    return kept


def data_identity(tasks: Iterable[str], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """`{"source": ..., "files": {name: sha256}}`, empty where no task of ours reads files.

    Families of tasks that were given different folders have such an entry each. Files of the hub
    are hashed when they are read, and that hash stands in lm-eval's results; tasks of lm-eval keep
    their own data.

    Raises:
        ConfigError: the folder, or a file of it, does not exist.
    """
    known = own_tasks()
    wanted: dict[str, dict[str, str]] = {}
    rest: dict[str, Any] = {}
    for task in members(tasks):
        file = known[task].file if task in known else None
        if file == PYTHON_FILE:
            rest = {"python": platform.python_version()}
        elif file:
            wanted.setdefault(known[task].family, {})[file] = task
    found = {
        family: _documents(files, family_settings(SETTINGS[family], metadata))
        for family, files in wanted.items()
    }
    if len({_place(family, metadata) for family in found}) > 1:
        return {**found, **rest}
    merged: dict[str, Any] = {}
    for each in found.values():
        merged = {**each, "files": {**merged.get("files", {}), **each["files"]}}
    return {**merged, **rest}


def _place(family: str, metadata: Mapping[str, Any]) -> str:
    return str(family_settings(SETTINGS[family], metadata).get("data_dir"))


def _documents(wanted: Mapping[str, str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """What one family reads; `wanted` are its files and a task of each."""
    from leval_tasks.data import available, missing_file, resolve_source

    try:
        source = resolve_source(settings)
        files: dict[str, str] = {}
        for name, task in wanted.items():
            if task in TASKS and TASKS[task] not in available(source):
                raise missing_file(source, TASKS[task])
            if source.folder is None or (source.kind == "sample" and task not in TASKS):
                continue
            path = _in_folder(source.folder, name, task)
            if path is None:
                raise ConfigError(f"data_dir: {source.path} has no {name}")
            files[name] = cached_sha256(path)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return {"source": source.kind, "files": files}
