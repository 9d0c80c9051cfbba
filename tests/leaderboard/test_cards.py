"""Result cards against the published schemas (`schemas/README.md`) and against the tables."""

import json
from pathlib import Path

import fixture_results as make
import pytest
import yaml
from card_checks import cards_are_valid, hub_entries, records
from click.testing import CliRunner
from plain_output import sample, write

from leval_harness.analysis import analyse
from leval_harness.cards import write_cards
from leval_harness.cards.publication import RELATIONSHIPS, model_name, read_publication
from leval_harness.cli.results import card as command
from leval_harness.old_results import load_results
from resonance_vllm.errors import SettingError

OURS, SCORED = "leval_closed_toefl", "gsm8k"


@pytest.fixture(scope="module")
def cards(tmp_path_factory):
    """Two methods on a closed task, GSM8K and a perplexity; a run of the sample, a failed one."""
    root = tmp_path_factory.mktemp("cards")
    for at, method in enumerate(("none", "yarn")):
        tasks = {OURS: make.closed_samples(OURS, 0.4 + 0.1 * at, at)}
        tasks["ppl_govreport"] = make.perplexity_samples((1024, 2048), -0.02 * at, 7)
        tasks[SCORED] = [
            {"doc_id": n, "doc": {"question": f"{n}?"}, "target": "7", "resps": [["7"]],
             "filtered_resps": ["7"], "filter": "strict", "metrics": ["exact_match"],
             "exact_match": float(n % 2)} for n in range(12)
        ]  # fmt: skip
        make.write_cell(root / "r", f"c{at}", tasks, method=method, context_length=4096)
    gsm = {"leval_closed_gsm": make.closed_samples("leval_closed_gsm", 0.3, 1)}
    make.write_cell(root / "r", "s", gsm, method="none", sample=True)
    (make.write_cell(root / "r", "f", gsm, method="linear") / "done.json").unlink()
    analysis = analyse(load_results(root / "r"))
    publication = read_publication(
        "A group", "third_party", ["SmolLM2-135M=HuggingFaceTB/SmolLM2-135M"],
        [f"{SCORED}=openai/gsm8k:gsm8k"], "https://example.org/page",
    )  # fmt: skip
    written = write_cards(analysis, root / "out", publication)
    return analysis, written, root / "out"


def test_records_and_questions_are_what_every_eval_ever_publishes(cards):
    _, written, out = cards
    found = records(out)
    assert len(found) == written.records == 3
    assert cards_are_valid(out) == (3, 4)
    assert written.instances == 2 * (269 + 12) + 100


def test_a_record_says_what_the_tables_say_and_its_questions_give_it(cards):
    analysis, _, out = cards
    entries = {
        (e.run.run_id, e.task, e.score.metric): e for e in analysis.entries if e.score.finished
    }
    for record in records(out):
        run = record["evaluation_id"].rsplit("/", 1)[1]
        lines = [json.loads(each) for each in
                 (out / record["detailed_evaluation_results"]["file_path"]).open()]  # fmt: skip
        for result in record["evaluation_results"]:
            entry = entries[run, result["evaluation_name"], result["metric_config"]["metric_id"]]
            told = result["score_details"]
            assert told["score"] == entry.score.value
            assert told["uncertainty"]["num_samples"] == entry.score.n
            error = told["uncertainty"].get("standard_error", {})
            assert error.get("value") == entry.score.stderr
            assert error.get("method", "clustered by document, CR2") == "clustered by document, CR2"
            assert told["uncertainty"]["confidence_interval"]["lower"] == entry.low
            mine = [
                each["evaluation"]["score"]
                for each in lines
                if each["evaluation_result_id"] == result["evaluation_result_id"]
            ]
            if mine:
                assert sum(mine) / len(mine) == pytest.approx(told["score"])
            perplexity = result["metric_config"]["lower_is_better"]
            assert result["metric_config"].get("max_score") == ("Infinity" if perplexity else 1)


