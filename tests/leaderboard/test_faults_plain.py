"""Plain lm-eval output: what was ranked together, dropped, scaled or turned round in silence."""

import json
import os
import shutil
import time

import fixture_results as make
import pytest
from click.testing import CliRunner
from plain_output import ACC, ROPE, STAMP, build_tables_of, cells, entries, sample, write

from leval_harness.analysis import analyse
from leval_harness.cli.main import app
from leval_harness.old_results import load_results
from leval_harness.old_results.settings import LENGTHS
from leval_harness.old_tables import build_tables, details_table, render

OTHERWISE = {
    "questions asked": {"n-samples": {"arc": {"original": 20, "effective": 5}}},
    "a limit": {"config": {"limit": 5.0}},
    "dtype": {"config": {"model_args": {"pretrained": "m", "dtype": "float16"}}},
    "dtype as loaded": {"config": {"model_dtype": "torch.float16"}},
    "chat template": {"chat_template": "{{ x }}", "chat_template_sha": "ab"},
    "system instruction": {"system_instruction": "Be brief."},
    "turns": {"fewshot_as_multiturn": True},
    "few-shot count": {"n-shot": {"arc": 16}},
    "version": {"versions": {"arc": 2.0}},
    "revision": {"config": {"model_sha": "abc"}},
    "an adapter": {"config": {"model_args": {"pretrained": "m", "peft": "x"}}},
    "an argument nobody knows": {"config": {"model_args": "pretrained=m,brand_new=1"}},
    "generation": {"config": {"gen_kwargs": {"temperature": 1.0}}},
    "seed": {"config": {"random_seed": 7}},
    "another seed": {"config": {"fewshot_seed": 7}},
    "prompt": {"fields": {"doc_to_text": "Q: {{q}}"}},
    "data set": {"fields": {"dataset_name": "other"}},
    "metadata": {"fields": {"metadata": {"version": 1.0, "subset": "hard"}}},
    "our truncation": {"fields": {"metadata": {"settings": {"truncation": "left"}}}},
    "our mode": {"fields": {"metadata": {"settings": {"mode": "truncate"}}}},
    "our stride": {"fields": {"metadata": {"settings": {"stride": 64}}}},
    "our prefix": {"fields": {"metadata": {"prompt": {"answer_prefix": "user"}}}},
    "our frame": {"fields": {"metadata": {"prompt": {"frame": "chat template"}}}},
    "documents left out": {"fields": {"metadata": {"skipped_documents": 2}}},
    "data": {"fields": {"metadata": {"data": {"source": "hub", "files": {"x": "1"}}}}},
    "as many questions of fewer": {"n-samples": {"arc": {"original": 10, "effective": 10}}},
    "questions given by number": {"results": {"arc": ACC | {"acc,none": 0.6, "sample_len": 3}}},
    "a limit as text": {"config": {"limit": "5"}},
    "a limit of none": {"config": {"limit": 0}},
    "a limit that is no number": {"config": {"limit": [5]}},
    "weights": {"config": {"model_args": "pretrained=other"}},
    "a server": {"config": {"model_args": "pretrained=m,base_url=http://other:8000"}},
    "the model's own code": {"config": {"model_args": "pretrained=m,trust_remote_code=True"}},
    "arguments as a list": {"config": {"model_args": ["m", "load_in_4bit"]}},
    "an argument without a value": {"config": {"model_args": "pretrained=m,load_in_4bit"}},
    "two methods": {"config": {"model_args": {"pretrained": "m", "rope_parameters": "yarn"}}},
    "tokenizer of the texts": {"fields": {"metadata": {"version": 1.0, "tokenizer": "other"}}},
    "length of the texts": {"fields": {"metadata": {"version": 1.0, "max_length": 4096}}},
    "lengths of the texts": {"fields": {"metadata": {"version": 1.0, "max_seq_lengths": "4k"}}},
    "metadata by our names": {"fields": {"metadata": {"version": 1.0, "prompt": "x", "data": 1}}},
    "metadata that is text": {"fields": {"metadata": "hard"}},
    "version in metadata": {"fields": {"metadata": {"version": 2.0}}},
    "few-shot count in metadata": {"fields": {"metadata": {"version": 1.0, "num_fewshot": 4}}},
    "what was asked": {"task_hashes": {"arc": "ab"}},
    "the environment": {"config": {"environment": {"NVIDIA_TF32_OVERRIDE": "1"}}},
    "a field nobody knows": {"thinking_budget": 100},
}  # fmt: skip


