"""A smaller lm-eval for tests that are not about lm-eval's own tasks.

lm-eval reads 14,000 YAML files for each `TaskManager`, and describes the machine with several
programs for each evaluation: seconds that say nothing about what is tested. A folder of tests opts
in with `few_lm_eval_tasks` in its conftest.py; the blocks of the README run lm-eval as it is.
"""

import functools
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

READ_FOLDERS = [
    "leval_harness",
    "babilong",
    "graphwalks",
    "infinitebench",
    "longbench",
    "longbench2",
    "longproc",
    "ruler",
    "wikitext",
]
"""Folders of lm-eval's tasks that are still read."""


def replacements() -> list[tuple[Any, str, Any]]:
    """Return object, attribute and new value of what changes, in modules that are imported."""
    changes: list[tuple[Any, str, Any]] = []
    index = sys.modules.get("lm_eval.tasks._index")
    if index is not None and not hasattr(index.TaskIndex.build, "__wrapped__"):
        build = reading_few_folders(index.TaskIndex.build, Path(index.__file__).parent)
        changes.append((index.TaskIndex, "build", staticmethod(build)))
    machine = sys.modules.get("torch.utils.collect_env")
    if machine is not None and not hasattr(machine.get_pretty_env_info, "__wrapped__"):
        describe = described_once(machine.get_pretty_env_info)
        changes.append((machine, "get_pretty_env_info", describe))
    return changes


@functools.cache
def described_once(describe: Callable[[], str]) -> Callable[[], str]:
    """Return a function that describes the machine once in a process: it asks several programs."""
    return functools.cache(describe)


def install() -> None:
    """Change lm-eval for the rest of this process: for programs that tests start."""
    for target, name, value in replacements():
        setattr(target, name, value)


def reading_few_folders(build: Callable[..., Any], library: Path) -> Callable[..., Any]:
    """Return `TaskIndex.build`, which reads `READ_FOLDERS` in place of the whole library."""

    @functools.wraps(build)
    def build_few(paths: Iterable[Path], **options: Any) -> Any:
        few = [library / name for name in READ_FOLDERS]
        folders = [folder for path in paths for folder in (few if path == library else [path])]
        return build(folders, **options)

    return build_few
