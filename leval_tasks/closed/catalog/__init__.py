"""The closed-ended tasks: every module of this package describes one, as its `TASK`."""

import importlib
import logging
import pkgutil

from leval_border.errors import one_of
from leval_tasks.closed.definition import OLD_PREFIX, PREFIX, ClosedTask

logger = logging.getLogger(__name__)


def _every_task() -> list[ClosedTask]:
    modules = (
        importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)
    )
    return sorted((module.TASK for module in modules), key=lambda task: (task.place, task.key))


TASKS: dict[str, ClosedTask] = {task.name: task for task in _every_task()}
"""Every task by its name in lm-eval, in the order of the tables' columns."""

GROUP = "leval_closed"
"""The paper's Avg.: the unweighted mean of the tasks that count in it."""


OLD_NAMES: dict[str, str] = {OLD_PREFIX + task.key: name for name, task in TASKS.items()}
"""What a task was once called -> what it is called today."""


def task_named(name: str, field: str = "task") -> ClosedTask:
    """A task by its name in lm-eval or its key, as the user wrote it in a field.

    A name of earlier versions is taken, with a notice.

    Raises:
        SettingError: an unknown name, with the nearest one.
    """
    if name in OLD_NAMES:
        logger.warning("%s: %s is called %s today", field, name, OLD_NAMES[name])
        return TASKS[OLD_NAMES[name]]
    if name.startswith(OLD_PREFIX):
        return TASKS[one_of(field, name, TASKS)]
    return TASKS[PREFIX + one_of(field, name, [task.key for task in TASKS.values()])]


def chance_note() -> str:
    """What a guess would score in each task, in words for the foot of a table."""
    shares: dict[tuple[bool, str, str], list[str]] = {}
    sentences = []
    for task in TASKS.values():
        level = task.rule.chance(())
        if level is not None:
            share = f" ({100 * level:.0f}%)" if level else ""
            shares.setdefault((not level, task.rule.guess, share), []).append(task.title)
        elif task.rule.guess:
            sentences.append(task.rule.guess.format(title=task.title))
    phrases = [
        f"{guess} for {' and '.join(titles)}{share}"
        for (_, guess, share), titles in sorted(shares.items(), key=lambda item: item[0][0])
    ]
    return " ".join([f"Chance: {', '.join(phrases)}.", *sentences])
