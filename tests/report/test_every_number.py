"""Every number of a results file is in the frame, or in the list of what was left out.

Files are made by lm-eval's own aggregation of generated samples, or found in public places.
"""

import json
import math
import random
from collections import defaultdict
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lm_eval.api.group import AggMetricConfig, Group
from lm_eval.api.metrics import bits_per_byte, f1_score, mean, perplexity, weighted_perplexity
from lm_eval.evaluator_utils import _process_results
from lm_eval.utils import handle_non_serializable

from leval_harness.report.compare import compare
from leval_harness.results.load import load_results

pytestmark = pytest.mark.slow

FOREIGN = Path(__file__).parent / "foreign"
AGGREGATIONS = {
    "acc": mean,
    "exact_match": mean,
    "odd name": mean,
    "f1": f1_score,
    "ppl": perplexity,
    "word_perplexity": weighted_perplexity,
    "bits_per_byte": bits_per_byte,
    "8192": lambda scores: mean([s for s in scores if s >= 0] or [-1.0]),
    "4096": lambda scores: -1.0,
    "nothing": lambda scores: math.nan,
    "as text": lambda scores: "0.125",
    "several": lambda scores: {"a": 0.25, "b": [0.5]},
}
FILTERS = ("none", "strict-match", "flexible, extract")
# metrics whose unit and direction lm-eval's own code says: (times, higher is better, if known)
KNOWN = {
    "acc": (100, True), "acc_norm": (100, True), "exact_match": (100, True), "em": (100, True),
    "f1": (100, True), "multiple_choice_grade": (100, None), "mcc": (1, True), "ppl": (1, False),
    "perplexity": (1, False), "eqbench": (1, True), "percent_parseable": (1, True),
    "likelihood_difference": (1, None), "pct_stereotype": (100, None), "mae": (1, None),
    "exact_str_match": (1, None), "contains": (100, True), "word_perplexity": (1, False),
    "byte_perplexity": (1, False), "bits_per_byte": (1, False), "bleu_acc": (100, True),
    **{f"rouge{n}_acc": (100, True) for n in "12L"},
}  # fmt: skip
# the same name in another unit, or with a direction that the file says for the task and not for
# the group that it is in
KNOWN_OF_TASK = {
    **{("squadv2", f"{of}{kind}"): (1, True) for of in ("", "HasAns_", "NoAns_", "best_")
       for kind in ("exact", "f1")},
    **{(task, f"{kind}_{of}"): (1, known) for task, known in
       (("truthfulqa_gen", True), ("truthfulqa", None))
       for kind in ("bleu", "rouge1", "rouge2", "rougeL") for of in ("max", "diff")},
}  # fmt: skip


class Asked:
    """What lm-eval's aggregation needs of a task."""

    VERSION = 1.0

    def __init__(self, name, questions):
        self.task_name, self.eval_docs = name, range(questions)

    def aggregation(self):
        return AGGREGATIONS

    def higher_is_better(self):
        return {"acc": True, "ppl": False}

    def dump_config(self):
        return {"task": self.task_name, "num_fewshot": 0, "metadata": {"version": 1.0}}


def value_of(metric, rng):
    if metric == "f1":
        return (rng.randint(0, 1), rng.randint(0, 1))
    if metric in ("word_perplexity", "bits_per_byte"):
        return (-rng.uniform(1, 9), rng.randint(1, 9))
    return -rng.random() if metric == "ppl" else float(rng.randint(0, 1))


@st.composite
def evaluations(draw):
    """Questions, metrics and filters of some tasks, and the groups that they are in."""
    metrics = st.lists(st.sampled_from(sorted(AGGREGATIONS)), min_size=1, max_size=4, unique=True)
    filters = st.lists(st.sampled_from(FILTERS), min_size=1, max_size=2, unique=True)
    tasks = draw(st.lists(st.tuples(st.integers(1, 4), metrics, filters), min_size=1, max_size=3))
    return tasks, draw(st.booleans()), draw(st.booleans()), draw(st.integers(0, 99))


