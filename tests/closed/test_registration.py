"""Every closed-ended task has its file, and stock lm-eval finds all of ours."""

from pathlib import Path

import pytest
import yaml
from lm_eval.tasks import TaskManager

from leval_tasks.closed.catalog import GROUP, TASKS

pytestmark = pytest.mark.slow

PACKAGE = Path(__file__).parents[2] / "leval_tasks"


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_its_yaml(task):
    assert (PACKAGE / f"closed/tasks/{task}.yaml").read_text("utf-8").splitlines() == [
        f"task: {task}",
        "class: !function leval_tasks.closed.task.LEvalClosedTask",
    ]


def test_group_holds_the_tasks_that_count_in_it():
    group = yaml.safe_load((PACKAGE / f"closed/tasks/{GROUP}.yaml").read_text("utf-8"))
    assert group["group"] == GROUP
    assert group["task"] == [name for name, task in TASKS.items() if task.in_group]
    assert len(group["task"]) == 6


@pytest.mark.slow
def test_stock_lm_eval_finds_every_task():
    """It drops a file that it cannot read without a word."""
    ours = {path.stem for path in PACKAGE.glob("*/tasks/*.yaml")}
    assert len(ours) >= 20
    assert ours <= set(TaskManager().all_tasks)