def test_the_hub_reads_its_files_and_gets_no_sample(cards):
    _, written, out = cards
    files = sorted(out.glob("hub/HuggingFaceTB--SmolLM2-135M/.eval_results/*.yaml"))
    assert [path.stem for path in files] == [
        f"{task}_{method}_4K" for task in (SCORED, OURS) for method in ("none", "yarn")
    ]
    assert len(files) == written.hub_files
    for path, entry in hub_entries(out):
        task = "openai/gsm8k" if path.stem.startswith(SCORED) else "L4NLP/LEval"
        assert entry.dataset_id == task
        assert "clustered by document, CR2" in entry.notes
    assert any("bundled sample" in each for each in written.left_out)


def test_cards_written_again_replace_themselves(cards, tmp_path):
    analysis, _, _ = cards
    for _ in range(2):
        write_cards(analysis, tmp_path, read_publication("", "other"))
    assert len(records(tmp_path)) == 3
    assert not list(tmp_path.glob("hub/*/.eval_results/gsm8k*"))  # nobody named its benchmark


def test_texts_that_are_no_text_and_names_that_are_alike_cost_no_result(tmp_path):
    for at, method in enumerate(("a/b", "a:b")):
        rows = make.closed_samples(OURS, 0.5, at, evil="\ud83d \u4e2d \x00")
        make.write_cell(tmp_path / "r", f"c{at}", {OURS: rows}, method=method)
    write_cards(analyse(load_results(tmp_path / "r")), tmp_path, read_publication("", "other"))
    assert len(list(tmp_path.glob("hub/*/.eval_results/*.yaml"))) == 2
    assert cards_are_valid(tmp_path) == (2, 2)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"relationship": "friend"}, RELATIONSHIPS[0]),
        ({"models": ["SmolLM2"]}, "--model-id"),
        ({"models": ["SmolLM2=a/b/c"]}, "--model-id"),
        ({"benchmarks": ["gsm8k=gsm8k"]}, "--benchmark"),
        ({"source_url": "ftp://x"}, "--source-url"),
    ],
)
def test_what_is_said_wrongly_is_named(given, named):
    with pytest.raises(SettingError, match=named):
        read_publication(**{"organization": "", "relationship": "other", **given})


@pytest.mark.parametrize("said", [
    {"models": ["SmolLM2-315M=org/model"]}, {"benchmarks": [f"{SCORED[:-1]}=org/set:task"]},
])  # fmt: skip
def test_what_is_said_of_nothing_in_the_results_is_named(cards, tmp_path, said):
    analysis, _, _ = cards
    with pytest.raises(SettingError, match=r"^--.* is not allowed.*did you mean"):
        write_cards(analysis, tmp_path, read_publication("", "other", **said))
    assert not list(tmp_path.iterdir())


ODD = ("/data/models/my model", "org/name/of/three", "a", "../x", "\u4e2d/\u6587", "x" * 500, "=1",
       "a/", "C:\\m", "org/name@v1.0", "half \ud83d")  # fmt: skip


@pytest.mark.parametrize("model", ODD)
def test_cards_of_other_people_s_runs_follow_the_schemas(tmp_path, model):
    """Odd names, no revision or version, two runs whose files are called alike, an error rate."""
    for at in range(2):
        rows = [sample(n, float((n + at) % 2), "wer") for n in range(20)]
        write(tmp_path / f"r{at}", {"wer,none": 0.5, "nan,none": float("nan"), "x,none": 7.0},
              "speech", model_name=model, samples=rows, date=1e9 + at)  # fmt: skip
    publication = read_publication("", "other", benchmarks=["speech=org/speech:all"])
    write_cards(analyse(load_results(tmp_path)), tmp_path / "out", publication)
    found = records(tmp_path / "out")
    assert len({record["evaluation_id"] for record in found}) == 2
    cards_are_valid(tmp_path / "out")
    for record in found:
        assert record["model_info"].get("developer") != ""
        assert {r["evaluation_name"] for r in record["evaluation_results"]} == {"speech"}
        path = tmp_path / "out" / record["detailed_evaluation_results"]["file_path"]
        for line in map(json.loads, path.read_text().splitlines()):
            assert line["evaluation"]["is_correct"] == (line["evaluation"]["score"] == 0)


