"""Scores of prediction files: the published ones, and one for every shape of an answer."""

import json

import pytest
from golden_access import HERE, fine, inside

PREDICTIONS = HERE / "predictions"
PUBLISHED = {
    "coursera": "coursera.pred.jsonl",
    "gsm": "gsm100.pred.jsonl",
    "quality": "quality.pred.jsonl",
    "toefl": "tpo.pred.jsonl",
    "codeu": "codeU.pred.jsonl",
    "topic_retrieval": "topic_retrieval_longchat.pred.jsonl",
}
TASKS = (*PUBLISHED, "sfiction")


def score(task, path):
    return json.loads(fine("score", "--task", task, path, "--json"))


def one_by_one(task, folder):
    """Each answer's own score: a wrong one cannot hide behind another."""
    found = {}
    lines = (PREDICTIONS / f"{task}.jsonl").read_text(encoding="utf-8").split("\n")
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    for at, row in enumerate(rows):
        path = folder / "one.jsonl"
        path.write_text(json.dumps(row) + "\n", encoding="utf-8")
        told = score(task, path)
        parts = {k: v for k, v in told.items() if k not in ("task", "n", "dropped_lines")}
        found[f"{at}: {row['model_pred']!r} for {row['gt']!r}"] = parts
    return found


def test_published_predictions(golden, real_data):
    folder = real_data / "leval" / "predictions" / "turbo-16k-0613"
    golden("scores/published.json", {t: score(t, folder / f) for t, f in PUBLISHED.items()})


def test_every_file(golden):
    golden("scores/files.json", {t: score(t, PREDICTIONS / f"{t}.jsonl") for t in TASKS})


@pytest.mark.parametrize("task", TASKS)
def test_every_answer(golden, task, tmp_path):
    golden(f"scores/{task}.json", one_by_one(task, tmp_path))


def test_printed(golden):
    with inside(PREDICTIONS):
        told = [fine("score", "--task", f"leval_{task}", f"{task}.jsonl") for task in TASKS]
    golden("scores/printed.txt", "".join(told))
