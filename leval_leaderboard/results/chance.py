"""What a guess would score."""

from collections.abc import Sequence

from leval_tasks.closed.catalog import TASKS, chance_note

CHANCE_NOTE = chance_note()


def chance_level(task: str, stated: float | None, golds: Sequence[str]) -> float | None:
    """Expected score of guessing, as a fraction; None where the task does not define one.

    Args:
        task: task name.
        stated: what the results file says; files of old versions say nothing.
        golds: gold answers, for such files and for tasks of which chance depends on them.
    """
    if task not in TASKS or not TASKS[task].rule.guess:
        return None
    return TASKS[task].rule.chance(golds) if stated is None else stated