@pytest.mark.parametrize("what", OTHERWISE)
def test_whatever_changes_a_number_is_another_block(tmp_path, what):
    plain = {"fields": {"metadata": {"version": 1.0, "documents": 20}}}
    write(tmp_path / "a", ACC, **plain)
    write(tmp_path / "b", ACC | {"acc,none": 0.6}, **{**plain, **OTHERWISE[what]})
    first, second = entries(tmp_path)
    assert first.block != second.block
    assert (first.rank, second.rank) == (None, None)


def test_metadata_that_only_repeats_the_run_sets_nothing_apart(tmp_path):
    """lm-eval puts the model's arguments among a task's metadata."""
    for at, rope in (("a", {}), ("b", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}})):
        arguments = {"pretrained": "m", "max_length": 8192, **rope}
        metadata = {"version": 1.0, "tokenizer": "m", "context_length": 8192, **arguments}
        write(tmp_path / at, ACC, config={"model_args": arguments}, fields={"metadata": metadata})
    assert len({entry.block for entry in entries(tmp_path)}) == 1


FAR = f"pretrained=m,x={'x' * 20_000},y="


@pytest.mark.parametrize("config", [
    [{"model_args": f"{FAR}{at}"} for at in "ab"],
    [{"model_args": f"dtype={at}", "model_dtype": "torch.float32"} for at in ("auto", "float16")],
])  # fmt: skip
def test_what_is_behind_or_beside_an_argument_sets_apart(tmp_path, config):
    for at, each in enumerate(config):
        write(tmp_path / f"{at}", ACC, config=each)
    assert len({entry.block for entry in entries(tmp_path)}) == 2


def test_metadata_goes_before_arguments_of_the_same_name(tmp_path):
    for at in range(2):
        metadata = {"version": 1.0, "depth": at}
        write(tmp_path / f"{at}", ACC, config={"model_args": "pretrained=m,depth=0"},
              fields={"metadata": metadata})  # fmt: skip
    assert len({entry.block for entry in entries(tmp_path)}) == 2


@pytest.mark.parametrize("backend", ["local-completions", "nemo_lm", "gguf"])
@pytest.mark.parametrize("name", ["pretrained", "model", "path", "base_url"])
def test_a_model_is_called_by_whatever_argument_names_it(tmp_path, backend, name):
    """Files of old versions have no `model_name`."""
    for at in "ab":
        config = {"model": backend, "model_args": f"{name}=org/{at}"}
        write(tmp_path / at, ACC, config=config, model_name=None)
    assert {entry.block for entry in entries(tmp_path)} == {"org/a", "org/b"}


@pytest.mark.parametrize("name", LENGTHS)
def test_a_length_is_read_by_every_name_that_backends_have_for_it(tmp_path, name):
    for at in (2048, 4096):
        write(tmp_path / f"{at}", ACC, max_length=None,
              config={"model_args": f"pretrained=m,{name}={at}"})  # fmt: skip
    assert [(entry.length, entry.rank) for entry in entries(tmp_path)] == [
        (2048, None),
        (4096, None),
    ]


METHODS = {
    "yarn x2": {"rope_type": "yarn", "factor": 2.0},
    "linear x2": {"type": "linear", "factor": 2.0},  # of old configs
    "yarn x4 / default": {"full": {"rope_type": "yarn", "factor": 4.0},
                          "sliding": {"rope_type": "default"}},
    "as shipped": {},
}  # fmt: skip


@pytest.mark.parametrize("written", [lambda value: value, json.dumps])
@pytest.mark.parametrize("place", ["rope_parameters", "hf_overrides"])
@pytest.mark.parametrize("method", METHODS)
def test_a_method_is_named_wherever_and_however_it_was_written(tmp_path, method, place, written):
    rope = METHODS[method]
    given = {place: written(rope if place == "rope_parameters" else {"rope_parameters": rope})}
    write(tmp_path, ACC, config={"model_args": {"pretrained": "m", **given}})
    (entry,) = entries(tmp_path)
    assert entry.label == method


def test_a_changed_base_is_not_called_as_shipped(tmp_path):
    arguments = {"pretrained": "m", "rope_parameters": {"rope_theta": 5e5}}
    write(tmp_path, ACC, config={"model_args": arguments})
    (entry,) = entries(tmp_path)
    assert entry.label.startswith("rope #")


