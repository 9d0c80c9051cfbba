"""The tasks that there are: their settings, what they read, how they take a context length.

Tasks of this package are read from their YAML, which takes milliseconds: building lm-eval's index
of 13,000 names takes seconds.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from leval_harness.sweep import ConfigError
from leval_tasks.closed.catalog import TASKS, VERSION
from leval_tasks.common import metadata as task_settings
from leval_tasks.perplexity.corpora import JSONL
from resonance_vllm.common.errors import SettingError, did_you_mean
from resonance_vllm.common.settings import field_names

SUFFIXES = (".yaml", ".yml")
ROOT = Path(str(files("leval_tasks")))
FAMILIES = ("closed", "perplexity", "effective_context", "retrieval", "mrcr", "posgen")
EFFECTIVE_CONTEXT = "effective_context"
SETTINGS: dict[str, type[task_settings.TaskSettings]] = {
    "closed": task_settings.ClosedSettings,
    "perplexity": task_settings.PerplexitySettings,
    "effective_context": task_settings.EffectiveContextSettings,
    "retrieval": task_settings.RetrievalSettings,
    "mrcr": task_settings.MRCRSettings,
}
"""Family -> its settings in `--metadata`; those of PosGen come from the checkpoint as well."""


MODEL_SETTINGS = {
    "tokenizer", "tokenizer_revision", "pretrained", "model", "revision", "trust_remote_code",
    "shipped_length",
}  # fmt: skip
"""Settings about the model that tasks read beside those of their family."""


class OwnTask(NamedTuple):
    """A task or group of this project, as its YAML and the catalogue say.

    Attributes:
        members: the tasks in a group; itself for a task.
        file: of its documents; None for a group, and where a task reads none.
    """

    family: str
    version: str
    members: tuple[str, ...]
    file: str | None


def task_folders() -> list[Path]:
    """Return the folders of the package's task YAML, as lm-eval's `include_path` wants them."""
    return [ROOT / family / "tasks" for family in FAMILIES]


@cache
def own_tasks() -> dict[str, OwnTask]:
    """Return name -> task or group of this package, from every YAML file below `task_folders`."""
    known: dict[str, OwnTask] = {}
    for path in sorted(path for folder in task_folders() for path in folder.rglob("*.yaml")):
        # this loader makes text of every value, and of `!function name` its name
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
        name = content.get("group", content["task"])
        metadata = content.get("metadata", {})
        closed = TASKS.get(name)
        corpus = metadata.get("corpus")
        known[name] = OwnTask(
            family=path.relative_to(ROOT).parts[0],
            version=metadata.get("version") or (str(VERSION) if closed else "none"),
            members=tuple(content["task"]) if "group" in content else (name,),
            file=closed.file
            if closed
            else f"{corpus}.jsonl"
            if corpus and corpus != JSONL
            else None,
        )
    return known


def is_file(name: str) -> bool:
    """Return whether a task is given as a YAML file instead of by name."""
    return name.endswith(SUFFIXES)


def lm_eval_names(names: Iterable[str]) -> list[str]:
    """Return the tasks, groups and tags that are lm-eval's own."""
    known = own_tasks()
    return [name for name in names if name not in known and not is_file(name)]


def members(names: Iterable[str]) -> list[str]:
    """Return the single tasks of some tasks and groups; unknown names are returned as they are."""
    known = own_tasks()
    single: dict[str, None] = {}
    for name in names:
        members_of_name: tuple[str, ...] = (name,)
        if name in known:
            members_of_name = known[name].members
        single.update(dict.fromkeys(members_of_name))
    return list(single)


def families_of(names: Iterable[str]) -> set[str]:
    """Return the families of some tasks and groups; that of a task of lm-eval is `""`."""
    known = own_tasks()
    return {known[name].family if name in known else "" for name in members(names)}


