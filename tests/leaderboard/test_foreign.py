"""Results of other people, as public repositories hold them: nothing dropped or mixed up."""

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner

from leval_harness.cli.main import app
from leval_harness.compared import compare
from leval_harness.results import load_results

FOREIGN = Path(__file__).parent / "foreign"
FOLDERS = sorted(path.name for path in FOREIGN.iterdir() if path.is_dir())
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


def known_of(task, metric):
    return KNOWN_OF_TASK[task, metric] if (task, metric) in KNOWN_OF_TASK else KNOWN[metric]


def stated(folder):
    """Every finite number in the files of a folder: (task, metric, filter, number)."""
    for path in folder.glob("*.json"):
        results = json.loads(path.read_text())["results"]
        for task, values in results.items():
            for key, value in values.items():
                metric, _, chosen = key.partition(",")
                is_number = isinstance(value, float) and math.isfinite(value)
                if is_number and not metric.endswith("_stderr"):
                    yield task, metric, chosen, value


def test_each_layout_says_where_it_is_from():
    assert len(FOLDERS) >= 9
    sources = json.loads((FOREIGN / "SOURCES.json").read_text())
    for name in FOLDERS:
        files = {path.name for path in (FOREIGN / name).iterdir()}
        assert files == set(sources[name]["files"])
        for source in sources[name]["files"].values():
            assert len(source["commit"]) == 40
            assert source["licence"]


@pytest.mark.parametrize("name", FOLDERS)
def test_every_number_is_there_in_its_own_unit_and_direction(name):
    compared = compare(load_results(FOREIGN / name))
    keys = ["task", "name", "filter", "value"]
    found = compared[compared["value"].notna()].set_index(keys)
    expected = list(stated(FOREIGN / name))
    assert set(expected) == set(found.index)
    assert found["status"].eq("done").all()
    for task, metric, chosen, value in expected:
        rows, (times, higher) = found.loc[[(task, metric, chosen, value)]], known_of(task, metric)
        assert (rows["unit"] == "share").tolist() == [times == 100] * len(rows)
        said = rows["higher_is_better"].astype(object)
        assert said.where(said.notna(), None).tolist() == [higher] * len(rows)


def test_groups_stand_beside_their_tasks():
    scores = load_results(FOREIGN / "nested_groups").scores
    groups = scores.groupby("task")["group"].first()
    assert groups["mmlu"]
    assert not groups["arc_easy"]
    assert groups.any()


def test_what_is_no_number_is_named():
    scores = load_results(FOREIGN / "served_model").scores.set_index("task")
    assert scores.loc["polymer_tg_prediction", "status"] == "not available"
    assert scores.loc["polymer_tg_prediction", "note"] == "lm-eval wrote inf"


def test_partial_runs_are_marked():
    for name in FOLDERS:
        partial = set(load_results(FOREIGN / name).scores["partial"])
        assert partial == {name in ("percent_and_limit", "chat_template_and_samples")}


def test_all_of_them_in_one_table_are_mixed_in_no_block():
    results = load_results(FOREIGN)
    compared = compare(results)
    assert not results.left_out
    assert (compared.groupby("block")["model"].nunique() == 1).all()
    assert (compared.groupby("block")["partial"].nunique() == 1).all()
    ran = CliRunner().invoke(app, ["table", str(FOREIGN)])
    assert ran.exit_code == 0, ran.output
