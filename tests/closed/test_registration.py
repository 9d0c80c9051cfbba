"""Every task has its file, and the group those that count in it."""

from pathlib import Path

import pytest
import yaml

from leval_tasks.closed.catalog import GROUP, TASKS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "leval_tasks" / "closed" / "tasks"


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_its_yaml(task):
    lines = (FOLDER / f"{task}.yaml").read_text("utf-8").splitlines()
    assert lines == [
        f"task: {task}",
        "class: !function leval_tasks.closed.task.LEvalClosedTask",
    ]


def test_group_holds_the_tasks_that_count_in_it():
    group = yaml.safe_load((FOLDER / f"{GROUP}.yaml").read_text("utf-8"))
    assert group["group"] == GROUP
    assert group["task"] == [name for name, task in TASKS.items() if task.in_group]
    assert len(group["task"]) == 6
