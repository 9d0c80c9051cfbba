"""Prediction files: published scores, one scorer with the lm-eval task, files that are refused."""

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from leval_harness.cli.score import score as score_command
from leval_tasks.closed import predictions
from leval_tasks.closed.catalog import ENTRIES, ClosedTask, marks_in, task_named
from leval_tasks.closed.task import LEvalClosedTask
from leval_tasks.closed.thinking import opens_thinking
from leval_tasks.common.errors import DataError
from leval_tasks.common.lm_task import QuestionFilter
from resonance_vllm.common.errors import SettingError

SHAPES = Path(__file__).parents[1] / "golden" / "predictions"
# the official scorer at HEAD: records, score, scored 1, scored 0.25
OFFICIAL = {
    "coursera": (172, 63.5174, 99, 41),
    "gsm": (100, 84.0, 84, 0),
    "quality": (202, 61.3861, 124, 0),
    "toefl": (269, 78.4387, 211, 0),
    "codeu": (90, 12.2222, 11, 0),
    "topic_retrieval": (150, 79.3333, 119, 0),
}


def published(real_data: Path, key: str) -> Path:
    name = Path(task_named(key).file).stem
    return real_data / "leval" / "predictions" / "turbo-16k-0613" / f"{name}.pred.jsonl"


def write(path: Path, *lines: object) -> Path:
    text = "".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines)
    path.write_text(text, encoding="utf-8")
    return path


def scored(task: str, path: Path, *options: str) -> dict[str, Any]:
    result = CliRunner().invoke(score_command, ["--task", task, str(path), "--json", *options])
    assert result.exit_code == 0, (result.output, result.exception)
    return json.loads(result.stdout)


@pytest.mark.parametrize("key", OFFICIAL)
def test_published_scores(real_data, key):
    n, score, ones, quarters = OFFICIAL[key]
    path = published(real_data, key)
    task, read = task_named(key), predictions.read(path)
    judged = [task.rule.judge(response, gold).score for response, gold in read.pairs.values()]
    assert (judged.count(1.0), judged.count(0.25)) == (ones, quarters)
    row = scored(f"leval_{key}", path)
    assert (row["task"], row["n"], row["exact_match"]) == (key, n, score)
    if key == "topic_retrieval":
        assert (row["first"], row["second"], row["third"]) == (96.0, 98.0, 44.0)


THINKING = (
    "",
    "<think>A? True. The answer is 4.</think>\n",
    "<think>cut: B, false [",
    "A? False. 7</think> ",
    "a</think>\n<think>or C: ",
)


def shapes(task: ClosedTask) -> tuple[list[str], list[str]]:
    """Each shape of an answer that published predictions have, in our words, and references."""
    lines = (SHAPES / f"{task.key}.jsonl").read_text("utf-8").split("\n")
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    answers = {row["model_pred"]: None for row in rows}
    return list(answers), list({row["gt"]: None for row in rows})


def responses_of(task: ClosedTask) -> Iterator[tuple[list[str], str]]:
    """Responses to the prompts of a question, with thinking and cut thinking before them."""
    answers, golds = shapes(task)
    if task.second_question:
        pieces = ["True", "false.", "Yes", "untrue [fact", ""]
        each = [thinking + piece for thinking in THINKING for piece in pieces]
        pairs = [list(pair) for pair in itertools.product(each, each)]
        yield from ((pair, golds[at % len(golds)]) for at, pair in enumerate(pairs))
    else:
        for thinking, answer, gold in itertools.product(THINKING, answers, golds):
            yield [thinking + answer], gold


def by_lm_eval(task: LEvalClosedTask, responses: list[str], gold: str) -> dict[str, float]:
    """What lm-eval is given of a question, and its marks."""
    doc = {"document_id": "0", "question_id": 0, "gold": gold, "cluster": "0"}
    described = QuestionFilter(task._describe).apply(
        [[r] for r in responses], [doc] * len(responses)
    )
    found = task.process_results(doc, described) | marks_in(json.loads(json.dumps(described)))
    return {name: found[name] for name in found if not name.endswith("_stderr")}