def test_perplexities_are_given_to_the_hub_where_a_benchmark_is_named_for_them(tmp_path):
    """One file a length; where none is named, that is said."""
    make.write_cell(tmp_path / "r", "c", {"ppl_pg19": make.perplexities("rope")}, method="rope")
    analysis = analyse(load_results(tmp_path / "r"))
    written = write_cards(analysis, tmp_path / "none", read_publication("", "other"))
    assert written.hub_files == 0
    assert [each for each in written.left_out if each.startswith("ppl_pg19: not for the Hub")]
    publication = read_publication("", "other", benchmarks=("ppl_pg19=me/books:ppl",))
    assert write_cards(analysis, tmp_path / "out", publication).hub_files == len(make.LENGTHS)
    assert cards_are_valid(tmp_path / "out") == (1, len(make.LENGTHS))
    for entry in analysis.entries:
        name = f"ppl_pg19_rope_{entry.length // 1024}K"
        (path,) = tmp_path.glob(f"out/hub/*/.eval_results/{name}.yaml")
        (told,) = yaml.safe_load(path.read_text())
        assert told["value"] == pytest.approx(entry.score.value, abs=1e-4)
        assert f"{entry.length // 1024}K tokens" in told["notes"]
        assert "(lower is better)" in told["notes"]


RUNS = Path(__file__).parent / "real_runs" / "results"


def test_cards_of_real_runs_pass_every_gate(tmp_path):
    """Runs of every kind of task; a model that has an owner gets not even a warning."""
    analysis = analyse(load_results(RUNS))
    tasks = sorted({entry.task for entry in analysis.entries if entry.score.finished})
    models = [f"{name}=me/small" for name in {model_name(e.run) for e in analysis.entries}]
    benchmarks = [f"{task}=me/set:{task}" for task in tasks]
    publication = read_publication("A group", "third_party", models, benchmarks)
    written = write_cards(analysis, tmp_path, publication)
    assert cards_are_valid(tmp_path) == (written.records, written.hub_files)
    published = {
        result["evaluation_name"]
        for record in records(tmp_path)
        for result in record["evaluation_results"]
    }
    assert published == set(tasks)


def test_a_loss_below_zero_is_left_out_and_a_gain_below_zero_is_none(tmp_path):
    """The gate refuses a record that holds a number outside of its metric's bounds."""
    metrics = {"gain,none": -0.5, "short_loss,none": 1.5, "loss,none": -1.0}
    write(tmp_path / "r", metrics, "effective_context_pg19")
    written = write_cards(
        analyse(load_results(tmp_path)), tmp_path / "out", read_publication("", "other")
    )
    assert cards_are_valid(tmp_path / "out") == (1, 0)
    (record,) = records(tmp_path / "out")
    found = {
        each["metric_config"]["metric_id"]: each["metric_config"]["min_score"]
        for each in record["evaluation_results"]
    }
    assert found == {"gain": "-Infinity", "short_loss": 0}
    assert any(each.endswith("loss: -1 is not between 0 and inf") for each in written.left_out)


PUBLICATION = read_publication("", "other", benchmarks=[f"{SCORED}=openai/gsm8k:gsm8k"])


def answers(seed=0):
    """Twelve questions of GSM8K."""
    return [
        {"doc_id": n, "doc": {"question": f"{n}?"}, "target": "7", "resps": [["7"]],
         "filtered_resps": ["7"], "filter": "strict", "metrics": ["exact_match"],
         "exact_match": float((n + seed) % 2)} for n in range(12)
    ]  # fmt: skip


def cell(root, change=None, **cell_fields):
    """A cell whose identity has this change."""
    folder = make.write_cell(root, "c", {SCORED: answers()}, method="yarn", **cell_fields)
    record = json.loads((folder / "cell.json").read_text())
    plain = {"model": {"backend": "hf-long", "dtype": "float32", "args": {}}}
    change = dict(change or {})
    model = {"model": plain["model"] | change.pop("model", {})}
    record["identity"] |= plain | change | model
    (folder / "cell.json").write_text(json.dumps(record))
    return root


