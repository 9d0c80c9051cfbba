"""Verification: every figure from the samples, every answer judged again, the rest by name."""

import json
import math
import statistics
from pathlib import Path

import fixture_results as make
import pytest

from leval_harness.old_results import load_results
from leval_harness.old_results.verify import verify


def samples_of(task, skill=0.5):
    """Samples whose logged metrics are those that the official rule gives their answers."""
    rows = []
    for at, row in enumerate(make.closed_samples(task, skill, 1)):
        right = bool(row["exact_match"])
        gold = row["doc"]["gold"]
        metrics = {"exact_match": float(right), "exact_match_strict": float(right)}
        resps = [[gold if right else ""]]
        if task == "leval_closed_sfiction":
            gold = "True [fact: False]"
            parts = {"loyalty": float(right), "factuality": float(at % 2)}
            resps = [["True" if right else "False"], ["It is false." if at % 2 else "true"]]
            metrics = {"exact_match": sum(parts.values()) / 2, **parts}
            metrics["exact_match_strict"] = metrics["exact_match"]
        if task == "leval_closed_topic_retrieval":
            gold = f"The history of {gold}"
            resps = [[f"the topic was: {gold}." if right else "no idea"]]
            place = row["doc"]["question_id"] % 3
            for position, name in enumerate(("first", "second", "third")):
                metrics[name] = float(right) if position == place else None
        unparsed, full = resps == [[""]], metrics["exact_match"] == 1.0
        metrics["exact_match_stderr"] = [row["doc"]["cluster"], metrics["exact_match"]]
        read = [["x", "unparsed" if unparsed else "right" if full else "wrong"]]
        kept = {k: v for k, v in row.items() if k not in row["metrics"]}
        rows.append({**kept, "doc": {**row["doc"], "gold": gold}, "resps": resps,
                     "filtered_resps": read, "metrics": list(metrics), **metrics})  # fmt: skip
    return rows


def by_document(rows):
    """The clustered standard error (CR2), written out."""
    mean = statistics.fmean(row["exact_match"] for row in rows)
    residuals = {}
    for row in rows:
        residuals.setdefault(row["doc"]["cluster"], []).append(row["exact_match"] - mean)
    groups = residuals.values()
    squares = [sum(group) ** 2 / (1 - len(group) / len(rows)) for group in groups]
    return math.sqrt(sum(squares)) / len(rows)


def write(tmp_path, task, rows, **wrong):
    """A cell of one task; `wrong` replaces figures of its results file."""
    numbers = [{k: v for k, v in row.items() if k != "exact_match_stderr"} for row in rows]
    for row in numbers:
        row["metrics"] = [
            m for m in row["metrics"] if m != "exact_match_stderr" and row[m] is not None
        ]
    parts = [m for m in ("first", "second", "third") if m in rows[0]["metrics"]]
    figures = {f"{m},none": statistics.fmean(r[m] for r in rows if r[m] is not None) for m in parts}
    numbers[0]["metrics"] = [m for m in numbers[0]["metrics"] if m not in parts]
    cell = make.write_cell(tmp_path / "r", "x1", {task: numbers})
    logged = "".join(json.dumps(row) + "\n" for row in rows)
    next(cell.glob("samples_*")).write_text(logged)
    path = next(cell.glob("results_*"))
    content = json.loads(path.read_text())
    figures["exact_match_stderr,none"] = by_document(rows)
    content["results"][task] |= figures | {f"{k},none": v for k, v in wrong.items()}
    path.write_text(json.dumps(content))
    done = json.loads((cell / "done.json").read_text())
    (cell / "done.json").write_text(json.dumps({**done, "files": {}}))
    return verify(load_results(tmp_path / "r"))


TASKS = ("leval_closed_toefl", "leval_closed_sfiction", "leval_closed_topic_retrieval")


@pytest.fixture(autouse=True)
def topic_retrieval(monkeypatch):
    monkeypatch.setitem(make.SHAPES, "leval_closed_topic_retrieval", (20, 60))


