"""The reader: our cells, plain lm-eval folders, and folders that nobody should trust."""

import json
import math
import shutil
from dataclasses import replace

import fixture_results as make
import pytest

from leval_harness.old_results import ResultsError, load_results
from leval_harness.old_results.fields import refused
from leval_harness.old_results.lm_eval import ResultsFile
from leval_harness.old_results.scores import Score
from leval_harness.old_results.task_scores import chance_level

GSM = make.closed_samples("leval_closed_gsm", 0.4, 1)


def only(results, task="leval_closed_gsm", metric="exact_match"):
    rows = results.frame()
    found = rows[(rows["task"] == task) & (rows["metric"].isin([metric, ""]))]
    assert len(found) == 1
    return found.iloc[0]


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_a_cell_becomes_tidy_rows(tmp_path):
    make.write_cell(tmp_path, "ab12", {"leval_closed_gsm": GSM}, method="yarn")
    results = load_results(tmp_path)
    row = only(results)
    assert (row["model"], row["method"], row["context_length"]) == ("SmolLM2-135M", "yarn", 8192)
    assert row["value"] == pytest.approx(sum(r["exact_match"] for r in GSM) / 100)
    assert (row["n"], row["clusters"], row["status"]) == (100, 100, "done")
    assert row["cut"] == pytest.approx(0.34)
    assert row["tokens_per_second"] == pytest.approx(102000 / 50)
    samples = results.samples[0, "leval_closed_gsm"]
    names = {("exact_match", "none"), ("exact_match_strict", "none")}
    assert set(samples.metrics) == names
    assert samples.ratios("exact_match").numerator.tolist() == [r["exact_match"] for r in GSM]
    assert results.runs[0].command == "leval-harness sweep test.yaml"


def test_several_folders_merge_and_a_run_found_twice_counts_once(tmp_path):
    make.write_cell(tmp_path / "a", "x1", {"leval_closed_gsm": GSM}, method="yarn")
    make.write_cell(tmp_path / "b", "x2", {"leval_closed_gsm": GSM}, method="none")
    shutil.copytree(tmp_path / "a" / "x1", tmp_path / "b" / "x1")
    results = load_results(tmp_path / "a", tmp_path / "b")
    assert len(results.runs) == 2
    assert "twice" in results.warnings[0]


def test_plain_lm_eval_output_is_read(tmp_path):
    rows = [
        {"doc_id": at, "doc": {"q": at}, "target": "1", "filter": "none", "metrics": ["acc"],
         "resps": [["1"]], "filtered_resps": ["1"], "acc": float(at % 2)}
        for at in range(10)
    ]  # fmt: skip
    rope = {"rope_type": "yarn", "factor": 4.0}
    make.write_lm_eval(
        tmp_path / "model", {"arc": rows}, "2026-01-01T00-00-00.1", model_name="org/model",
        config={"model": "hf", "model_args": {"rope_parameters": rope}, "limit": 10.0},
        max_length=4096, original={"arc": 500},
    )  # fmt: skip
    row = only(load_results(tmp_path), "arc", "acc")
    assert (row["model"], row["method"], row["context_length"]) == ("org/model", "yarn x4", 4096)
    assert row["partial"]
    assert row["value"] == 0.5


def test_posgens_main_number_is_its_accuracy_past_the_training_length(tmp_path):
    values = {"ood_accuracy": 0.5, "id_accuracy": 1.0, "accuracy@64-127": 0.75}
    rows = [
        {"doc_id": at, "doc": {"document_id": f"s{at}", "cluster": f"s{at}"}, "filter": "none",
         "resps": [], "filtered_resps": [], "target": "", "metrics": list(values), **values}
        for at in range(5)
    ]  # fmt: skip
    make.write_cell(tmp_path, "x1", {"posgen_cot": rows})
    scores = load_results(tmp_path).frame()
    assert list(scores.loc[scores["primary"], "metric"]) == ["ood_accuracy"]
    assert set(scores["metric"]) == set(values)


def test_runs_stand_in_the_order_of_their_config(tmp_path):
    for name, method, place in (("a", "yarn", 2), ("b", "none", 1), ("c", "linear", 0)):
        make.write_cell(
            tmp_path / "one", name, {"leval_closed_gsm": GSM}, method=method, place=place
        )
    make.write_cell(tmp_path / "two", "a2", {"leval_closed_gsm": GSM}, method="ntk", place=0)
    results = load_results(tmp_path)
    assert [run.method for run in results.runs] == ["linear", "none", "yarn", "ntk"]
    assert list(dict.fromkeys(results.frame()["method"])) == ["linear", "none", "yarn", "ntk"]


