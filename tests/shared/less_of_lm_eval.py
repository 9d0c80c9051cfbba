"""What tests leave out of lm-eval: files of tasks that no test asks for, and the machine.

lm-eval reads 14,000 YAML files for each `TaskManager`, and describes the machine with several
programs for each evaluation: seconds that say nothing about what is tested. The blocks of README
run lm-eval as it is.
"""

import functools
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

USED = "leval_harness babilong infinitebench longbench longbench2 ruler wikitext"
"""Folders of lm-eval's tasks that are read."""


def install() -> None:
    """Do so, where these libraries have been imported."""
    index = sys.modules.get("lm_eval.tasks._index")
    if index is not None and not hasattr(index.TaskIndex.build, "__wrapped__"):
        build = _of_few(index.TaskIndex.build, Path(index.__file__).parent)
        index.TaskIndex.build = staticmethod(build)
    machine = sys.modules.get("torch.utils.collect_env")
    if machine is not None and not hasattr(machine.get_pretty_env_info, "__wrapped__"):
        machine.get_pretty_env_info = functools.cache(machine.get_pretty_env_info)


def _of_few(build: Callable[..., Any], library: Path) -> Callable[..., Any]:
    """`build`, which reads the folders of `USED` in place of the library's."""

    @functools.wraps(build)
    def building(paths: Iterable[Path], **options: Any) -> Any:
        few = [library / name for name in USED.split()]
        found = [each for path in paths for each in (few if path == library else [path])]
        return build(found, **options)

    return building
