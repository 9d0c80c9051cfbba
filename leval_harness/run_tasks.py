"""Names of tasks that lm-eval is asked for: ours under the names that they have today."""

import logging
from pathlib import Path
from typing import Any

from leval_tasks.closed.catalog import OLD_NAMES


def renamed_tasks(tasks: Any, include_path: str | None) -> list[Any]:
    """What lm-eval is to run, one name each, our tasks under the names that they have today.

    A notice says what was renamed, and which names are of somebody else's tasks: those are run,
    as lm-eval does.
    """
    listed = tasks.split(",") if isinstance(tasks, str) else list(tasks or ())
    names = [name for each in listed if isinstance(each, str) for name in each.split(",")]
    others = [each for each in listed if not isinstance(each, str)]
    renamed = _renamed(names, [Path(include_path)] if include_path else [])
    return [*(renamed.get(name, name) for name in names), *others]


def _renamed(names: list[str], folders: list[Path]) -> dict[str, str]:
    """The old names among `names` that mean ours, and what those tasks are called today."""
    from leval_sweep.own_tasks import members, own_tasks
    from leval_sweep.task_names import owners, runs_theirs

    log, old = logging.getLogger(__name__), [name for name in names if name in OLD_NAMES]
    ours = [name for name in (*names, *members(names)) if name in own_tasks()]
    theirs = owners([*old, *ours], folders)
    for name, path in theirs.items():
        if name in old:
            log.warning("--tasks: %s is the one of %s; ours is %s", name, path, OLD_NAMES[name])
        elif runs_theirs(path):
            log.warning("--tasks: %s is the one of %s, not ours", name, path)
    renamed = {name: OLD_NAMES[name] for name in old if name not in theirs}
    for name, today in renamed.items():
        log.warning("--tasks: %s is called %s today", name, today)
    return renamed
