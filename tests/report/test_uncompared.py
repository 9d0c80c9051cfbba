"""Which runs are not compared, what is said of them, and which settings do not keep runs apart."""

import pytest
from click.testing import CliRunner
from lm_eval_output import ACC, ROPE, answers, write

from leval_harness.cli.results import table
from leval_harness.report.compare import compare
from leval_harness.report.uncompared import uncompared_sentences
from leval_harness.results.load import load_results

GENERATES = {"output_type": "generate_until"}
READS = {"output_type": "loglikelihood"}
PERPLEXITY = {"token_perplexity@1024,none": 7.0}
YARN = {"config": {"model_args": ROPE}}


def metadata(**values):
    return {"fields": {"metadata": {"version": 1.0, **values}}}


def config(**values):
    return {"config": {"model_args": ROPE, **values}}


SEPARATING = {
    "backend": (config(model="vllm"), "backend (vllm instead of hf)", "--model"),
    "dtype": (config(model_dtype="torch.bfloat16"), "dtype (bfloat16 instead of none)", "dtype in"),
    "generation": (config(gen_kwargs={"top_k": 5}), "gen kwargs", "--gen_kwargs"),
    "chat template": ({**YARN, "chat_template_sha": "abc"}, "chat template (abc", "--apply_chat"),
    "seed": (config(random_seed=7), "seed (7 instead of none)", "--seed"),
    "shots": ({**YARN, "n-shot": {"arc": 5}}, "shots (5 instead of none)", "--num_fewshot"),
    "version": ({**YARN, "versions": {"arc": 2}}, "version (2 instead of none)", "version of lm-eval"),
    "logged samples": (
        {**YARN, "task_hashes": {"arc": "a1"}}, "task hash (", "both with --log_samples"),
    "documents": (
        {**YARN, **metadata(data={"files": {"a": "12"}})}, "data (", "on the same documents"),
    "sample": ({**YARN, **metadata(data={"source": "sample"})}, "sample (True", "same documents"),
}  # fmt: skip


@pytest.mark.parametrize("name", SEPARATING)
def test_uncompared_says_what_differs_and_how(tmp_path, name):
    changes, difference, remedy = SEPARATING[name]
    fields = {**GENERATES, **changes.get("fields", {})}
    write(tmp_path / "a", ACC, fields=GENERATES)
    write(tmp_path / "b", ACC, **{**changes, "fields": fields})
    compared = compare(load_results(tmp_path))
    assert compared["block"].nunique() == 2
    (sentence,) = uncompared_sentences(compared)
    assert sentence.startswith("Not compared: yarn x2 with unmodified on arc, which differ in ")
    assert difference in sentence.partition(". Run them")[0]
    assert remedy in sentence.partition(". Run them")[2]


def test_uncompared_says_partial_runs_apart(tmp_path):
    counts = {"n-samples": {"arc": {"original": 20, "effective": 5}}}
    write(tmp_path / "a", ACC)
    write(tmp_path / "b", ACC, **counts, **config(limit=5))
    (sentence,) = uncompared_sentences(compare(load_results(tmp_path)))
    assert "limit (5.0 instead of none). Run them with the same --limit." in sentence


NOT_READ = {
    "generation": (config(gen_kwargs={"top_k": 5}), "arc", ACC),
    "seed": (config(random_seed=7), "arc", ACC),
    "template of a document": ({**YARN, "chat_template_sha": "abc"}, "ppl_pysource", PERPLEXITY),
    "generation of a document": (config(gen_kwargs={"a": 5}), "ppl_pysource", PERPLEXITY),
}


@pytest.mark.parametrize("name", NOT_READ)
def test_settings_that_a_task_does_not_read_separate_nothing(tmp_path, name):
    changes, task, values = NOT_READ[name]
    write(tmp_path / "a", values, task, fields=READS)
    write(tmp_path / "b", values, task, fields=READS, **changes)
    compared = compare(load_results(tmp_path))
    assert compared["block"].unique().tolist() == ["org/model"]
    assert uncompared_sentences(compared) == []
    assert compared["baseline"].unique().tolist() == ["unmodified"]


