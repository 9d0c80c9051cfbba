"""What a guess would score."""

import math
from collections.abc import Sequence

from leval_leaderboard.results.fields import finite
from leval_tasks.closed.catalog import TASKS, chance_note

CHANCE_NOTE = chance_note()


def chance_level(task: str, stated: object, golds: Sequence[str]) -> float:
    """Expected score of guessing, as a fraction; NaN where the task does not define one.

    Args:
        task: task name.
        stated: what the results file says; files of old versions say nothing.
        golds: gold answers, for such files and for tasks of which chance depends on them.
    """
    if task not in TASKS or not TASKS[task].rule.guess:
        return math.nan
    level = finite(stated)
    if level is None:
        level = TASKS[task].rule.chance(golds)
    return math.nan if level is None else level
