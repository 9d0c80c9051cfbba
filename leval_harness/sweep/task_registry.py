"""Which tasks there are, what their settings may be, what they read, how they take a length.

Our tasks are read from their YAML: building lm-eval's index of 13,000 names takes seconds, reading
ours takes milliseconds.
"""

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from leval_harness.checkpoint_files import digest
from leval_harness.sweep import ConfigError
from leval_tasks.closed.catalog import TASKS, VERSION
from leval_tasks.metadata import (
    ClosedSettings,
    ContextSettings,
    EffectiveContextSettings,
    PerplexitySettings,
    TaskSettings,
    read_metadata,
)
from resonance_vllm.errors import SettingError, near, one_of
from resonance_vllm.settings import field_names

SUFFIXES = (".yaml", ".yml")
ROOT = Path(str(files("leval_tasks")))
FAMILIES = ("closed", "perplexity", "effective_context", "posgen")
SETTINGS: dict[str, type[TaskSettings]] = {
    "closed": ClosedSettings,
    "perplexity": PerplexitySettings,
    "effective_context": EffectiveContextSettings,
}
"""Family -> its settings in `--metadata`; those of PosGen come from the checkpoint as well."""
PYTHON_FILE = "pydocs.jsonl"
"""Stands for the language reference that every Python brings along; it is no file of a folder."""


@dataclass(frozen=True, kw_only=True)
class OwnTask:
    """A task or group of this project.

    Attributes:
        family: its folder below `leval_tasks`.
        version: another version gives other results.
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
            version=metadata.get("version") or (str(VERSION) if closed else "none"),
            members=tuple(content["task"]) if "group" in content else (name,),
            file=closed.file if closed else f"{corpus}.jsonl" if corpus else None,
        )
    return known


def is_file(name: str) -> bool:
    """Whether a task is given as a YAML file instead of by name."""
    return name.endswith(SUFFIXES)


def lm_eval_names(names: Iterable[str]) -> list[str]:
    """The tasks, groups and tags that are lm-eval's own."""
    known = own_tasks()
    return [name for name in names if name not in known and not is_file(name)]


def members(names: Iterable[str]) -> list[str]:
    """The single tasks behind names of tasks and groups; unknown names stand for themselves."""
    known = own_tasks()
    flat = [each for name in names for each in (known[name].members if name in known else (name,))]
    return list(dict.fromkeys(flat))


def families_of(names: Iterable[str]) -> set[str]:
    """Families of some tasks and groups; those of others are `""`."""
    known = own_tasks()
    return {known[name].family if name in known else "" for name in members(names)}


def read_by_tasks(names: Iterable[str], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the settings that tasks read; all where tasks of others are among them."""
    families = families_of(names)
    if not families <= set(SETTINGS):
        return dict(metadata)
    settings: list[type[TaskSettings]] = [ContextSettings, *map(SETTINGS.__getitem__, families)]
    read = {"corpus", *(name for each in settings for name in field_names(each))}
    return {key: value for key, value in metadata.items() if key in read}


def check_names(names: Iterable[str]) -> None:
    """Refuse a task that does not exist, before a model is loaded for it.

    Raises:
        ConfigError: unknown name (near matches are given) or a missing file.
    """
    known = own_tasks()
    prefixes = {name.split("_")[0] for name in known}
    for name in names:
        if is_file(name):
            if not Path(name).is_file():
                raise ConfigError(f"tasks: there is no file {name}")
        elif name.split("_")[0] in prefixes:
            one_of("tasks", name, known, ConfigError)
        elif name not in lm_eval_index():
            near_ones = near(name, sorted({*known, *lm_eval_index()}))
            near_ones = near_ones or "; `lm_eval ls tasks` lists them all"
            raise ConfigError(f"tasks: {name!r} is no task{near_ones}")


def check_settings(names: Iterable[str], metadata: Mapping[str, Any]) -> None:
    """Refuse settings that one of our tasks would refuse, before a model is loaded for it.

    Raises:
        ConfigError: names the setting, its value and what is allowed.
    """
    for family in families_of(names) & set(SETTINGS):
        try:
            read_metadata(SETTINGS[family], metadata)
        except SettingError as error:
            lines = str(error).splitlines()
            raise ConfigError("\n".join(f"metadata.{line}" for line in lines)) from error


def documents(names: Iterable[str], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Source and SHA-256 of the documents that our tasks read, family by family.

    Files of the hub are hashed when they are read, and that hash stands in lm-eval's results.

    Raises:
        ConfigError: the folder, or a file of it, does not exist.
    """
    known, found = own_tasks(), dict[str, Any]()
    for task in members(names):
        file = known[task].file if task in known else None
        if file == PYTHON_FILE:
            found["python"] = platform.python_version()
        elif file:
            source, hashed = _document(task, file, metadata)
            of_family = found.setdefault(known[task].family, {"source": source, "files": {}})
            of_family["files"] |= hashed
    return found


def _document(task: str, file: str, settings: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    from leval_tasks.data import missing_file, resolve_source
    from leval_tasks.perplexity.documents import corpus_file

    try:
        source, closed = resolve_source(settings.get("data_dir")), TASKS.get(task)
        if closed is None:
            return source.kind, {file: digest(corpus_file(file, source))}
        if not source.has(closed):
            raise missing_file(source, closed)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return source.kind, {file: digest(source.folder / file)} if source.folder else {}


LENGTH_KEY = "max_seq_lengths"
"""The setting in `--metadata` by which tasks of lm-eval take a length."""
LENGTH_FORMS: dict[str, Callable[[int], Any]] = {
    "ruler": lambda length: [length],
    "babilong": lambda length: f"{length // 1024}k",
}
"""Folder below `lm_eval/tasks` whose tasks take a length -> its form; others have texts of any."""
BESIDE_LENGTH = 512
"""Tokens that examples, instructions and answers of these tasks may take beyond the length."""


@cache
def lm_eval_index() -> Mapping[str, Any]:
    """lm-eval's index: name -> entry, for tasks, groups and tags. Takes seconds the first time."""
    from lm_eval.tasks import TaskManager

    return dict(TaskManager()._index)


def told_length(
    names: Sequence[str], metadata: Mapping[str, Any], length: int | None
) -> dict[str, Any]:
    """Settings that tell tasks of lm-eval the context length of their cell.

    lm-eval chains the questions of several lengths, and `limit` takes the first of the chain. A
    cell therefore has one length, and its number of questions is that of this length.

    Raises:
        ConfigError: the length stands there by hand too, or the tasks take it in different forms.
    """
    others = lm_eval_names(names)
    folders = {folder for name in others for folder in _folders(name)} & set(LENGTH_FORMS)
    if not folders or length is None:
        return {}
    if LENGTH_KEY in metadata:
        raise ConfigError(
            f"metadata.{LENGTH_KEY}: write it as context_lengths of the sweep, a cell a length"
        )
    if len(folders) > 1:
        raise ConfigError(
            f"tasks: those of {' and '.join(sorted(folders))} take their length in different "
            "forms; write them as two entries"
        )
    return {LENGTH_KEY: LENGTH_FORMS[folders.pop()](length)}


def _folders(name: str) -> set[str]:
    """Folders below `lm_eval/tasks` of a task, of a group, or of the tasks with a tag."""
    import lm_eval.tasks

    index, root = lm_eval_index(), Path(lm_eval.tasks.__file__).parent
    entries = [index[name]] if index[name].yaml_path else [index[e] for e in index[name].tags]
    paths = [Path(entry.yaml_path) for entry in entries if entry.yaml_path]
    return {path.relative_to(root).parts[0] for path in paths}