def evaluated(tasks, grouped, nested, seed):
    """lm-eval's results of generated samples, and these samples."""
    rng, tasks_of, logged = random.Random(seed), {}, {}
    top, inner = Group("top"), Group("inner")
    for group in (top, inner):
        metrics = (AggMetricConfig(metric=m, aggregation="mean") for m in ("acc", "8192"))
        group.aggregate_metric_list = list(metrics)
    for at, (questions, metrics, filters) in enumerate(tasks):
        task, raw, rows = Asked(f"task{at}", questions), defaultdict(list), []
        for doc in range(questions):
            for chosen in filters:
                row = {m: value_of(m, rng) for m in metrics}
                for metric, value in row.items():
                    raw[metric, chosen].append(value)
                hashes = {f"{part}_hash": f"{part}{doc}" for part in ("doc", "prompt", "target")}
                rows.append({"doc_id": doc, "doc": {}, "filter": chosen, "resps": [["x"]],
                             "metrics": metrics, **hashes, **row})  # fmt: skip
        tasks_of[task.task_name] = {"task": task, "raw_metrics": raw, "logged_samples": rows}
        logged[task.task_name] = rows
        (inner if nested and at else top).add(task)
    if nested:
        top.add(inner)
    groups = {group.name: group for group in (top, inner)[: 1 + nested]} if grouped else {}
    return _process_results(tasks_of, groups, bootstrap_iters=0)._to_eval_results(), logged


def numbers_in(content):
    """`(task, key, number)` of every number in the results and groups of a file."""

    def inside(value):
        if isinstance(value, dict | list):
            for each in value.values() if isinstance(value, dict) else value:
                yield from inside(each)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield value

    for part in ("results", "groups"):
        for task, values in content.get(part, {}).items():
            for key, value in values.items():
                yield from ((task, key, number) for number in inside(value))


def assert_every_number_is_told(path, results):
    content = json.loads(path.read_text())
    told = defaultdict(list)
    for row in results.scores.itertuples():
        if path in results.runs["files"][row.run] and isinstance(row.name, str):
            told[row.task, f"{row.name},{row.filter}"].append(row.value)
            told[row.task, f"{row.name}_stderr,{row.filter}"].append(row.stderr)
            told[row.task, row.name].append(row.value)
            told[row.task, "sample_len"].append(row.asked)
    excluded = {(each.task, each.name) for each in results.excluded if each.file == path}
    assert all(each.reason for each in results.excluded)
    for task, key, number in numbers_in(content):
        same = [each for each in told[task, key] if each == number]
        not_finite = not math.isfinite(number) and told[task, key]  # its row says so
        assert same or not_finite or (task, key) in excluded, (task, key, number)


def written(folder, number, evaluation):
    """Write an evaluation as lm-eval does; return the path of its results file."""
    content, logged = evaluated(*evaluation)
    content["date"] = number  # a copy of a file is not read again
    date = f"2026-01-0{number}T00-00-00.000000"
    path = folder / f"results_{date}.json"
    path.write_text(json.dumps(content, default=handle_non_serializable))
    for task, rows in logged.items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"samples_{task}_{date}.jsonl").write_text(text)
    return path


# Five evaluations are read and compared at once, which takes little longer than one.
@settings(max_examples=2, suppress_health_check=list(HealthCheck), deadline=None)
@given(st.lists(evaluations(), min_size=5, max_size=5))
def test_of_what_lm_eval_aggregates(tmp_path_factory, drawn):
    folder = tmp_path_factory.mktemp("made")
    paths = [written(folder, number, evaluation) for number, evaluation in enumerate(drawn, 1)]
    results = load_results(folder)
    for path in paths:
        assert_every_number_is_told(path, results)
    compared = compare(results)
    assert not compared["status"].eq("malformed").any(), compared["note"].unique()
    finite = results.scores["value"].notna()
    assert compared["value"].equals(results.scores["value"].where(finite)), "lm-eval's own numbers"


@pytest.mark.parametrize("name", sorted(p.name for p in FOREIGN.iterdir() if p.is_dir()))
def test_of_what_others_published(name):
    results = load_results(FOREIGN / name)
    for files in results.runs["files"]:
        for path in files:
            assert_every_number_is_told(path, results)


@pytest.mark.parametrize("name", sorted(p.name for p in FOREIGN.iterdir() if p.is_dir()))
def test_what_others_published_is_in_its_own_unit_and_direction(name):
    rows = compare(load_results(FOREIGN / name)).query("status == 'done'")
    assert len(rows)
    for row in rows.itertuples():
        known = KNOWN_OF_TASK.get((row.task, row.name), KNOWN.get(row.name))
        higher = None if pd.isna(row.higher_is_better) else row.higher_is_better
        assert (100 if row.unit == "share" else 1, higher) == known, (row.task, row.name)


def test_all_of_them_in_one_table_are_mixed_in_no_block():
    results = load_results(FOREIGN)
    compared = compare(results)
    assert not results.excluded
    assert (compared.groupby("block")["model"].nunique() == 1).all()
    assert (compared.groupby("block")["partial"].nunique() == 1).all()
