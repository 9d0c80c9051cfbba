"""Published predictions get the published scores; broken files get a clear error."""

import json
import os
import subprocess
import sys
from pathlib import Path
from threading import Timer

import pytest
from click.testing import CliRunner

from leval_harness.cli import documents as cli
from leval_tasks.closed import predictions
from leval_tasks.closed.catalog import task_named
from leval_tasks.errors import PredictionError

# the official scorer at HEAD: records, score, scored 1, scored 0.25
OFFICIAL = {
    "coursera": ("coursera", 172, 63.5174, 99, 41),
    "gsm": ("gsm100", 100, 84.0, 84, 0),
    "quality": ("quality", 202, 61.3861, 124, 0),
    "toefl": ("tpo", 269, 78.4387, 211, 0),
    "codeu": ("codeU", 90, 12.2222, 11, 0),
    "topic_retrieval": ("topic_retrieval_longchat", 150, 79.3333, 119, 0),
}


def published(real_data: Path, rule: str) -> Path:
    folder = real_data / "leval" / "predictions" / "turbo-16k-0613"
    return folder / f"{OFFICIAL[rule][0]}.pred.jsonl"


@pytest.mark.parametrize("rule", OFFICIAL)
def test_published_scores(real_data, rule):
    _, n, score, ones, quarters = OFFICIAL[rule]
    path = published(real_data, rule)
    read = predictions.read(path)
    judged = [task_named(rule).rule.judge(response, gold) for response, gold in read.pairs]
    assert sum(j.score == 1 for j in judged) == ones
    assert sum(j.score == 0.25 for j in judged) == quarters
    result = CliRunner().invoke(cli.score, ["--task", f"leval_{rule}", str(path), "--json"])
    row = json.loads(result.stdout)
    assert (row["task"], row["n"], row["exact_match"]) == (rule, n, score)
    if rule == "topic_retrieval":
        assert (row["first"], row["second"], row["third"]) == (96.0, 98.0, 44.0)


def full_marks(name, golds):
    task = task_named(name)
    rows = [task.score_judged(task.rule.judge(gold, gold), at) for at, gold in enumerate(golds)]
    return task.aggregate(rows)


def test_gold_answers_score_full_marks(real_data):
    for rule in OFFICIAL:
        golds = [gold for _, gold in predictions.read(published(real_data, rule)).pairs]
        summary = full_marks(rule, golds)
        expected = 88 / 90 if rule == "codeu" else 1.0
        assert summary["exact_match"] == pytest.approx(expected), rule
    lines = (real_data / "leval/closed/sci_fi.jsonl").read_text("utf-8").split("\n")
    golds = [gold for line in lines if line for gold in json.loads(line)["outputs"]]
    summary = full_marks("sfiction", golds)
    assert (len(golds), summary["loyalty"], summary["factuality"]) == (64, 1.0, 1.0)


def write(path: Path, *lines: object) -> Path:
    text = "".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines)
    path.write_text(text, encoding="utf-8")
    return path


def test_lines_that_are_not_json_are_dropped_and_counted(tmp_path):
    path = write(
        tmp_path / "p.jsonl", {"gt": "A", "m_pred": "A"}, "{broken", {"gt": "B", "m_pred": "C"}
    )
    result = CliRunner().invoke(cli.score, ["--task", "toefl", str(path), "--json"])
    row = json.loads(result.stdout)
    assert (row["n"], row["dropped_lines"], row["exact_match"]) == (2, 1, 50.0)


