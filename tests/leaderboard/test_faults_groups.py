"""Other people's groups, units and forms: what was ranked together, dropped or turned round."""

import json
import time

import pytest
from plain_output import ACC, ROPE, STAMP, build_tables_of, entries, sample, write

from leval_harness.analysis import analyse
from leval_harness.old_results import load_results
from leval_harness.old_tables import build_tables


def grouped(folder, members, **top):
    """A results file with a group `g` of some tasks: name -> (accuracy, few-shot count)."""
    figures = {name: {"acc,none": acc, "sample_len": 20} for name, (acc, _) in members.items()}
    mean = sum(acc for acc, _ in members.values()) / len(members)
    group = {"g": {"alias": "g", "acc,none": mean}}
    content = {
        "results": {**group, **figures},
        "groups": group,
        "group_subtasks": {"g": list(members), **{name: [] for name in members}},
        "n-shot": {name: shots for name, (_, shots) in members.items()},
        "model_name": "org/model",
        **top,
    }
    folder.mkdir()
    (folder / f"results_{STAMP}.json").write_text(json.dumps(content))


ALIKE = {"x": (0.5, 0), "y": (0.6, 5)}
OTHERWISE = {
    "another task": ({"x": (0.5, 0), "z": (0.8, 5)}, {}),
    "one task more": ({**ALIKE, "z": (0.8, 5)}, {}),
    "which task has which count": ({"x": (0.5, 5), "y": (0.7, 0)}, {}),
    "version": ({"x": (0.5, 0), "y": (0.7, 5)}, {"versions": {"g": 2.0}}),
    "weights": (
        {"x": (0.5, 0), "y": (0.7, 5)},
        {"configs": {"g": {"aggregate_metric_list": [{"metric": "acc", "weight_by_size": False}]}}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", OTHERWISE)
def test_groups_that_hold_something_else_are_not_ranked(tmp_path, what):
    members, top = OTHERWISE[what]
    grouped(tmp_path / "a", ALIKE)
    grouped(tmp_path / "b", members, **top)
    first, second = (entry for entry in entries(tmp_path) if entry.task == "g")
    assert first.block != second.block
    assert (first.rank, second.rank) == (None, None)


def test_groups_of_the_same_tasks_are_ranked(tmp_path):
    grouped(tmp_path / "a", ALIKE)
    grouped(tmp_path / "b", {"y": (0.8, 5), "x": (0.5, 0)})
    assert [entry.rank for entry in entries(tmp_path) if entry.task == "g"] == [2, 1]


@pytest.mark.parametrize("there", ["results", "groups"])
def test_a_group_in_one_place_alone_is_a_group(tmp_path, there):
    grouped(tmp_path / "a", ALIKE)
    path = next(tmp_path.rglob("*.json"))
    content = json.loads(path.read_text())
    if there == "results":
        del content["groups"]
    else:
        del content["results"]["g"]
    path.write_text(json.dumps(content))
    scores = {score.task: score for score in load_results(tmp_path).scores}
    assert (scores["g"].value, scores["g"].members) == (pytest.approx(0.55), 2)
    assert scores["x"].group == "g"


def test_groups_within_groups_are_read_in_no_time(tmp_path):
    """Each holds the twenty behind it; the first stands for all."""
    names = [f"g{at:03d}" for at in range(200)]
    inside = {name: [*names[at + 1 : at + 21], f"t{at}"] for at, name in enumerate(names)}
    values = {name: {"acc,none": 0.5} for name in names}
    tasks = {f"t{at}": {"acc,none": 0.25} for at in range(len(names))}
    content = {"results": values | tasks, "groups": values, "group_subtasks": inside}
    (tmp_path / "results_x.json").write_text(json.dumps(content))
    began = time.process_time()
    found = load_results(tmp_path).scores
    assert time.process_time() - began < 5
    assert {each.task: each.group for each in found} == {
        "g000": "", **dict.fromkeys([*names[1:], *tasks], "g000")
    }  # fmt: skip
    assert [each.task for each in found if each.primary] == ["g000"]


def test_a_group_without_its_tasks_is_shown(tmp_path):
    grouped(tmp_path / "a", ALIKE)
    path = next(tmp_path.rglob("*.json"))
    content = json.loads(path.read_text())
    content["results"] = {"g": content["results"]["g"], "other": {"acc,none": 0.1}}
    path.write_text(json.dumps(content))
    found = {score.task: score.value for score in load_results(tmp_path).scores}
    assert found == {"g": pytest.approx(0.55), "other": 0.1}


def test_percent_and_fractions_of_one_metric_are_not_ranked(tmp_path):
    for at, (value, method) in enumerate(((80.0, {"pretrained": "m"}), (0.79, ROPE))):
        write(tmp_path / f"{at}", {"acc,none": value}, config={"model_args": method})
    percent, fraction = entries(tmp_path)
    assert percent.block != fraction.block
    assert (percent.rank, fraction.rank) == (None, None)


@pytest.mark.parametrize(("task", "metric"), [("squadv2", "f1"), ("squadv2", "exact"),
                                              ("scrolls_qasper", "f1")])  # fmt: skip
def test_a_task_that_writes_percent_is_not_scaled(tmp_path, task, metric):
    write(tmp_path, {f"{metric},none": 0.9}, task)
    (score,) = load_results(tmp_path).scores
    assert score.percent == 1


@pytest.mark.parametrize(("metric", "stated", "ranks"), [
    ("wer", True, [1, 2]), ("ece", True, [1, 2]), ("wer", None, [2, 1]), ("acc", False, [2, 1]),
    ("word_perplexity", True, [None, None]), ("loss", True, [None, None]),
    ("word_perplexity", None, [2, 1]), ("score", None, [None, None]), ("score", False, [2, 1]),
])  # fmt: skip
def test_a_direction_is_the_files_own(tmp_path, metric, stated, ranks):
    for at, (value, method) in enumerate(((4.0, {"pretrained": "m"}), (3.0, ROPE))):
        write(tmp_path / f"{at}", {f"{metric},none": value}, better={metric: stated},
              config={"model_args": method})  # fmt: skip
    assert [entry.rank for entry in entries(tmp_path)] == ranks


def test_a_direction_that_the_task_alone_states_is_kept(tmp_path):
    listed = [{"metric": "mae", "higher_is_better": False}]
    for at, (value, method) in enumerate(((4.0, {"pretrained": "m"}), (3.0, ROPE))):
        write(tmp_path / f"{at}", {"mae,none": value}, better={"mae": None},
              fields={"metric_list": listed}, config={"model_args": method})  # fmt: skip
    assert [entry.rank for entry in entries(tmp_path)] == [2, 1]


@pytest.mark.parametrize("hashes", [{}, {"task_hashes": {"arc": "ab"}}])
def test_chosen_questions_are_ranked_where_they_are_known_to_be_the_same(tmp_path, hashes):
    """lm-eval's `--samples` leaves no word of which questions were asked."""
    for at, (value, method) in enumerate(((0.4, {"pretrained": "m"}), (0.8, ROPE))):
        counts = {"n-samples": {"arc": {"original": 20, "effective": 5}}}
        write(tmp_path / f"{at}", {"acc,none": value}, config={"model_args": method}, **counts,
              **hashes)  # fmt: skip
    assert [entry.rank for entry in entries(tmp_path)] == ([2, 1] if hashes else [None, None])


def test_a_part_of_the_questions_is_said_as_a_part(tmp_path):
    write(tmp_path, ACC, config={"limit": 0.1})
    (entry,) = entries(tmp_path)
    assert entry.block.endswith("partial: the first 10% of each task's questions")


def test_a_count_is_no_metric(tmp_path):
    write(tmp_path, {"sample_len": 20, "sample_count": {"acc": 20}})
    (score,) = load_results(tmp_path).scores
    assert (score.status, score.note) == ("malformed", "no metric in the results file")


@pytest.mark.parametrize("left", ["doc_hash", "prompt_hash"])
def test_samples_without_a_number_are_told_by_their_hashes(tmp_path, left):
    rows = [sample(at, float(at % 2)) for at in range(20)]
    kept = ("filter", "metrics", "acc", left, "target_hash", "doc", "resps")
    write(tmp_path, ACC, samples=[{key: row[key] for key in kept} for row in rows])
    (score,) = load_results(tmp_path).scores
    assert (score.value, score.n, score.from_samples) == (0.5, 20, True)
    assert build_tables(analyse(load_results(tmp_path)))


def test_a_share_counts_each_question_once(tmp_path):
    """A task with two filters weighed twice as much as one with one."""
    filters = {"gsm": ("a", "b"), "arc": ("none",)}
    for task, chosen in filters.items():
        rows = [
            sample(at, float(at % 2), "exact_match", each) | {"reached_limit": float(task == "gsm")}
            for at in range(20)
            for each in chosen
        ]
        figures = {
            name: {f"exact_match,{each}": 0.5 for each in of_task}
            for name, of_task in filters.items()
        }
        write(tmp_path, {}, task, samples=rows, results=figures)
    (table,) = build_tables_of(tmp_path)
    place = [column.label for column in table.columns].index("Hit max tokens")
    assert table.blocks[0].rows[0].cells[place].text == "50.0"


@pytest.mark.parametrize(("metric", "bounds"), [("exact_match", (0.5, 0.75)), ("wer", (0.75, 0.5))])
def test_all_wrong_is_the_worse_end(tmp_path, metric, bounds):
    """Answers whose thinking was cut: an error rate of 1 is wrong, an accuracy of 1 right."""
    rows = [
        sample(at, float(at % 2), metric) | {"thinking_unfinished": float(at % 4 == 0)}
        for at in range(20)
    ]
    write(tmp_path, {f"{metric},none": 0.5}, samples=rows)
    (score,) = load_results(tmp_path).scores
    assert (score.if_wrong, score.if_right) == bounds
