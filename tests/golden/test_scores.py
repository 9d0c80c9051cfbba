"""Scores of prediction files: the published ones, and one for every shape of an answer."""

import json

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
NOT_OF_ONE = ("task", "n", "dropped_lines")


def score(task, path):
    return json.loads(fine("score", "--task", task, path, "--json"))


def one_by_one(task, folder):
    """Each answer's own score: a wrong one cannot hide behind another."""
    lines = (PREDICTIONS / f"{task}.jsonl").read_text(encoding="utf-8").split("\n")
    for row in [json.loads(line) for line in lines if line.startswith("{")]:
        path = folder / "one.jsonl"
        path.write_text(json.dumps(row) + "\n", encoding="utf-8")
        parts = {k: v for k, v in score(task, path).items() if k not in NOT_OF_ONE}
        numbers = " ".join(f"{name} {value:g}" for name, value in parts.items())
        yield f"{task}: {row['model_pred']!r} for {row['gt']!r}: {numbers}\n"


def test_published_predictions(golden, real_data):
    folder = real_data / "leval" / "predictions" / "turbo-16k-0613"
    scores = {task: json.dumps(score(task, folder / file)) for task, file in PUBLISHED.items()}
    golden("scores-published.txt", "".join(f"{task}: {each}\n" for task, each in scores.items()))


def test_every_answer(golden, tmp_path):
    golden("scores.txt", "".join(line for task in TASKS for line in one_by_one(task, tmp_path)))


def test_printed(golden):
    with inside(PREDICTIONS):
        told = [fine("score", "--task", f"leval_{task}", f"{task}.jsonl") for task in TASKS]
    golden("scores-printed.txt", "".join(told))