def scored(task: str, path: Path) -> dict[str, object]:
    result = CliRunner().invoke(cli.score, ["--task", task, str(path), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_records_that_the_official_scorer_skips_are_skipped_and_counted(tmp_path):
    kinds = ["exam", "human", "LLM", "f1", "rouge", 3]
    rows = [{"gt": "A", "m_pred": "B" if n else "A", "evaluation": k} for n, k in enumerate(kinds)]
    row = scored("toefl", write(tmp_path / "p.jsonl", *rows))
    assert (row["n"], row["skipped_records"], row["exact_match"]) == (3, 3, 33.3333)
    with pytest.raises(PredictionError, match="of none of the 2 records is one of f1, rouge, exam"):
        predictions.read(write(tmp_path / "p.jsonl", *rows[1:3]))


def test_positions_go_by_the_place_in_the_file_as_officially(tmp_path):
    kinds = ["exam", "human", "exam", "exam"]  # first, second, third, first
    answers = ["right", "right", "right", "wrong"]
    rows = [
        {"gt": "right", "m_pred": a, "evaluation": k} for a, k in zip(answers, kinds, strict=True)
    ]
    row = scored("topic_retrieval", write(tmp_path / "p.jsonl", *rows))
    assert (row["first"], row["third"], row["exact_match"]) == (50.0, 100.0, 75.0)
    assert "second" not in row


def test_a_byte_order_mark_drops_nothing(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text('{"gt": "A", "m_pred": "A"}\n', encoding="utf-8-sig")
    row = scored("toefl", path)
    assert (row["n"], row["dropped_lines"], row["exact_match"]) == (1, 0, 100.0)


def test_sfiction_and_unparsed_shares(tmp_path):
    path = write(
        tmp_path / "p.jsonl",
        {"gt": "True [fact: False]", "x_pred": "True [fact: False]"},
        {"gt": "True [fact: False]", "x_pred": "True [fact: maybe]"},
        {"gt": "False [fact: False]", "x_pred": "True [fact: True]"},
    )
    row = json.loads(
        CliRunner().invoke(cli.score, ["--task", "sfiction", str(path), "--json"]).stdout
    )
    assert row == {
        "task": "sfiction",
        "n": 3,
        "exact_match": 50.0,
        "exact_match_strict": 50.0,
        "unparsed": 33.3333,
        "loyalty": 66.6667,
        "factuality": 33.3333,
        "dropped_lines": 0,
    }


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ((), "holds no record: it is empty"),
        (("not json",), "holds no record: none of its 1 lines is JSON"),
        (({"gt": "A", "prediction": "A"},), "line 1: no key contains '_pred'.*gt, prediction"),
        (({"gt": "A", "m_pred": "A"}, {"gt": "A"}), "line 2: m_pred: missing"),
        (({"m_pred": "A"},), "line 1: gt: missing"),
        (({"gt": "A", "m_pred": None},), "line 1: m_pred: None is not allowed; allowed: text"),
        (("[1]",), "line 1: a JSON object is needed, not list"),
    ],
)
def test_bad_files_are_named(tmp_path, lines, message):
    with pytest.raises(PredictionError, match=message):
        predictions.read(write(tmp_path / "p.jsonl", *lines))


def test_unknown_task_has_near_match(tmp_path):
    path = write(tmp_path / "p.jsonl", {"gt": "A", "m_pred": "A"})
    command = [sys.executable, "-m", "leval_harness", "score", "--task", "leval_coursea", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--task: 'leval_coursea' is not allowed; allowed: leval_closed_coursera" in done.stderr
    assert "did you mean 'leval_closed_coursera'" in done.stderr


def test_missing_file():
    with pytest.raises(PredictionError, match=r"nowhere\.jsonl cannot be read: No such file"):
        predictions.read(Path("nowhere.jsonl"))


def test_a_device_is_refused_unread():
    """`/dev/zero` would fill the memory; the one here ends at once."""
    with pytest.raises(PredictionError, match=r"/dev/null is a device; give a file"):
        predictions.read(Path("/dev/null"))


RECORD = '{"gt": "18", "x_pred": "18"}\n'


@pytest.mark.parametrize("late", [0.0, 0.5])
def test_a_pipe_is_read_also_where_the_writer_comes_later(tmp_path, late):
    """`zcat predictions.gz > pipe & score pipe`: either may open it first."""
    path = tmp_path / "predictions.jsonl"
    os.mkfifo(path)
    writer = Timer(late, path.write_text, args=(RECORD,))
    writer.daemon = True  # without a reader it would wait for one
    writer.start()
    assert predictions.read(path).pairs == (("18", "18"),)
