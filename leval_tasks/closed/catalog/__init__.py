"""The closed-ended tasks: every module of this package defines one, as its `TASK`."""

import importlib
import pkgutil

from leval_tasks.closed.definition import ClosedTask
from resonance_vllm.errors import one_of

_MODULES = [importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)]
_TASKS: list[ClosedTask] = [module.TASK for module in _MODULES]

TASKS = {task.name: task for task in sorted(_TASKS, key=lambda task: (task.place, task.key))}
"""Every task by its name in lm-eval, in the order of the tables' columns."""

GROUP = "leval_closed"
"""The paper's Avg.: the unweighted mean of the tasks that count in it."""


def task_named(name: str, field: str = "task") -> ClosedTask:
    """A task by its name in lm-eval or its key, as the user wrote it in a field.

    The prefix `leval_` of prediction files is accepted too.

    Raises:
        SettingError: an unknown name, with the nearest one.
    """
    tasks = {task.key: task for task in TASKS.values()}
    if (key := name.removeprefix("leval_")) in tasks:
        return tasks[key]
    known = TASKS if name.startswith("leval_") else tasks
    return known[one_of(field, name, known)]