def read_by_tasks(names: Iterable[str], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that some tasks read; all of them if a task of lm-eval is among them."""
    families = families_of(names)
    if not families <= set(SETTINGS):
        return dict(metadata)
    settings: list[type[task_settings.TaskSettings]] = [
        task_settings.ContextSettings,
        *map(SETTINGS.__getitem__, families),
    ]
    read = {"corpus", *(name for family in settings for name in field_names(family))}
    return {key: value for key, value in metadata.items() if key in read}


def check_names(names: Iterable[str]) -> None:
    """Refuse a task that does not exist, before a model is loaded for it.

    Raises:
        ConfigError: unknown name (near matches are given) or a missing file.
    """
    for name in names:
        if is_file(name):
            if not Path(name).is_file():
                raise ConfigError(f"tasks: there is no file {name}")
        elif name not in own_tasks() and name not in lm_eval_index():
            near_ones = did_you_mean(name, sorted({*own_tasks(), *lm_eval_index()}))
            more = near_ones or "; `lm_eval ls tasks` lists them all"
            raise ConfigError(f"tasks: {name!r} is not a task{more}")


def check_settings(names: Iterable[str], metadata: Mapping[str, Any]) -> None:
    """Refuse settings that a task of this package would refuse, before a model is loaded for it.

    Raises:
        ConfigError: names the setting, its value and what is allowed.
    """
    families = families_of(names)
    if "" not in families:  # other tasks have settings of their own, which nobody lists
        known = {name for family in task_settings.FAMILIES for name in field_names(family)}
        unknown = [key for key in metadata if key not in known | {"corpus"} | MODEL_SETTINGS]
        if unknown:
            raise ConfigError(
                "\n".join(f"metadata.{key}: no task of this package reads it" for key in unknown)
            )
    for family in families & set(SETTINGS):
        try:
            task_settings.read_metadata(SETTINGS[family], metadata)
        except SettingError as error:
            raise ConfigError("metadata." + str(error).replace("\n", "\nmetadata.")) from error


LENGTH_KEY = "max_seq_lengths"
"""The setting in `--metadata` by which tasks of lm-eval take a length."""
LENGTH_FORMS: dict[str, Callable[[int], Any]] = {
    "ruler": lambda length: [length],
    "babilong": lambda length: f"{length // 1024}k",
}
"""Folder below `lm_eval/tasks` whose tasks take a length -> its form; others have documents of any."""
BESIDE_LENGTH = 512
"""Tokens that examples, instructions and answers of these tasks may take beyond the length."""


@cache
def lm_eval_index() -> Mapping[str, Any]:
    """lm-eval's index: name -> entry, for tasks, groups and tags. Takes seconds the first time."""
    from lm_eval.tasks import TaskManager

    return dict(TaskManager()._index)


def length_setting(
    names: Sequence[str], metadata: Mapping[str, Any], length: int | None
) -> dict[str, Any]:
    """Return the settings that pass the context length of a run to tasks of lm-eval.

    lm-eval chains the questions of several lengths, and `limit` takes the first of the chain. A
    run therefore has one length, and its number of questions is that of this length.

    Raises:
        ConfigError: the metadata state the length, too.
    """
    others = lm_eval_names(names)
    folders = {folder for name in others for folder in _folders(name)} & set(LENGTH_FORMS)
    if not folders or length is None:
        return {}
    if LENGTH_KEY in metadata:
        raise ConfigError(
            f"metadata.{LENGTH_KEY}: write it as context_lengths of the sweep, which makes one run per length"
        )
    return {LENGTH_KEY: LENGTH_FORMS[min(folders)](length)}


def tasks_in_folder(names: Iterable[str], folder: str) -> list[str]:
    """Return the tasks in a folder of lm-eval's tasks that some names, groups or tags select."""
    tasks: dict[str, None] = {}
    ahead = [name for name in lm_eval_names(names) if name in lm_eval_index()]
    while ahead:
        name = ahead.pop()
        entry = lm_eval_index()[name]
        members = list(entry.tags) if entry.yaml_path is None else (entry.cfg or {}).get("task")
        if isinstance(members, list):
            ahead += [member for member in members if member in lm_eval_index()]
        elif folder in _folders(name):
            tasks[name] = None
    return sorted(tasks)


def _folders(name: str) -> set[str]:
    """Return the folders below `lm_eval/tasks` of a task, of a group, or of the tasks with a tag."""
    import lm_eval.tasks

    index = lm_eval_index()
    root = Path(lm_eval.tasks.__file__).parent
    entries = [index[name]] if index[name].yaml_path else [index[e] for e in index[name].tags]
    paths = [Path(entry.yaml_path) for entry in entries if entry.yaml_path]
    return {path.relative_to(root).parts[0] for path in paths}
