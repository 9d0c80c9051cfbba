"""lm-eval's own output as small files, and what becomes of it."""

import json

from leval_harness.analysis import analyse
from leval_harness.old_results import load_results
from leval_harness.old_tables import build_tables

STAMP = "2026-01-02T03-04-05.000000"


def write(folder, values, task="arc", name=f"results_{STAMP}.json", samples=None, **top):
    """A results file of lm-eval 0.4 with one task; `config` and the task's `fields` are merged."""
    folder.mkdir(parents=True, exist_ok=True)
    better, fields = top.pop("better", {}), top.pop("fields", {})
    config = {"model": "hf", "model_args": {"pretrained": "m"}, "limit": None}
    content = {
        "results": {task: {"alias": task, **values}},
        "configs": {task: {"task": task, "metadata": {"version": 1.0}, **fields}},
        "n-samples": {task: {"original": 20, "effective": 20}},
        "higher_is_better": {task: better},
        "model_name": "org/model",
        "max_length": 8192,
        **top,
        "config": config | top.get("config", {}),
    }
    (folder / name).write_text(json.dumps(content))
    if samples is not None:
        rows = "".join(json.dumps(row) + "\n" for row in samples)
        (folder / f"samples_{task}_{STAMP}.jsonl").write_text(rows)
    return folder


def sample(at, score, metric="acc", chosen="none", asked=None):
    asked = f"question {at}" if asked is None else asked
    hashes = {f"{part}_hash": f"{part} {asked}" for part in ("doc", "prompt", "target")}
    return {"doc_id": at, "doc": {}, "resps": [["x"]], "filter": chosen, "metrics": [metric],
            **hashes, metric: score}  # fmt: skip


def entries(*folders, **asked):
    return analyse(load_results(*folders), **asked).entries


def cells(tables):
    return [cell for t in tables for block in t.blocks for row in block.rows for cell in row.cells]


ACC = {"acc,none": 0.5, "acc_stderr,none": 0.1}
ROPE = {"pretrained": "m", "rope_parameters": {"rope_type": "yarn", "factor": 2.0}}


def build_tables_of(*folders):
    return build_tables(analyse(load_results(*folders)))