def compared(key: str, cases: Any, path: Path, opened: bool = False) -> int:
    """Score each response both ways; returns how many there were."""
    made = LEvalClosedTask({"task": task_named(key).name, "metadata": {"data_dir": "sample"}})
    made._thinking_opened = opened
    count = 0
    for responses, gold in cases:
        text = made.closed.rule.join(responses)
        write(path, {"gt": gold, "model_pred": text})
        row = scored(key, path, *["--thinking-opened"] * opened)
        for name, value in by_lm_eval(made, responses, gold).items():
            if name in row:
                assert row[name] == pytest.approx(100 * value, abs=1e-4), (name, responses, gold)
        count += 1
    return count


@pytest.mark.slow
@pytest.mark.parametrize("opened", [False, True])
def test_score_and_the_task_agree_on_every_response(tmp_path, opened):
    path = tmp_path / "one.jsonl"
    some = slice(None, None, 3 if opened else 1)
    cases = {task.key: list(responses_of(task))[some] for task in ENTRIES}
    counts = [compared(key, each, path, opened) for key, each in cases.items()]
    assert sum(counts) > (700 if opened else 2000)


@pytest.mark.parametrize("key", OFFICIAL)
def test_score_and_the_task_agree_on_published_responses(real_data, tmp_path, key):
    pairs = predictions.read(published(real_data, key)).pairs.values()
    cases = [([response], gold) for response, gold in pairs]
    assert compared(key, cases, tmp_path / "one.jsonl") == OFFICIAL[key][0]


def test_thinking_is_not_scored(tmp_path):
    path = write(
        tmp_path / "p.jsonl",
        {"gt": "C", "m_pred": "<think>A</think>C"},
        {"gt": "C", "m_pred": "<think>C"},
        {"gt": "C", "m_pred": "A?</think>C"},
        {"gt": "C", "m_pred": "C, or A"},
    )
    assert scored("toefl", path)["exact_match"] == 75.0
    assert scored("toefl", path, "--thinking-opened")["exact_match"] == 50.0
    assert scored("toefl", path, "--end-of-thinking", "")["exact_match"] == 50.0


def test_opens_thinking_within_the_prompts_tail():
    assert opens_thinking("<think>" + "x" * 93, "</think>")
    assert not opens_thinking("<think>" + "x" * 94, "</think>")


def refused(task: ClosedTask, path: Path) -> str:
    result = CliRunner().invoke(score_command, ["--task", task.key, str(path)])
    assert isinstance(result.exception, SettingError), (task.key, path, result.output)
    return str(result.exception)


@pytest.mark.parametrize("key", OFFICIAL)
def test_published_predictions_of_another_task_are_refused(real_data, tmp_path, key):
    """By the references: neither the file's name nor its responses say what it is."""
    rows = [json.loads(line) for line in published(real_data, key).open(encoding="utf-8")]
    kept = [{"gt": row["gt"], "x_pred": "A"} for row in rows]
    for task in ENTRIES:
        path = write(tmp_path / f"{task.key}.pred.jsonl", *kept)
        if task.key == key:
            assert scored(key, path)["n"] == len(rows)
        else:
            assert "the file is not of" in refused(task, path)
            assert "the file is not of" in refused(task, write(path, *kept[:25]))


OWN = {
    "coursera": ["AC", "B", "ABD", "D"],
    "gsm": ["18", "1,000", "So 3 + 4. The answer is 7."],
    "quality": ["(B) the blue one", "(A) 4 o'clock"],
    "toefl": ["B", "C", "A"],
    "codeu": ["[6 15]", "True", "4467", "a b"],
    "sfiction": ["True [fact: False]", "False [fact: False]"],
    "topic_retrieval": ["The role of art in society", "Whales"],
}
# what the references alone cannot tell apart: few letters, numbers or words may be of either
EITHER = {
    ("toefl", "coursera"),
    ("toefl", "quality"),
    ("gsm", "codeu"),
    ("topic_retrieval", "codeu"),
}


