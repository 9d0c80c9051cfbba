"""The bundled sample has the layout of L-Eval's files; test_task answers it with its references."""

import json

from leval_tasks.closed.catalog import TASKS
from leval_tasks.common.data import SAMPLE


def test_sample_files_have_the_layout_of_l_eval():
    files = sorted(path.name for path in SAMPLE.glob("*.jsonl"))
    assert len(files) >= 7  # L-Eval's own tasks; others may do without
    assert {task.file for task in TASKS.values()} >= set(files)
    for file in files:
        for record in map(json.loads, (SAMPLE / file).open(encoding="utf-8")):
            assert set(record) == {"instructions", "outputs", "input", "evaluation", "source"}
            assert (record["evaluation"], record["source"]) == ("exam", "sample")
            assert len(record["instructions"]) == len(record["outputs"]) >= 1
            assert 7_000 < len(record["input"]) < 16_000  # a few thousand tokens