def test_a_limit_marks_a_run_as_partial(tmp_path):
    make.write_cell(tmp_path, "x1", {"leval_closed_gsm": GSM[:10]}, limit=10)
    make.write_cell(
        tmp_path,
        "x2",
        {"leval_closed_gsm": GSM[:10]},
        method="none",
        original={"leval_closed_gsm": 100},
    )
    assert load_results(tmp_path).frame()["partial"].all()


def test_a_newer_schema_is_refused(tmp_path):
    cell = make.write_cell(tmp_path, "x1", {"leval_closed_gsm": GSM})
    edit(cell / "cell.json", lambda c: c.update(schema_version=3))
    with pytest.raises(ResultsError, match="schema_version 3 is newer"):
        load_results(tmp_path)


def test_nothing_to_read_is_an_error(tmp_path):
    with pytest.raises(ResultsError, match="no cell"):
        load_results(tmp_path)
    with pytest.raises(ResultsError, match="no such folder"):
        load_results(tmp_path / "absent")


def test_failed_and_unfinished_cells_are_marked(tmp_path):
    cell = make.write_cell(tmp_path, "x1", {"leval_closed_gsm": GSM})
    (cell / "done.json").unlink()
    assert only(load_results(tmp_path))["status"] == "unfinished"
    (cell / "failed.json").write_text('{"kind": "oom", "reason": "out of memory"}')
    row = only(load_results(tmp_path))
    assert (row["status"], row["note"]) == ("failed", "oom: out of memory")
    assert math.isnan(row["value"])


def results_file(cell):
    return next(cell.glob("results_*.json"))


def set_value(value):
    def change(cell):
        path = results_file(cell)
        edit(path, lambda c: c["results"]["leval_closed_gsm"].update({"exact_match,none": value}))
        edit(cell / "done.json", lambda c: c.update(files={}))

    return change


def damage_samples(cell):
    path = next(cell.glob("samples_*"))
    path.write_text(path.read_text().replace('"exact_match": 1.0', '"exact_match": 0.0', 1))


def escape_through_files(cell):
    edit(cell / "done.json", lambda c: c["files"].update({"../../../etc/passwd": "00"}))


def link_outside(cell):
    path = next(cell.glob("samples_*"))
    outside = cell.parent.parent / "outside.jsonl"
    outside.write_text(path.read_text())
    path.unlink()
    path.symlink_to(outside)


def deep(cell):
    (cell / "cell.json").write_text("[" * 100_000)


def long_integer(cell):
    path = results_file(cell)
    path.write_text(path.read_text().replace('"sample_len": 100', '"sample_len": ' + "9" * 6000))
    edit(cell / "done.json", lambda c: c.update(files={}))


BAD = {
    "NaN": set_value(math.nan),
    "infinite": set_value(math.inf),
    "text": set_value("0.9"),
    "true": set_value(True),
    "above one": set_value(1.5),
    "huge": set_value(10**400),
    "disagrees": set_value(0.99),
    "samples altered": damage_samples,
    "results altered": lambda cell: results_file(cell).write_text("{}"),
    "path out of the folder": escape_through_files,
    "link out of the folder": link_outside,
    "results missing": lambda cell: results_file(cell).unlink(),
    "deep nesting": deep,
    "long integer": long_integer,
    "not json": lambda cell: (cell / "cell.json").write_text("!!python/object/apply:os.system"),
    "tasks of a wrong type": lambda cell: edit(cell / "cell.json", lambda c: c.update(tasks=3)),
    "model of a wrong type": lambda cell: edit(cell / "cell.json", lambda c: c.update(model=[])),
    "length of a wrong type": lambda cell: edit(
        cell / "cell.json", lambda c: c.update(context_length="8K")
    ),
    "marker of another cell": lambda cell: edit(
        cell / "done.json", lambda c: c.update(cell_id="zz")
    ),
    "half a marker": lambda cell: (cell / "done.json").write_text('{"schema_ver'),
}


@pytest.mark.parametrize("name", list(BAD))
def test_what_cannot_be_trusted_is_marked_and_has_no_number(tmp_path, name):
    make.write_cell(tmp_path / "results", "good", {"leval_closed_gsm": GSM}, method="none")
    cell = make.write_cell(tmp_path / "results", "bad", {"leval_closed_gsm": GSM})
    BAD[name](cell)
    results = load_results(tmp_path / "results")
    rows = results.frame()
    good = rows[(rows["method"] == "none") & (rows["metric"] == "exact_match")]
    assert list(good["status"]) == ["done"]
    bad = rows[(rows["method"] != "none") & (rows["metric"] != "exact_match_strict")]
    assert list(bad["status"]) == ["malformed"], bad
    assert bad["value"].isna().all()
    assert bad["note"].str.len().gt(0).all()