@pytest.mark.parametrize("apart", ["length", "task"])
def test_two_methods_of_one_name_are_no_row_together(tmp_path, apart):
    for at, beta in enumerate((32, 16)):
        rope = {"rope_type": "yarn", "factor": 2.0, "beta_fast": beta}
        task = f"arc{at}" if apart == "task" else "arc"
        write(tmp_path / f"{at}", ACC, task, max_length=4096 * (1 + at * (apart == "length")),
              config={"model_args": {"pretrained": "m", "rope_parameters": rope}})  # fmt: skip
    first, second = entries(tmp_path)
    assert first.block == second.block
    assert (first.label, second.label) == ("yarn x2 (beta_fast 32)", "yarn x2 (beta_fast 16)")


LONG = "x" * 400


@pytest.mark.parametrize("what", ["model", "task", "metric", "filter", "rope"])
def test_names_that_begin_alike_are_not_one(tmp_path, what):
    for at, end in enumerate("ab"):
        name = LONG + end
        top = {"model_name": name} if what == "model" else {}
        if what == "rope":
            rope = {"rope_parameters": {"rope_type": name}}
            top = {"config": {"model_args": {"pretrained": "m", **rope}}}
        task = name if what == "task" else "arc"
        keys = {"metric": f"{name},none", "filter": f"acc,{name}"}
        write(tmp_path / end, {keys.get(what, "acc,none"): (1 + at) / 4}, task, **top)
    found = load_results(tmp_path)
    assert sorted(score.value for score in found.scores) == [0.25, 0.5]
    shown = [cell for cell in cells(build_tables(analyse(found))) if cell.value is not None]
    assert sorted(cell.value for cell in shown) in ([25, 50], [0.25, 0.5])
    labels = {(e.block, e.label, e.task, e.score.metric, e.score.chosen) for e in entries(tmp_path)}
    assert len(labels) == 2
    assert all(len(text) <= 300 for names in labels for text in names[:2])


def test_questions_whose_names_begin_alike_are_not_one(tmp_path):
    rows = [sample(at, at % 2) for at in range(20)]
    for row in rows:
        about = {"document_id": f"{LONG}{row['doc_id']}", "cluster": f"{LONG}{row['doc_id']}"}
        row["doc"] = about
    write(tmp_path, ACC, samples=rows)
    (score,) = load_results(tmp_path).scores
    assert (score.status, score.n, score.clusters) == ("done", 20, 20)


def test_what_reads_alike_is_told_apart(tmp_path):
    """A task that is called as another one with its filter, a model as another with a setting."""
    write(tmp_path / "a", {"exact_match,a": 0.4, "exact_match,b": 0.5}, "arc")
    write(tmp_path / "b", {"exact_match,none": 0.3}, "arc (a)")
    shown = cells(build_tables_of(tmp_path))
    assert sorted(cell.value for cell in shown if cell.value is not None) == [30, 40, 50]
    for at, value in (("float16", 0.1), ("float32", 0.2)):
        write(tmp_path / at, {"acc,none": value}, config={"model_args": f"pretrained=m,dtype={at}"},
              model_name="m")  # fmt: skip
    write(tmp_path / "c", {"acc,none": 0.9}, model_name="m · dtype float16")
    of_acc = [entry for entry in entries(tmp_path) if entry.score.metric == "acc"]
    assert len({entry.block for entry in of_acc}) == 3


def test_a_key_written_twice_is_no_number(tmp_path):
    written = '{"results": {"arc": {"acc,none": 0.2, "acc,none": 0.9}}, "configs": {}}'
    (tmp_path / "results_2026.json").write_text(written)
    (score,) = load_results(tmp_path).scores
    assert (score.status, score.value) == ("malformed", None)
    assert "'acc,none' is written twice" in score.note


@pytest.mark.parametrize("key", ["batch_size", "device", "use_cache", "bootstrap_iters"])
def test_what_changes_no_number_is_none(tmp_path, key):
    write(tmp_path / "a", ACC)
    write(tmp_path / "b", ACC | {"acc,none": 0.6}, config={key: "7", "model_args": ROPE})
    first, second = entries(tmp_path)
    assert first.block == second.block
    assert (first.rank, second.rank) == (2, 1)


@pytest.mark.parametrize(
    "name", ["cache_dir", "local_files_only", "disable_log_stats", "log_level", "ca_cert_path"]
)
def test_where_files_lie_and_what_is_logged_sets_nothing_apart(tmp_path, name):
    for at, more in enumerate(({}, {name: "/other"})):
        write(tmp_path / f"{at}", ACC, config={"model_args": {"pretrained": "m", **more}})
    assert len({entry.block for entry in entries(tmp_path)}) == 1