CHANGES = make.IDENTITY | {
    "4 bit": {"model": {"args": {"load_in_4bit": True}}},
    "system prompt": {"system_instruction": "Think."},
    "factor": {"rope_parameters": {"rope_type": "yarn", "factor": 8.0}},
    "files": {"model": {"files": {"model.safetensors": "aa"}}},
    "task file": {"task_versions": {"x.yaml": "1"}},
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_setting_that_decides_changes_the_notes_or_the_model(tmp_path, what):
    """Everything that separates blocks of a table, and more, is in what is published."""
    told = {}
    for name, change in (("plain", {}), ("changed", CHANGES[what])):
        out = tmp_path / name
        write_cards(analyse(load_results(cell(tmp_path / f"r-{name}", change))), out, PUBLICATION)
        ((path, entry),) = hub_entries(out)
        (record,) = records(out)
        told[name] = (
            (path.parent.parent.name, entry.notes),
            json.dumps(
                [record["model_info"], record["evaluation_results"][0]["generation_config"]]
            ),
        )
    for plain, changed in zip(*told.values(), strict=True):
        assert plain != changed


def test_an_adapter_is_not_published_as_its_base_model(tmp_path):
    root = cell(tmp_path / "r", {"model": {"args": {"peft": "me/lora"}}})
    models = ["me/lora=me/better", "SmolLM2-135M=HuggingFaceTB/SmolLM2-135M"]
    with pytest.raises(SettingError, match="SmolLM2-135M"):
        write_cards(analyse(load_results(root)), tmp_path, read_publication("", "other", models))
    for given, name in (((), "me/lora"), (models[:1], "me/better")):
        out = tmp_path / name.replace("/", "-")
        publication = read_publication("", "other", given, [f"{SCORED}=openai/gsm8k:gsm8k"])
        write_cards(analyse(load_results(root)), out, publication)
        ((path, _),) = hub_entries(out)
        assert path.parent.parent.name == name.replace("/", "--")
        (record,) = records(out)
        assert record["model_info"]["id"] == name
        assert record["model_info"]["additional_details"]["base_model"] == "SmolLM2-135M"


@pytest.mark.parametrize("differing", ["shots", "metric"])
def test_two_numbers_for_one_benchmark_are_refused(tmp_path, differing):
    if differing == "shots":
        for shots in (0, 25):
            make.write_cell(tmp_path / "r", f"c{shots}", {SCORED: answers()}, num_fewshot=shots)
        task = SCORED
    else:
        task = "arc_easy"
        rows = [sample(n, float(n % 2), "acc") | {"acc_norm": 1.0, "metrics": ["acc", "acc_norm"]}
                for n in range(12)]  # fmt: skip
        make.write_cell(tmp_path / "r", "c", {task: rows})
    analysis = analyse(load_results(tmp_path / "r"))
    named = f"{task}=org/set:test"
    written = write_cards(analysis, tmp_path / "out", read_publication("", "other", (), [named]))
    assert written.hub_files == 0
    (why,) = (each for each in written.left_out if "several numbers for org/set:test" in each)
    assert ("num fewshot 25" if differing == "shots" else "acc_norm") in why
    if differing == "metric":
        named = f"{task}:acc_norm=org/set:test"
        write_cards(analysis, tmp_path / "one", read_publication("", "other", (), [named]))
        ((_, entry),) = hub_entries(tmp_path / "one")
        assert entry.value == 100.0
        assert cards_are_valid(tmp_path / "one") == (1, 1)


def test_a_run_without_numbers_is_named_and_is_no_success(tmp_path):
    """Samples that were cut after the run: no number counts, and the command says so."""
    folder = make.write_cell(tmp_path / "r", "c", {SCORED: answers()})
    (path,) = folder.glob("samples_*")
    path.write_text(path.read_text()[:200])
    ended = CliRunner().invoke(command, [str(tmp_path / "r"), "--out", str(tmp_path / "out")])
    assert ended.exit_code == 1
    assert "altered after the run" in ended.output
    assert "Left out: gsm8k" in ended.output
    assert not (tmp_path / "out").exists()
