"""Which tasks there are, what their settings may be, what they read, how they take a length.

Our tasks are read from their YAML: building lm-eval's index of 13,000 names takes seconds, reading
ours takes milliseconds.
"""

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from leval_harness.checkpoint_files import digest
from leval_harness.sweep import ConfigError
from leval_harness.sweep.config import TaskEntry, listed
from leval_harness.sweep.config_files import SUFFIXES
from leval_tasks.closed.catalog import TASKS
from leval_tasks.closed.definition import VERSION
from leval_tasks.metadata import (
    ClosedSettings,
    EffectiveContextSettings,
    PerplexitySettings,
    TaskSettings,
    read_metadata,
)
from resonance_vllm.errors import SettingError, near, not_allowed, one_of, shown

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
            file=closed.file.name if closed else f"{corpus}.jsonl" if corpus else None,
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


def checked_entries(entries: Sequence[TaskEntry]) -> list[TaskEntry]:
    """The task entries of a sweep, each with the `task_gen_kwargs` of its own tasks alone.

    Raises:
        ConfigError: an unknown task, or a setting of a task that is not allowed.
    """
    names = list(dict.fromkeys(name for entry in entries for name in entry.tasks))
    check_names(names)
    checked = []
    for entry in entries:
        check_keys_are_tasks("task_gen_kwargs", entry.task_gen_kwargs, names)
        check_settings(entry.tasks, entry.metadata)
        others = set(members(names)) - set(members(entry.tasks))
        own = {key: value for key, value in entry.task_gen_kwargs.items() if key not in others}
        checked.append(entry.model_copy(update={"task_gen_kwargs": own}))
    return checked


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


def check_keys_are_tasks(field: str, keys: Iterable[str], tasks: Iterable[str]) -> None:
    """Refuse a key of `field` that names none of `tasks`, where the names of all tasks are known.

    Raises:
        ConfigError: names the key and similar task names.
    """
    tasks = list(tasks)
    if not any(is_file(name) for name in tasks) and not lm_eval_names(tasks):
        for name in keys:
            one_of(field, name, members(tasks), ConfigError)


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
            family = known[task].family
            source, hashed = _document(task, file, metadata)
            of_family = found.setdefault(family, {"source": source, "files": {}})
            of_family["files"] |= hashed
    return found


def _document(task: str, file: str, settings: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    from leval_tasks.data import missing_file, resolve_source

    try:
        source = resolve_source(settings)
        if task in TASKS and not source.has(TASKS[task]):
            raise missing_file(source, TASKS[task])
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if source.folder is None or (source.kind == "sample" and task not in TASKS):
        return source.kind, {}
    # texts for perplexity may lie in a subfolder
    places = [source.folder] + ([] if task in TASKS else [source.folder / "corpora"])
    path = next((each / file for each in places if (each / file).is_file()), None)
    if path is None:
        raise ConfigError(f"data_dir: {source.path} has no {file}")
    return source.kind, {file: digest(path)}


LENGTH_KEY = "max_seq_lengths"
"""The setting in `--metadata` by which tasks of lm-eval take a length."""
BABILONG = ("0k", "1k", "2k", "4k", "8k", "16k", "32k", "64k", "128k")
"""Configurations of the hub's `RMT-team/babilong-1k-samples`."""


@dataclass(frozen=True, kw_only=True)
class LengthForm:
    """How tasks of lm-eval take a context length; other tasks have texts of their own lengths.

    Attributes:
        value: of `LENGTH_KEY` for a length in tokens; None for a length that the tasks do not have.
        extra_tokens: that a prompt and its answer may take beyond the length.
        allowed: the lengths that the tasks have, in words.
        tokenizer: whether texts are made with the run's tokenizer.
    """

    value: Callable[[int], Any]
    extra_tokens: int
    allowed: str = ""
    tokenizer: bool = False


LENGTH_FORMS: dict[str, LengthForm] = {
    # the answer prefix, and with fwe the 50 tokens of the answer, come on top
    "ruler": LengthForm(value=lambda length: [length], extra_tokens=128, tokenizer=True),
    # lengths are counted in another tokenizer; examples and instructions come on top
    "babilong": LengthForm(
        value=lambda length: next((k for k in BABILONG if int(k[:-1]) * 1024 == length), None),
        extra_tokens=512,
        allowed=", ".join(str(int(name[:-1]) * 1024) for name in BABILONG),
    ),
}
"""Folder below `lm_eval/tasks` -> how its tasks take a length."""


@cache
def lm_eval_index() -> Mapping[str, Any]:
    """lm-eval's index: name -> entry, for tasks, groups and tags. Takes seconds the first time."""
    from lm_eval.tasks import TaskManager

    return dict(TaskManager()._index)


def length_forms(names: Iterable[str]) -> dict[str, LengthForm]:
    """Those of some tasks, groups and tags of lm-eval that take a length -> how they take it."""
    import lm_eval.tasks

    index, known = lm_eval_index(), {}
    root = Path(lm_eval.tasks.__file__).parent
    for name in names:
        entries = [index[name]] if index[name].yaml_path else [index[e] for e in index[name].tags]
        paths = [Path(entry.yaml_path) for entry in entries if entry.yaml_path]
        folders = sorted({path.relative_to(root).parts[0] for path in paths} & set(LENGTH_FORMS))
        if folders:
            known[name] = LENGTH_FORMS[folders[0]]
    return known


@dataclass(frozen=True)
class CellLength:
    """What a cell's context length means for its tasks.

    Attributes:
        metadata: settings that give the tasks the length.
        extra_tokens: that the model has to read beyond it.
        tokenizer: name of a task that makes its texts with the run's tokenizer; empty without one.
    """

    metadata: dict[str, Any] = field(default_factory=dict)
    extra_tokens: int = 0
    tokenizer: str = ""


def cell_length(
    names: Sequence[str], metadata: Mapping[str, Any], length: int | None
) -> CellLength:
    """What the context length of a cell means for its tasks.

    lm-eval chains the questions of several lengths, and `limit` takes the first of the chain. A
    cell therefore has one length, and its number of questions is that of this length.

    Raises:
        ConfigError: several lengths, another length than the cell's, or one that a task lacks.
    """
    others = lm_eval_names(names)
    forms = length_forms(others) if others else {}
    if not forms:
        return CellLength()
    tokenizer = next((name for name, form in forms.items() if form.tokenizer), "")
    given = metadata.get(LENGTH_KEY)
    if isinstance(given, list | tuple) and len(given) > 1:
        raise ConfigError(
            f"metadata.{LENGTH_KEY}: {shown(given)}: lm-eval asks the lengths one after the other, "
            "and `limit` takes the first questions of all; write context_lengths, a cell a length"
        )
    if length is None:
        return CellLength(tokenizer=tokenizer)
    values = {name: form.value(length) for name, form in forms.items()}
    first, expected = next(iter(values.items()))
    for name, value in values.items():
        if value is None:
            allowed = forms[name].allowed
            raise ConfigError(not_allowed(f"context_lengths of {name}", length, allowed))
        if value != expected:
            raise ConfigError(
                f"tasks: {name} and {first} take their length in different forms; write them as "
                "two entries"
            )
    if given is not None and [*map(str, listed(given))] != [*map(str, listed(expected))]:
        raise ConfigError(
            f"metadata.{LENGTH_KEY}: {shown(given)} is not the cell's length of {length}; write it "
            "as context_lengths of the sweep instead"
        )
    extra = max(form.extra_tokens for form in forms.values()) if len(others) == len(names) else 0
    return CellLength({LENGTH_KEY: expected}, extra, tokenizer)