def test_a_factor_is_the_same_with_and_without_a_point(tmp_path):
    for at, kind in enumerate((int, float)):
        rope = {"rope_type": "yarn", "factor": kind(2), "beta_fast": kind(32)}
        write(tmp_path / f"{at}", ACC, f"arc{at}",
              config={"model_args": {"pretrained": "m", "rope_parameters": rope}})  # fmt: skip
    assert {entry.label for entry in entries(tmp_path)} == {"yarn x2"}


@pytest.mark.parametrize(
    ("limit", "said"), [(0.1, "first 10% of "), (1.0, "first 1 "), (1, "first 1 ")]
)
def test_a_limit_below_one_is_a_share(tmp_path, limit, said):
    write(tmp_path, ACC, config={"limit": limit})
    (entry,) = entries(tmp_path)
    assert said in entry.block


def test_a_function_is_the_same_in_every_process(tmp_path):
    for at in "ab":
        write(tmp_path / at, ACC, fields={"doc_to_text": f"<function f at 0x7f{at * 10}>"},
              config={"model_args": ROPE if at == "b" else {"pretrained": "m"}})  # fmt: skip
    assert len({entry.block for entry in entries(tmp_path)}) == 1


def test_a_partial_run_is_marked_and_never_best_of_full_ones(tmp_path):
    write(tmp_path / "a", ACC)
    write(tmp_path / "b", ACC | {"acc,none": 0.9}, config={"limit": 5.0, "model_args": ROPE})
    full, partial = entries(tmp_path)
    assert (full.score.partial, partial.score.partial) == (False, True)
    assert "partial: the first 5 questions" in partial.block
    assert partial.rank is None


LIMITS = [(20, 20, True), (5000, 20, True), (0.99, 20, True), (20.0, 20, True), (19, 20, False),
          (0.9, 20, False), (30, 19, False), (30, 0, False)]  # fmt: skip


@pytest.mark.parametrize(("limit", "asked", "is_all"), LIMITS)
def test_a_limit_as_large_as_the_task_is_none(tmp_path, limit, asked, is_all):
    write(tmp_path / "a", ACC)
    write(tmp_path / "b", ACC | {"acc,none": 0.9}, config={"limit": limit, "model_args": ROPE},
          **{"n-samples": {"arc": {"original": 20, "effective": asked}}})  # fmt: skip
    full, limited = entries(tmp_path)
    assert (full.block == limited.block) == is_all
    assert limited.score.partial == (not is_all)
    assert limited.rank == (1 if is_all else None)


def test_a_limit_counts_where_nobody_says_how_many_questions_there_are(tmp_path):
    write(tmp_path, ACC, config={"limit": 5000}, **{"n-samples": {}})
    (entry,) = entries(tmp_path)
    assert entry.score.partial


def test_a_limit_beyond_the_questions_of_some_documents_leaves_their_name(tmp_path):
    for at, limit in enumerate((None, 5000)):
        tasks = {"leval_closed_gsm": make.closed_samples("leval_closed_gsm", 0.5, at)}
        make.write_cell(tmp_path, f"x{at}", tasks, method=f"m{at}", limit=limit,
                        original={"leval_closed_gsm": 100}, metadata={"num_docs": 3})  # fmt: skip
    assert {entry.block for entry in entries(tmp_path)} == {
        "SmolLM2-135M · partial: 3 documents of each task"
    }


@pytest.mark.parametrize(("stated", "length"), [(1024, 1024), (None, 8192)])
def test_the_context_length_is_the_one_that_questions_were_fitted_to(tmp_path, stated, length):
    metadata = {"prompt": {"context_length": stated}} if stated else {}
    write(tmp_path, {"exact_match,none": 0.5}, "leval_closed_gsm", fields={"metadata": metadata})
    (entry,) = entries(tmp_path)
    assert entry.length == length


@pytest.mark.parametrize(
    "arguments",
    [
        'pretrained=m,rope_parameters={"rope_type": "yarn", "factor": 4.0},max_length=4096',
        {"pretrained": "m", "rope_parameters": {"rope_type": "yarn", "factor": 4.0},
         "max_length": 4096},
    ],
)  # fmt: skip
def test_arguments_are_the_same_as_text_and_as_mapping(tmp_path, arguments):
    write(tmp_path, ACC, config={"model_args": arguments}, max_length=None)
    (entry,) = entries(tmp_path)
    assert (entry.run.method, entry.length) == ("yarn x4", 4096)


