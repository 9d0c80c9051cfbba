"""Results of other people, as public repositories hold them: nothing dropped or mixed up."""

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner

from leval_harness.analysis import analyse
from leval_harness.cli.main import app
from leval_harness.old_results import load_results
from leval_harness.old_tables import build_tables, details_table, render

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
    results = load_results(FOREIGN / name)
    found = {
        (score.task, score.metric, score.chosen, score.value): score
        for score in results.scores
        if score.finished
    }
    expected = list(stated(FOREIGN / name))
    assert set(expected) == set(found)
    for task, metric, chosen, value in expected:
        score, (times, higher) = found[task, metric, chosen, value], known_of(task, metric)
        assert score.percent == times
        assert score.higher_is_better is higher


@pytest.mark.parametrize("name", FOLDERS)
def test_tables_hold_every_number_or_name_what_is_left_out(name):
    analysis = analyse(load_results(FOREIGN / name))
    tables = build_tables(analysis)
    shown = {
        (cell.entry.task, cell.entry.score.metric, cell.entry.score.chosen)
        for table in tables
        for block in table.blocks
        for row in block.rows
        for cell in row.cells
        if cell.entry
    }
    notes = " ".join(note for table in tables for note in table.notes)
    for entry in analysis.entries:
        score = entry.score
        if (score.task, score.metric, score.chosen) not in shown:
            assert score.group in notes, f"{score.task}, {score.metric} is dropped without a word"
    long = render([details_table(analysis)], "csv")
    for task, metric, *_ in stated(FOREIGN / name):
        assert f",{task},{metric}," in long


def test_what_is_no_number_is_named():
    tables = build_tables(analyse(load_results(FOREIGN / "served_model")))
    assert tables[-1].title == "Without a number"
    assert "polymer_tg_prediction" in tables[-1].blocks[0].rows[0].cells[2].text


def test_partial_runs_are_marked():
    for name in FOLDERS:
        partial = {score.partial for score in load_results(FOREIGN / name).scores}
        assert partial == {name in ("percent_and_limit", "chat_template_and_samples")}


def test_all_of_them_in_one_table_are_mixed_in_no_block():
    analysis = analyse(load_results(FOREIGN))
    assert not analysis.results.warnings
    for entry in analysis.entries:
        rivals = [each for each in analysis.entries if each.block == entry.block]
        assert {each.run.model for each in rivals} == {entry.run.model}
        assert {each.score.partial for each in rivals} == {entry.score.partial}
    ran = CliRunner().invoke(app, ["table", str(FOREIGN)])
    assert ran.exit_code == 0, ran.output
    verified = CliRunner().invoke(app, ["table", str(FOREIGN), "--verify", "--json"])
    differences = json.loads(verified.stdout)["differences"]
    # Infinity is no score; of mmlu's groups most tasks were cut away
    assert [text for text in differences if "mmlu" not in text] == differences[:1]
    assert "not a finite number" in differences[0]