def test_a_metric_of_every_third_question_is_no_damage(tmp_path):
    """Topic retrieval asks for three positions in turn: a question has a score for one of them."""
    rows = make.closed_samples("leval_closed_toefl", 0.5, 1)
    cell = make.write_cell(tmp_path, "x1", {"leval_closed_topic_retrieval": rows})
    firsts = [row["exact_match"] for row in rows[::3]]
    for at, row in enumerate(rows):
        row["first"] = row["exact_match"] if at % 3 == 0 else None
        row["metrics"] = [*row["metrics"], "first"]
    next(cell.glob("samples_*.jsonl")).write_text("".join(json.dumps(row) + "\n" for row in rows))
    mean = sum(firsts) / len(firsts)
    edit(
        results_file(cell),
        lambda c: c["results"]["leval_closed_topic_retrieval"].update({"first,none": mean}),
    )
    edit(cell / "done.json", lambda c: c.update(files={}))
    row = only(load_results(tmp_path), "leval_closed_topic_retrieval", "first")
    assert (row["status"], row["note"]) == ("done", "")
    assert row["value"] == pytest.approx(mean)


def test_a_document_without_a_result_leaves_the_run_partial(tmp_path):
    rows = make.perplexity_samples((1024,), 0.0, 7)
    name = "token_perplexity@1024"
    logged = [{**rows[0], "metrics": []}, *rows[1:]]
    del logged[0][name]
    make.write_lm_eval(tmp_path, {"ppl_govreport": rows[1:]}, "2026-01-01T00-00-00.1",
                       original={"ppl_govreport": len(rows)})  # fmt: skip
    text = "".join(json.dumps(row) + "\n" for row in logged)
    next(tmp_path.glob("samples_*")).write_text(text)
    (score,) = load_results(tmp_path).scores
    assert (score.status, score.note, score.n) == ("done", "", len(rows) - 1)
    assert score.partial


def test_a_question_logged_twice_is_marked(tmp_path):
    make.write_cell(tmp_path, "x1", {"leval_closed_gsm": [*GSM, GSM[0]]})
    results = load_results(tmp_path)
    assert results.runs[0].status == "malformed"
    assert "twice" in results.runs[0].reason


def test_names_with_folders_make_no_paths(tmp_path):
    make.write_cell(tmp_path, "x1", {"leval_closed_gsm": GSM}, method="../../up", model="a/../../b")
    path = results_file(tmp_path / "x1")
    edit(path, lambda c: c["results"].update({"../../x": c["results"]["leval_closed_gsm"]}))
    edit(tmp_path / "x1" / "done.json", lambda c: c.update(files={}))
    results = load_results(tmp_path)
    assert all(each.path.parent == tmp_path / "x1" for each in results.samples.values())


def test_chance_is_the_stated_one_else_what_holds_for_any_gold_answers():
    assert chance_level("leval_closed_coursera", 0.0875) == 0.0875
    assert chance_level("leval_closed_coursera", None) is None
    assert chance_level("leval_closed_toefl", None) == 0.25
    assert chance_level("leval_closed_topic_retrieval", 0.0) is None, "it has no chance level"
    assert chance_level("other", None) is None


def test_a_task_of_another_project_keeps_its_name(tmp_path):
    content = {"results": {"leval_quality": {"exact_match,none": 0.5}}}
    (tmp_path / "results_1.json").write_text(json.dumps(content))
    assert [score.task for score in load_results(tmp_path).scores] == ["leval_quality"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a\0b", "is no regular file"),
        ("../a", "is no name of a file in there"),
        ("folder", "is no regular file"),
        ("file", ""),
    ],
)
def test_a_name_is_read_only_where_it_is_a_file_of_the_folder(tmp_path, name, reason):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    assert refused(tmp_path, name) == reason


def test_a_run_without_numbers_is_partial_where_it_has_a_limit():
    run = load_results(make.RUNS).runs[0]
    for limit, partial in ((None, False), (3, True)):
        scores = Score.without_numbers(replace(run, limit=limit, num_docs=None), 0)
        assert {score.partial for score in scores} == {partial}


@pytest.mark.parametrize(("scored", "evaluated"), [(3, 3), (7, 5), (None, 5)])
def test_of_two_counts_of_questions_the_smaller_one_counts(scored, evaluated):
    content = {"results": {"t": {"sample_len": scored}}, "n-samples": {"t": {"effective": 5}}}
    assert ResultsFile.model_validate(content).evaluated("t") == evaluated