@pytest.mark.parametrize("arguments", ["," * 20_000, "a=1," * 5000, "a={b:" * 4000])
def test_arguments_that_are_taken_apart_in_no_time(tmp_path, arguments):
    write(tmp_path, ACC, config={"model_args": arguments})
    began = time.process_time()
    assert [each.score.value for each in entries(tmp_path)] == [0.5]
    assert time.process_time() - began < 3


def test_a_metric_keeps_its_direction(tmp_path):
    values = {"a": 0.4, "b": 0.2}
    for name, value in values.items():
        arguments = ROPE if name == "b" else {"pretrained": "m"}
        write(tmp_path / name, {"brier_score,none": value}, better={"brier_score": False},
              config={"model_args": arguments})  # fmt: skip
    worse, better = entries(tmp_path)
    assert (worse.rank, better.rank) == (2, 1)
    (table,) = build_tables(analyse(load_results(tmp_path)))
    assert table.columns[2].label == "arc brier_score (lower is better)"


@pytest.mark.parametrize("stated", [False, True, None])
def test_a_metric_that_nobody_knows_is_ranked_as_stated_or_not_at_all(tmp_path, stated):
    for at, value in (("a", 3.0), ("b", 7.0)):
        arguments = ROPE if at == "b" else {"pretrained": "m"}
        write(tmp_path / at, {"mae,none": value}, better={"mae": stated},
              config={"model_args": arguments})  # fmt: skip
    ranks = [entry.rank for entry in entries(tmp_path)]
    assert ranks == {False: [1, 2], True: [2, 1], None: [None, None]}[stated]
    notes = build_tables(analyse(load_results(tmp_path)))[0].notes
    assert any("Not ranked" in note for note in notes) == (stated is None)


def test_a_figure_that_is_no_share_is_not_scaled(tmp_path):
    write(tmp_path, {"bleu,none": 34.5, "bleu_stderr,none": 0.3, "acc,none": 0.25})
    shown = {cell.text: cell.stderr_text for cell in cells(build_tables_of(tmp_path))}
    assert shown["34.500"] == "0.300"
    assert "25.00" in shown
    assert not any("3450" in text for text in shown)


def test_one_value_above_one_shows_that_a_metric_is_no_share(tmp_path):
    write(tmp_path / "a", {"f1,none": 0.9}, "squadv2")
    write(tmp_path / "b", {"f1,none": 35.2}, "squadv2", config={"model_args": ROPE})
    assert [entry.score.percent for entry in entries(tmp_path)] == [1, 1]


def test_every_metric_of_a_task_is_in_the_table(tmp_path):
    write(tmp_path, {"word_perplexity,none": 31.2, "byte_perplexity,none": 1.9,
                     "bits_per_byte,none": 0.93}, "wikitext")  # fmt: skip
    ran = CliRunner().invoke(app, ["table", str(tmp_path)])
    assert ran.exit_code == 0
    for number in ("31.200", "1.900", "0.930"):
        assert number in ran.output


def test_every_filter_is_in_the_table_whatever_their_order_in_the_samples(tmp_path):
    values = {"exact_match,strict": 0.25, "exact_match,flexible": 0.5}
    scores = {"strict": [0, 0, 0, 1], "flexible": [0, 1, 0, 1]}
    for at, order in (("a", ["strict", "flexible"]), ("b", ["flexible", "strict"])):
        rows = [
            sample(q, scores[chosen][q], "exact_match", chosen)
            for chosen in order
            for q in range(4)
        ]
        arguments = ROPE if at == "b" else {"pretrained": "m"}
        write(tmp_path / at, values, "gsm8k", samples=rows, config={"model_args": arguments},
              **{"n-samples": {"gsm8k": {"original": 4, "effective": 4}}})  # fmt: skip
    (table,) = build_tables_of(tmp_path)
    labels = [column.label for column in table.columns[2:4]]
    assert labels == ["gsm8k (strict)", "gsm8k (flexible)"]
    compared = [e.difference for e in entries(tmp_path, baseline="as shipped") if e.difference]
    assert [difference.difference for difference in compared] == [0.0, 0.0]


def test_groups_are_in_the_csv_and_stand_for_their_tasks(tmp_path):
    write(tmp_path, ACC, "mmlu_a", groups={"mmlu": {"acc,none": 0.5}},
          group_subtasks={"mmlu": ["mmlu_a"]})  # fmt: skip
    csv = render([details_table(analyse(load_results(tmp_path)))], "csv")
    assert ",mmlu,acc,none," in csv
    assert ",mmlu_a,acc,none," in csv
    (table,) = build_tables_of(tmp_path)
    assert table.columns[2].label == "mmlu"
    assert any(note.startswith("mmlu: its own figure") for note in table.notes)


