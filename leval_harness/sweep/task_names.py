"""Names of tasks as users write them: ours of today, ours of earlier versions, other people's."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import yaml

from leval_harness.sweep.errors import ConfigError
from leval_tasks.closed.catalog import OLD_NAMES

logger = logging.getLogger(__name__)

INSTALLED = "leval_harness"
"""Folder below `lm_eval/tasks` into which our task files are installed."""


def tasks_of_lm_eval() -> Path:
    """The folder whose tasks stock lm-eval knows."""
    spec = find_spec("lm_eval")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("lm-eval is not installed; pip install leval-harness brings it")
    return Path(spec.submodule_search_locations[0]) / "tasks"


def owners(names: Iterable[str], folders: Iterable[Path] = ()) -> dict[str, Path]:
    """Who else's file has a task or group of a name: name -> YAML file, where there is one.

    Looked for where lm-eval looks: in its own folder of tasks, our files in it left aside, and
    then in `folders`, as its `--include_path`; a later one wins there, too.
    """
    wanted, found = frozenset(names), {}
    if wanted:
        found = dict(_named(tasks_of_lm_eval(), wanted, INSTALLED))
        for folder in folders:
            found |= _named(folder, wanted)
    return found


def runs_theirs(path: Path) -> bool:
    """Whether lm-eval prefers a file to ours that has a task of the same name.

    It does where the file is on its `--include_path`, or comes before ours in its own folder.
    """
    folder = tasks_of_lm_eval()
    own = (folder / INSTALLED).as_posix()
    return not path.is_relative_to(folder) or path.as_posix() < own


@cache
def _named(root: Path, names: frozenset[str], aside: str = "") -> Mapping[str, Path]:
    """The first YAML file below a folder for each name; 14,000 files are searched in a second."""
    marks = [name.encode() for name in names]
    found: dict[str, Path] = {}
    for path in sorted(root.rglob("*.yaml"), key=lambda path: path.as_posix()):
        if aside and path.relative_to(root).parts[0] == aside:
            continue
        try:
            content = path.read_bytes()
            if not any(mark in content for mark in marks):
                continue
            parsed = yaml.load(content, Loader=yaml.BaseLoader)
        except (OSError, yaml.YAMLError):
            continue  # lm-eval passes over what it cannot read, too
        for key in ("group", "task") if isinstance(parsed, Mapping) else ():
            if isinstance(name := parsed.get(key), str) and name in names:
                found.setdefault(name, path)
    return found


def of_today(names: Sequence[str], field: str = "tasks") -> dict[str, str]:
    """Names of earlier versions among `names`, and what they are called today; with a notice.

    Raises:
        ConfigError: such a name is somebody else's task as well, so that nobody can tell which
            of the two is meant.
    """
    renamed = {name: OLD_NAMES[name] for name in names if name in OLD_NAMES}
    for name, path in sorted(owners(renamed).items()):
        raise ConfigError(
            f"{field}: '{name}' is a task of {path}; ours of that name is called "
            f"'{renamed[name]}' today. Write '{renamed[name]}', or the path for the other one"
        )
    for name, today in renamed.items():
        logger.warning("%s: %s is called %s today", field, name, today)
    return renamed