@pytest.mark.parametrize("task", TASKS)
def test_what_is_right_is_confirmed_and_nothing_is_left_out(tmp_path, task):
    rows = samples_of(task)
    outcome = write(tmp_path, task, rows)
    assert outcome.differences == []
    assert outcome.not_recomputed == []
    assert outcome.rescored == len(rows)
    assert outcome.checked == len(rows[0]["metrics"])


@pytest.mark.parametrize(
    ("task", "metric"),
    [
        ("leval_closed_toefl", "exact_match_stderr"),
        ("leval_closed_sfiction", "loyalty"),
        ("leval_closed_sfiction", "factuality"),
        ("leval_closed_topic_retrieval", "second"),
    ],
)
def test_each_figure_that_differs_is_named(tmp_path, task, metric):
    outcome = write(tmp_path, task, samples_of(task), **{metric: 0.123})
    (text,) = outcome.differences
    assert metric in text
    assert "0.123" in text


@pytest.mark.parametrize(
    ("task", "metric"),
    [
        ("leval_closed_toefl", "exact_match_strict"),
        ("leval_closed_sfiction", "loyalty"),
        ("leval_closed_sfiction", "factuality"),
        ("leval_closed_topic_retrieval", "first"),
    ],
)
def test_a_score_that_its_answer_does_not_earn_is_named(tmp_path, task, metric):
    rows = samples_of(task)
    rows[0][metric] = 1.0 - rows[0][metric]  # and the mean with it: only the text can tell
    outcome = write(tmp_path, task, rows)
    (text,) = outcome.differences
    assert "question 0" in text
    assert f"the answer gives {metric}" in text


def test_a_mark_that_its_answer_does_not_earn_is_named(tmp_path):
    rows = samples_of("leval_closed_toefl")
    first = rows[0]["filtered_resps"][0]
    first[1] = "unparsed" if first[1] != "unparsed" else "right"
    differences = write(tmp_path, "leval_closed_toefl", rows).differences
    assert sum("question 0" in text for text in differences) == len(differences) == 2


def test_what_was_thought_before_the_answer_does_not_count(tmp_path):
    rows = samples_of("leval_closed_toefl")
    for row in rows:
        row["resps"] = [[f"Is it B? </think>{row['resps'][0][0]}"]]
    assert write(tmp_path, "leval_closed_toefl", rows).differences  # no setting: all of it counts
    cell = tmp_path / "r" / "x1"
    path = next(cell.glob("results_*"))
    content = json.loads(path.read_text())
    metadata = content["configs"]["leval_closed_toefl"]["metadata"]
    metadata["settings"] = {"end_of_thinking": "</think>"}
    path.write_text(json.dumps(content))
    for row in rows:
        row["filtered_resps"][0].append("thinking_removed")
    logged = "".join(json.dumps(row) + "\n" for row in rows)
    next(cell.glob("samples_*")).write_text(logged)
    assert verify(load_results(tmp_path / "r")).differences == []


def test_perplexities_and_a_whole_sweep(tmp_path):
    make.write_sweep(tmp_path, methods=("none", "yarn"))
    outcome = verify(load_results(tmp_path))
    assert all("the answer gives" in text for text in outcome.differences)  # its texts are made up
    assert outcome.checked == 2 * (2 * (7 * 2 + 2) + 3)  # SFiction has two parts more
    left = [text.rpartition(": ")[2] for text in outcome.not_recomputed]
    assert set(left) == {"64 questions have no logged answer to score again"}  # SFiction needs two


def foreign(tmp_path, values, figures, config=None, **top):
    rows = [
        {"doc_id": at, "doc": {"q": at}, "target": "", "filter": "none", "resps": [],
         "filtered_resps": [], "metrics": list(row), **row}
        for at, row in enumerate(values)
    ]  # fmt: skip
    bare = [{**row, "metrics": []} for row in rows]
    make.write_lm_eval(tmp_path, {"task": bare}, "2026-01-01T00-00-00.1")
    next(tmp_path.glob("samples_*")).write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = next(tmp_path.glob("results_*"))
    content = json.loads(path.read_text())
    content["results"]["task"] = {f"{name},none": value for name, value in figures.items()}
    content["configs"]["task"] = config or {}
    content["results"] |= top.pop("results", {})
    path.write_text(json.dumps({**content, **top}))
    return verify(load_results(tmp_path))