def test_a_ring_of_groups_ends(tmp_path):
    write(tmp_path, ACC, groups={"a": {"acc,none": 0.5}, "b": {"acc,none": 0.5}},
          group_subtasks={"a": ["b", "arc"], "b": ["a"]})  # fmt: skip
    assert len(load_results(tmp_path).scores) == 3


@pytest.mark.parametrize("name", ["out_" + STAMP + ".json", "results.json", "mine.json"])
def test_results_are_found_under_any_name(tmp_path, name):
    write(tmp_path, ACC, name=name)
    assert [entry.score.value for entry in entries(tmp_path)] == [0.5]


def test_samples_beside_another_name_are_read(tmp_path):
    rows = [sample(at, at % 2) for at in range(20)]
    write(tmp_path, ACC, name=f"out_{STAMP}.json", samples=rows)
    (entry,) = entries(tmp_path)
    assert entry.interval == "exact"


def test_one_name_in_two_folders_is_two_runs(tmp_path):
    write(tmp_path / "a", ACC, name="results_run.json")
    write(tmp_path / "b", ACC | {"acc,none": 0.6}, name="results_run.json", model_name="other")
    assert {entry.run.model for entry in entries(tmp_path)} == {"org/model", "other"}
    shutil.copytree(tmp_path / "a", tmp_path / "c")
    results = load_results(tmp_path)
    assert len(results.runs) == 2
    assert "found twice" in results.warnings[0]


def test_several_results_in_one_folder_are_told_apart(tmp_path):
    for at, value in enumerate((0.5, 0.6)):
        write(tmp_path, {"acc,none": value}, name=f"results_{at}.json")
    (table,) = build_tables_of(tmp_path)
    rows = {row.cells[0].text: row.cells[2].text for row in table.blocks[0].rows[:2]}
    assert rows == {"as shipped (run 0)": "50.00", "as shipped (run 1)": "60.00"}


def test_files_that_are_left_out_are_named(tmp_path):
    write(tmp_path, ACC)
    (tmp_path / "samples_other_2026.jsonl").write_text("{}\n")
    (tmp_path / "broken.json").write_text('{"results": {')
    (tmp_path / "results_broken.json").write_text("[1]")
    (tmp_path / "config.json").write_text('{"hidden_size": 4}')
    results = load_results(tmp_path)
    warned = " ".join(results.warnings)
    assert "samples_other_2026.jsonl" in warned
    assert "broken.json" in warned
    assert "config.json" not in warned
    assert [run.status for run in results.runs].count("malformed") == 1


# ---- lengths

RULER = {"4096,none": 0.5, "8192,none": 0.25, "16384,none": -1, "4096_stderr,none": "N/A",
         "8192_stderr,none": "N/A", "16384_stderr,none": "N/A"}  # fmt: skip


def ruler_samples():
    for at in range(8):
        length = "4096" if at < 4 else "8192"
        hit = float(at % 2 == 0 if at < 4 else at == 4)
        row = sample(at, -1.0, "4096") | {"metrics": ["4096", "8192", "16384"]}
        yield row | {"8192": -1.0, "16384": -1.0} | {length: hit}


