"""Names of tasks that lm-eval is asked for: ours under the names that they have today."""

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from leval_tasks.closed.catalog import OLD_NAMES

logger = logging.getLogger(__name__)


def renamed_tasks(tasks: Any, include_path: str | None) -> list[Any]:
    """What lm-eval is to run, one name each, our tasks under the names that they have today.

    A notice says what was renamed, and which names are of somebody else's tasks: those are run,
    as lm-eval does.
    """
    from leval_harness.sweep.task_names import owners, runs_theirs
    from leval_harness.sweep.task_registry import members, own_tasks

    listed = tasks.split(",") if isinstance(tasks, str) else list(tasks or ())
    names = [name for each in listed if isinstance(each, str) for name in each.split(",")]
    others = [each for each in listed if not isinstance(each, str)]
    renamed = _renamed("--tasks", names, include_path)
    ours = [name for name in (*names, *members(names)) if name in own_tasks()]
    for name, path in owners(ours, _folders(include_path)).items():
        if runs_theirs(path):
            logger.warning("--tasks: %s is the one of %s, not ours", name, path)
    return [*(renamed.get(name, name) for name in names), *others]


def renamed_samples(
    samples: Mapping[str, Sequence[int]], tasks: Sequence[Any], include_path: str | None
) -> dict[str, list[int]]:
    """Numbers of questions by task, ascending, our tasks under the names that they have today.

    lm-eval asks all questions of a task that has none here, so a name that is no task of the run
    would change nothing. It goes through the questions in their own order, and would write the
    numbers down in ours.

    Raises:
        ConfigError: a name that is none of the tasks, where they are known.
    """
    from leval_harness.sweep.task_registry import check_asked

    renamed = _renamed("--samples", list(samples), include_path)
    today = {renamed.get(name, name): sorted(set(each)) for name, each in samples.items()}
    if not include_path and all(isinstance(each, str) for each in tasks):
        check_asked("samples", tasks, today)
    return today


def _renamed(option: str, names: Sequence[str], include_path: str | None) -> dict[str, str]:
    """The old names among `names` that mean ours, and what those tasks are called today."""
    from leval_harness.sweep.task_names import owners

    old = [name for name in names if name in OLD_NAMES]
    theirs = owners(old, _folders(include_path))
    for name, path in theirs.items():
        logger.warning("%s: %s is the one of %s; ours is %s", option, name, path, OLD_NAMES[name])
    renamed = {name: OLD_NAMES[name] for name in old if name not in theirs}
    for name, today in renamed.items():
        logger.warning("%s: %s is called %s today", option, name, today)
    return renamed


def _folders(include_path: str | None) -> list[Path]:
    return [Path(include_path)] if include_path else []


@contextlib.contextmanager
def validating() -> Iterator[None]:
    """While this lasts, `lm-eval validate` takes the names that `lm-eval run` takes."""
    from lm_eval._cli.validate import Validate

    stock = Validate._execute

    def execute(self: Any, asked: Any) -> None:
        asked.tasks = ",".join(renamed_tasks(asked.tasks, asked.include_path))
        stock(self, asked)

    Validate._execute = execute
    try:
        yield
    finally:
        Validate._execute = stock