def test_tasks_of_lm_eval_itself(tmp_path):
    numbers = [0.0, 1.0, 1.0, 0.0, 1.0]
    words = [[-20.0, 7], [-30.0, 12], [-25.0, 9], [-10.0, 4], [-15.0, 6]]
    values = [{"acc": a, "word_perplexity": w} for a, w in zip(numbers, words, strict=True)]
    right = {
        "acc": 0.6,
        "acc_stderr": statistics.stdev(numbers) / math.sqrt(5),
        "word_perplexity": math.exp(100 / 38),
    }
    outcome = foreign(tmp_path / "a", values, right)
    assert (outcome.differences, outcome.not_recomputed, outcome.checked) == ([], [], 3)
    outcome = foreign(tmp_path / "b", values, {**right, "acc": 0.7, "acc_stderr": 0.1})
    assert len(outcome.differences) == 2


def test_an_altered_file_is_one_difference(tmp_path):
    """It was two: as the figure that it takes away, and as a file."""
    cell = make.write_cell(tmp_path, "x1", {"leval_closed_gsm": samples_of("leval_closed_gsm")})
    (file,) = cell.glob("samples_*.jsonl")
    file.write_text(file.read_text() + "\n")
    (difference,) = verify(load_results(tmp_path)).differences
    assert ", leval_closed_gsm (" in difference
    assert difference.endswith("altered after the run (SHA-256 differs)")


def test_a_figure_that_is_refused_hides_none_under_another_filter(tmp_path):
    values = [{"acc": 0.0}, {"acc": 1.0}]
    outcome = foreign(tmp_path, values, {}, results={"task": {"acc,none": 0.5, "acc,strict": None}})
    (text,) = outcome.differences
    assert "not a finite number" in text
    assert outcome.checked == 1


def test_what_cannot_be_recomputed_is_named_with_the_reason(tmp_path):
    config = {"metric_list": [{"metric": "f1", "aggregation": "macro_f1"}]}
    values = [{"f1": 1.0, "text": "a"}, {"f1": 0.0, "text": "b"}]
    outcome = foreign(tmp_path / "a", values, {"f1": 0.9, "text": 0.1, "other": 0.2}, config)
    assert outcome.differences == []
    reasons = [text.rpartition(": ")[2] for text in outcome.not_recomputed]
    assert reasons == [
        "the task aggregates it by macro_f1",
        "its values in the samples are neither numbers nor ratios",
        "the samples do not log it",
    ]
    outcome = foreign(tmp_path / "b", values, {"f1": 0.5}, results={"gone": {"acc,none": 0.3}})
    (text,) = outcome.not_recomputed
    assert "gone, acc" in text
    assert text.endswith("no samples were logged")


@pytest.mark.parametrize(("figure", "wrong"), [(0.6, 0), (0.65, 0), (0.7, 1)])
def test_a_groups_figure_is_that_of_its_tasks(tmp_path, figure, wrong):
    groups = {
        "results": {
            "task": {"acc,none": 0.5, "sample_len": 1},
            "other": {"acc,none": 0.7, "sample_len": 3},
        },
        "groups": {"g": {"acc,none": figure}},
        "group_subtasks": {"g": ["task", "other"]},
    }
    outcome = foreign(tmp_path, [{"acc": 0.5}], {}, **groups)
    assert len([text for text in outcome.differences if " g, acc" in text]) == wrong


def test_a_groups_pooled_standard_error_is_not_recomputed():
    outcome = verify(load_results(Path(__file__).parent / "foreign" / "nested_groups"))
    named = [text for text in outcome.not_recomputed if "pooled standard error" in text]
    assert [text.split(", ")[2] for text in named] == ["mmlu_humanities", "mmlu_stem", "mmlu"]