def test_a_folder_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    write(tmp_path / "open", ACC)
    write(tmp_path / "closed", ACC)
    scandir = os.scandir

    def only_open(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", only_open)  # root may read every folder
    results = load_results(tmp_path)
    assert len(results.runs) == 1
    assert results.warnings == [
        f"{tmp_path / 'closed'}: cannot be read (Permission denied); left out"
    ]


def test_rulers_lengths_are_rows_and_minus_one_is_no_number(tmp_path):
    write(tmp_path, RULER, "niah_single_1", samples=ruler_samples(),
          **{"n-samples": {"niah_single_1": {"original": 8, "effective": 8}}})  # fmt: skip
    answer, table = build_tables_of(tmp_path)
    assert answer.title == "How far does it retrieve?"
    assert [column.label for column in table.columns[:3]] == ["Method", "Ctx", "niah_single_1"]
    rows = [[cell.text for cell in row.cells[1:3]] for row in table.blocks[0].rows[:2]]
    assert rows == [["4K", "50.00"], ["8K", "25.00"]]
    assert not any("-1" in cell.text for cell in cells([table]))
    four, eight = entries(tmp_path)
    assert (four.score.n, eight.score.n) == (4, 4), "the count of each length"
    assert four.score.stderr > 0, "from the samples, where lm-eval says N/A"
    assert four.interval == "exact"
    verified = CliRunner().invoke(app, ["table", str(tmp_path), "--verify"])
    assert verified.exit_code == 0, verified.output


@pytest.mark.parametrize("score", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("asked", [1, 2, 5])
@pytest.mark.parametrize("stated", ["N/A", 0.0, 1e-17])
def test_few_questions_a_length_have_no_certainty(tmp_path, score, asked, stated):
    """As many as a first look asks; those of vt and cwe are shares of several answers."""
    values = {f"4096{part},none": each for part, each in (("", score), ("_stderr", stated))}
    for at, method in enumerate(("linear", "yarn")):
        rope = {"pretrained": "m", "rope_parameters": {"rope_type": method, "factor": 2.0}}
        rows = [sample(number, score, "4096") for number in range(asked)] if at else None
        write(tmp_path / method, values, "ruler_vt", samples=rows, config={"model_args": rope},
              **{"n-samples": {"ruler_vt": {"original": asked, "effective": asked}}})  # fmt: skip
    ran = CliRunner().invoke(app, ["table", str(tmp_path), "--baseline", "linear x2"])
    assert ran.exit_code == 0, ran.output
    assert "± 0.00" not in ran.output
    for each in entries(tmp_path):
        assert each.score.stderr is None
        assert (each.low is None) == (0 < score < 1)


def test_lengths_without_samples_are_read_too(tmp_path):
    write(tmp_path, RULER, "niah_single_1")
    assert [(e.length, e.score.value) for e in entries(tmp_path)] == [(4096, 0.5), (8192, 0.25)]


# ---- uncertainty, edited figures, pairs


@pytest.mark.parametrize("with_samples", [True, False])
@pytest.mark.parametrize(("value", "text"), [(0.0, "(0.0 to 16.8)"), (1.0, "(83.2 to 100.0)")])
def test_an_uncertainty_that_is_not_known_is_not_printed_as_zero(
    tmp_path, value, text, with_samples
):
    rows = [sample(at, value) for at in range(20)] if with_samples else None
    write(tmp_path, {"acc,none": value, "acc_stderr,none": 0.0}, samples=rows)
    ran = CliRunner().invoke(app, ["table", str(tmp_path)])
    assert "± 0.00" not in ran.output
    assert text in ran.output


def test_a_spread_of_zero_of_another_metric_is_not_printed(tmp_path):
    write(tmp_path, {"eqbench,none": 40.0, "eqbench_stderr,none": 0.0})
    lines = CliRunner().invoke(app, ["table", str(tmp_path)]).output.splitlines()
    (row,) = (line for line in lines if "40.00" in line)
    assert "±" not in row
    assert any(line.startswith("- Without ±") for line in lines)


EDITED = {
    "acc": (0.9, [0, 1, 0, 1], 0.5),
    "word_perplexity": (1.5, [[-30.0, 10], [-20.0, 10]] * 2, 12.182494),
    "token_perplexity@4096": (1.5, [[30.0, 10], [20.0, 10]] * 2, 12.182494),
}


@pytest.mark.parametrize("metric", EDITED)
def test_a_figure_that_its_samples_contradict_is_in_no_table(tmp_path, metric):
    stated, logged, true = EDITED[metric]
    task = "ppl_pg19" if "@" in metric else "wiki"
    counts = {"n-samples": {task: {"original": 4, "effective": 4}}}
    rows = [sample(at, value, metric) for at, value in enumerate(logged)]
    for value, status in ((true, "done"), (stated, "malformed")):
        write(tmp_path, {f"{metric},none": value}, task, samples=rows, **counts)
        (score,) = load_results(tmp_path).scores
        assert score.status == status
        assert ("the samples give" in score.note) == (status == "malformed")


def test_a_task_that_aggregates_by_its_own_code_is_left_as_it_says(tmp_path):
    rows = [sample(at, at % 2, "mcc") for at in range(20)]
    write(tmp_path, {"mcc,none": 0.3, "mcc_stderr,none": 0.1}, samples=rows)
    (entry,) = entries(tmp_path)
    assert (entry.score.status, entry.interval, entry.score.stderr) == ("done", "reported", 0.1)


def test_questions_are_paired_by_the_hash_of_what_was_asked(tmp_path):
    def run(name, scores, asked, arguments):
        rows = [sample(at, score, asked=asked[at]) for at, score in enumerate(scores)]
        mean = {"acc,none": sum(scores) / len(scores)}
        write(tmp_path / name, mean, samples=rows, config={"model_args": arguments},
              **{"n-samples": {"arc": {"original": 8, "effective": 8}}})  # fmt: skip

    run("a", [1, 0, 0, 0, 0, 0, 0, 0], list("abcdefgh"), {"pretrained": "m"})
    run("b", [0, 0, 0, 0, 0, 0, 0, 1], list("hgfedcba"), ROPE)  # the same in another order
    _, other = entries(tmp_path, baseline="as shipped")
    assert (other.difference.wins, other.difference.ties, other.difference.losses) == (0, 8, 0)
    run("b", [1, 1, 1, 1, 1, 1, 1, 1], list("ABCDEFGH"), ROPE)  # the same numbers, other questions
    analysis = analyse(load_results(tmp_path), "as shipped")
    assert analysis.entries[1].difference is None
    notes = build_tables(analysis)[0].notes
    assert any(note.startswith("Other questions than the baseline's") for note in notes)


def test_samples_of_old_versions_have_no_filter_and_no_list_of_metrics(tmp_path):
    rows = [sample(at, at % 2) for at in range(20)]
    for row in rows:
        del row["filter"], row["metrics"]
    write(tmp_path, ACC, samples=rows)
    (entry,) = entries(tmp_path)
    assert (entry.interval, entry.score.n) == ("exact", 20)
    write(tmp_path, ACC | {"acc,other": 0.4}, samples=[*rows, *rows])  # of two filters, unnamed
    assert {e.interval for e in entries(tmp_path)} <= {"reported", "none"}


def test_answers_that_were_not_scored_are_no_numbers(tmp_path):
    rows = [sample(at, 999, "bypass") for at in range(20)]
    write(
        tmp_path,
        {"bypass,none": 999, "bypass_stderr,none": "N/A"},
        "leval_closed_gsm",
        samples=rows,
    )
    ran = CliRunner().invoke(app, ["table", str(tmp_path)])
    assert "99900" not in ran.output
    assert "not scored" in ran.output
    verified = CliRunner().invoke(app, ["table", str(tmp_path), "--verify"])
    assert (verified.exit_code, "outside" in verified.output) == (0, False), verified.output


def test_a_standard_error_of_a_standard_error_is_no_metric(tmp_path):
    values = {"exact_match,none": 0.5, "exact_match_stderr,none": 0.1,
              "exact_match_stderr_stderr,none": "N/A"}  # fmt: skip
    write(tmp_path, values, "leval_closed_gsm")
    assert [score.metric for score in load_results(tmp_path).scores] == ["exact_match"]


def test_credentials_in_somebody_elses_arguments_go_nowhere(tmp_path):
    secret = "hf_marked_secret"
    nested = {"pretrained": "m", "api_key": secret, "x": {"password": secret}}
    for name, arguments in (("a", f"pretrained=m,token={secret}"), ("b", nested)):
        metadata = {"version": 1.0, "token": secret}  # lm-eval merges the arguments into it
        write(tmp_path / name, ACC, config={"model_args": arguments}, fields={"metadata": metadata})
    told = {"system_instruction": f"Authorization: Bearer {secret}", "env": {"HF_TOKEN": secret},
            "model_name": f"https://me:{secret}@host/m", "api_key": secret,
            "pretty_env_info": f"torch @ git+https://{secret}@host/torch"}  # fmt: skip
    among = f"pretrained=m,load_in_4bit,token={secret},x={{'a': [1, 2], 'hf_token': '{secret}'}}"
    write(tmp_path / "d", ACC, config={"model_args": among}, **told)
    model = {"name": "c", "path": "m", "backend": "hf", "dtype": "float32", "args": nested}
    rows = make.closed_samples("leval_closed_gsm", 0.4, 3)
    command = f"leval-harness sweep x --set models.c.args.api_key={secret}"
    make.write_cell(tmp_path, "c", {"leval_closed_gsm": rows}, model_args=nested, command=command)
    cell = json.loads((tmp_path / "c" / "cell.json").read_text()) | {"model": model}
    (tmp_path / "c" / "cell.json").write_text(json.dumps(cell))
    for flags in (("md",), ("csv",), ("html",), ("tex",), ("md", "--json"), ("md", "--verify")):
        ran = CliRunner().invoke(app, ["table", str(tmp_path), "--format", *flags])
        assert ran.output
        assert secret not in ran.output
    page = CliRunner().invoke(app, ["page", str(tmp_path), "--out", str(tmp_path / "page")])
    assert page.exit_code == 0, page.output
    for path in (tmp_path / "page").rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes()