@pytest.mark.parametrize(("of", "task"), [*itertools.product(OWN, OWN)])
def test_predictions_refused_by_form_of_references(tmp_path, of, task):
    path = write(tmp_path / "p.jsonl", *({"gt": gold, "x_pred": ""} for gold in OWN[of]))
    if of == task or (of, task) in EITHER:
        assert scored(task, path)["n"] == len(OWN[of])
    else:
        assert f"the file is not of {task}" in refused(task_named(task), path)


def test_predictions_of_another_published_task_refused(tmp_path, monkeypatch):
    golds = [*"ABCD" * 6]  # which may be of Coursera, TOEFL or QuALITY
    path = write(tmp_path / "p.jsonl", *({"gt": f"{gold} ", "x_pred": ""} for gold in golds))
    digest = hashlib.sha256("\n".join(golds[:20]).encode()).hexdigest()[:16]
    coursera = task_named("coursera")
    known = dataclasses.replace(coursera, first_references=digest)
    others = [task for task in ENTRIES if task != coursera]
    monkeypatch.setattr(predictions, "ENTRIES", (known, *others))
    assert "its references are those of coursera" in refused(task_named("toefl"), path)


def test_a_few_odd_references_are_no_other_task(tmp_path):
    rows = [{"gt": gold, "x_pred": ""} for gold in ["B"] * 19 + ["none of them"]]
    path = write(tmp_path / "p.jsonl", *rows)
    assert scored("toefl", path)["n"] == 20
    write(path, *rows[10:])  # one of ten
    assert "1 of its 10 references have another form" in refused(task_named("toefl"), path)


def test_predictions_excluded_as_by_official_scorer(tmp_path):
    kinds = ["exam", "human", "LLM", "f1", "rouge", 3]
    rows = [{"gt": "A", "m_pred": "B" if n else "A", "evaluation": k} for n, k in enumerate(kinds)]
    path = tmp_path / "p.jsonl"
    path.write_text("\ufeff" + json.dumps(rows[0]) + "\n{broken\n", encoding="utf-8")
    with path.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows[1:])
    row = scored("toefl", path)
    assert (row["n"], row["dropped_lines"], row["skipped_records"]) == (3, 1, 3)
    assert row["exact_match"] == 33.3333
    with pytest.raises(DataError, match="of 2 records is none of f1, rouge, exam"):
        predictions.read(write(path, *rows[1:3]))


def test_positions_go_by_the_place_in_the_file_as_officially(tmp_path):
    kinds = ["exam", "human", "exam", "exam"]  # first, second, third, first
    answers = ["rightly", "rightly", "rightly", "wrong"]
    rows = [
        {"gt": "rightly", "m_pred": a, "evaluation": k} for a, k in zip(answers, kinds, strict=True)
    ]
    row = scored("topic_retrieval", write(tmp_path / "p.jsonl", *rows))
    assert (row["first"], row["third"], row["exact_match"]) == (50.0, 100.0, 66.6667)
    assert "second" not in row


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ((), "holds nothing to score: 0 lines are not JSON"),
        (("not json",), "holds nothing to score: 1 lines are not JSON"),
        (({"gt": "A", "prediction": "A"},), "line 1: a record needs text under '…_pred' and 'gt'"),
        (({"gt": "A", "m_pred": "A"}, {"gt": "A"}), "line 2: .* needs text under 'm_pred'"),
        (({"m_pred": "A"},), r"line 1: .*it is \{'m_pred': 'A'\}"),
        (("[1]",), r"line 1: a record needs .*it is \[1\]"),
    ],
)
def test_bad_files_are_named(tmp_path, lines, message):
    with pytest.raises(DataError, match=message):
        predictions.read(write(tmp_path / "p.jsonl", *lines))