def test_uncompared_lengths_are_named(tmp_path):
    for name, length, more in (("a", 4096, {}), ("b", 8192, YARN)):
        write(tmp_path / name, ACC, **metadata(context_length=length), **more)
    assert uncompared_sentences(compare(load_results(tmp_path))) == [
        "Not compared: yarn x2 at 8K with unmodified at 4K. Run them with the same context_length "
        "in --metadata."
    ]


def test_uncompared_questions_are_named(tmp_path):
    write(tmp_path / "a", samples=answers([1, 0, 0]))
    write(tmp_path / "b", samples=answers([1, 0, 0], 9), **YARN)
    (sentence,) = uncompared_sentences(compare(load_results(tmp_path)))
    assert sentence.startswith("Not compared: yarn x2 on arc, which answered other questions")


def test_uncompared_is_silent_on_other_tasks_and_models(tmp_path):
    write(tmp_path / "a", ACC)
    write(tmp_path / "b", ACC, "hellaswag", **config(model_dtype="torch.bfloat16"))
    write(tmp_path / "c", ACC, model_name="org/other", **config(model="vllm"))
    assert uncompared_sentences(compare(load_results(tmp_path))) == []


def test_table_prints_what_is_not_compared_as_one_line(tmp_path):
    write(tmp_path / "a", ACC)
    write(tmp_path / "b", ACC, **config(model="vllm"))
    done = CliRunner().invoke(table, [str(tmp_path)])
    assert done.exit_code == 0
    assert [line for line in done.stdout.splitlines() if line.startswith("Not compared")] == [
        "Not compared: yarn x2 with unmodified on arc, which differ in backend (vllm instead of hf). "
        "Run them with the same --model."
    ]


def test_own_files_are_shown_by_name_and_compared_apart(tmp_path):
    for at, method in enumerate(({}, YARN)):
        for file in ("novels.jsonl", "letters.jsonl"):
            data = {"source": "file", "path": f"/somewhere/{file}", "files": {file: file}}
            write(
                tmp_path / file / f"{at}", PERPLEXITY, "ppl_jsonl", **metadata(data=data), **method
            )
    compared = compare(load_results(tmp_path))
    assert compared["block"].unique().tolist() == ["org/model"]
    assert not compared["note"].str.contains("not ranked").any()
    text = CliRunner().invoke(table, [str(tmp_path)]).stdout
    assert "### novels.jsonl: token perplexity by length" in text
    assert "### letters.jsonl: token perplexity by length" in text
    assert "ppl_jsonl" not in text


def test_own_file_under_a_published_name_is_marked(tmp_path):
    alias = "TOEFL [tpo.jsonl, SHA-256 0123456789ab…]"
    write(tmp_path, {"exact_match,none": 0.5, "alias": f" - {alias}"}, "leval_closed_toefl")
    frame = compare(load_results(tmp_path))
    assert frame["task_title"].tolist() == [alias]
    text = CliRunner().invoke(table, [str(tmp_path)]).stdout
    assert r"TOEFL \[tpo.jsonl, SHA-256 0123456789ab…\]" in text


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_table_exits_1_where_a_number_is_not_finite(tmp_path, value):
    write(tmp_path, {"acc,none": value})
    done = CliRunner().invoke(table, [str(tmp_path)])
    assert "(not finite)" in done.stdout or "not finite" in done.stdout
    assert done.exit_code == 1
    assert str(done.exception).startswith("unmodified, arc, acc: lm-eval wrote ")


def test_tables_across_models_name_model_and_method(tmp_path):
    for model in ("org/a", "org/b"):
        write(tmp_path / model, ACC, model_name=model)
    text = CliRunner().invoke(table, [str(tmp_path), "--across", "models"]).stdout
    assert "| org/a | unmodified | 8K |" in text
    assert "| org/b | unmodified | 8K |" in text
