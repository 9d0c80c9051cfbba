"""The bundled sample: its layout, and references that count as right answers."""

import json

import pytest

from leval_tasks.closed.catalog import TASKS
from leval_tasks.data import SAMPLE

FILES = sorted(path.name for path in SAMPLE.glob("*.jsonl"))


def documents(file):
    return [json.loads(line) for line in (SAMPLE / file).read_text("utf-8").splitlines()]


def test_every_task_has_a_file_in_the_layout_of_l_eval():
    assert sorted(task.file.name for task in TASKS.values()) == FILES
    for file in FILES:
        for record in documents(file):
            assert set(record) == {"instructions", "outputs", "input", "evaluation", "source"}
            assert (record["evaluation"], record["source"]) == ("exam", "sample")
            assert len(record["instructions"]) == len(record["outputs"]) >= 1
            assert 7_000 < len(record["input"]) < 16_000  # a few thousand tokens


@pytest.mark.parametrize("file", FILES)
def test_the_reference_is_a_right_answer(file):
    rule = next(task.rule for task in TASKS.values() if task.file.name == file)
    for record in documents(file):
        assert all(rule.judge(answer, answer).right for answer in record["outputs"])
