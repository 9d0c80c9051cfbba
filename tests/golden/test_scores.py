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


def each_alone(task, folder):
    """A table of the scores of each answer for each reference: one cannot hide behind another."""
    lines = (PREDICTIONS / f"{task}.jsonl").read_text(encoding="utf-8").split("\n")
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    cells = {}
    for row in rows:
        path = folder / "one.jsonl"
        path.write_text(json.dumps(row) + "\n", encoding="utf-8")
        cells[row["model_pred"], row["gt"]] = cell(score(task, path))
    references = list(dict.fromkeys(row["gt"] for row in rows))
    width = max(map(len, cells.values()))
    yield f"{task} for {', '.join(map(repr, references))}\n"
    for answer in dict.fromkeys(row["model_pred"] for row in rows):
        numbers = (cells[answer, reference].rjust(width) for reference in references)
        yield f"  {' '.join(numbers)}  {answer!r}\n"


def cell(parts):
    """`SCORE|STRICT?/FURTHER`: the strict score where it differs, `?` where nothing was read."""
    parts = {name: value for name, value in parts.items() if name not in NOT_OF_ONE}
    first, strict, unparsed = (
        parts.pop(name) for name in ("exact_match", "exact_match_strict", "unparsed")
    )
    assert unparsed in (0, 100)
    text = f"{first:g}" + (f"|{strict:g}" if strict != first else "") + "?" * (unparsed > 0)
    return "/".join([text, *(f"{value:g}" for value in parts.values())])


def test_published_predictions(golden, real_data):
    folder = real_data / "leval" / "predictions" / "turbo-16k-0613"
    scores = {task: json.dumps(score(task, folder / file)) for task, file in PUBLISHED.items()}
    golden("scores-published.txt", "".join(f"{task}: {each}\n" for task, each in scores.items()))


def test_every_answer(golden, tmp_path):
    golden("scores.txt", "".join(line for task in TASKS for line in each_alone(task, tmp_path)))


def test_printed(golden):
    with inside(PREDICTIONS):
        told = [fine("score", "--task", f"leval_{task}", f"{task}.jsonl") for task in TASKS]
    golden("scores-printed.txt", "".join(told))
