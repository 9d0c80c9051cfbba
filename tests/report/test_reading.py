"""Reading results: sweeps, lm-eval alone, and what is damaged."""

import ast
import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from lm_eval_output import ACC, ROPE, answers, run, sample, write

from leval_harness.report.compare import compare
from leval_harness.report.effective_context import compared_frame
from leval_harness.report.labels import SAMPLE
from leval_harness.report.uncompared import uncompared_sentences
from leval_harness.results.lm_eval_files import IN_OTHER_COLUMNS, NOT_DECIDING, deciding_arguments
from leval_harness.results.load import ResultsError, load_results

EFFECTIVE = Path(__file__).parent / "effective"
YARN = {"rope_type": "yarn", "factor": 2.0}


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_load_results_run_is_a_row_of_each_frame(tmp_path):
    run(tmp_path / "s")
    results = load_results(tmp_path)
    (row,) = results.runs.to_dict("records")
    told = {"id": "c1", "model": "SmolLM2", "method": "yarn", "context_length": 8192,
            "rope": '{"factor": 2, "rope_type": "yarn"}', "seconds": 50.0, "status": "done",
            "tokens_prefilled": 1000, "gen_kwargs": '{"temperature": 0}',
            "checkpoint": "/models/smollm2", "command": "leval-harness sweep x.yaml",
            "sweep": str(tmp_path / "s")}  # fmt: skip
    assert {name: row[name] for name in told} == told
    (score,) = results.scores.to_dict("records")
    assert (score["task"], score["name"], score["filter"]) == (
        "leval_closed_gsm", "exact_match", "none",
    )  # fmt: skip
    assert (score["value"], score["asked"], score["length"]) == (1 / 3, 3, 8192)
    samples = results.samples.set_index(["metric", "question"])["num"]
    assert samples["exact_match"].tolist() == [1, 0, 0]
    assert samples["truncated"].tolist() == [1, 0, 0]
    assert samples["unparsed"].tolist() == [0, 0, 1]
    assert samples["kept_tokens"].tolist() == [7, 7, 7]


def sweep_json(folder, *runs, **more):
    content = {"schema_version": 1, "name": "s", "baseline": "rope", "margin": 0.03,
               "command": "leval-harness sweep s.yaml", "runs": runs, **more}  # fmt: skip
    (folder / "sweep.json").write_text(json.dumps(content))


def listed(name, **more):
    return {"id": name, "model": "SmolLM2", "label": None, "method": "yarn",
            "context_length": 4096, "tasks": ["leval_closed_gsm"], **more}  # fmt: skip


def test_load_results_of_a_sweep_has_order_and_missing_runs(tmp_path):
    for name in ("aa", "bb", "old"):
        run(tmp_path / "s", name)
    sweep_json(tmp_path / "s", listed("bb", label="My model", method="best"), listed("aa"),
               listed("cc"), listed("dd"))  # fmt: skip
    failed = tmp_path / "s" / "failed" / "cc"
    failed.mkdir(parents=True)
    (failed / "failed.json").write_text('{"reason": "out of memory", "when": "now"}')
    (tmp_path / "s/.work/partial").mkdir(parents=True)
    (tmp_path / "s/.work/partial/run.json").write_text("{")
    results = load_results(tmp_path)
    rows = results.runs[["id", "model", "method", "status", "note"]].to_numpy().tolist()
    assert rows == [
        ["bb", "My model", "best", "done", ""],
        ["aa", "SmolLM2", "yarn", "done", ""],
        ["cc", "SmolLM2", "yarn", "failed", "out of memory"],
        ["dd", "SmolLM2", "yarn", "unfinished", "not finished"],
    ]
    assert set(results.runs["baseline"]) == {"rope"}
    assert set(results.runs["margin"]) == {0.03}
    (excluded,) = results.excluded
    assert "old: of an earlier config" in str(excluded)
    stopped = results.scores[results.scores["name"].isna()]
    assert stopped["status"].tolist() == ["failed", "unfinished"]
    assert stopped["task"].tolist() == ["leval_closed_gsm"] * 2


def test_blocks_of_a_run_without_numbers_are_its_sweeps(tmp_path):
    folder = run(tmp_path / "s", "aa")
    of_sample = {"leval_closed_gsm": {"metadata": {"data": {"source": "sample"}}}}
    edit(next(folder.glob("results_*")), lambda c: c.update(configs=of_sample))
    sweep_json(tmp_path / "s", listed("bb"), listed("aa"))
    titles = compare(load_results(tmp_path)).groupby("status")["block"].first()
    assert titles["unfinished"] == titles["done"] == f"SmolLM2 · {SAMPLE}"


def test_label_is_plain_beside_an_unfinished_run(sweep, tmp_path):
    """Of one of two lengths of Resonance YaRN there are numbers yet."""
    finished = "08bb317f52c8b00f"
    others = {run.name for run in (sweep / "runs").iterdir()} - {finished}
    shutil.copytree(sweep, tmp_path / "s", ignore=shutil.ignore_patterns(*others))
    compared = compare(load_results(tmp_path / "s"))
    of_method = compared[compared["method"] == "resonance_yarn"]
    assert set(of_method["status"]) == {"done", "unfinished"}
    assert set(of_method["label"]) == {"resonance_yarn"}


def test_load_results_counts_a_run_once(tmp_path):
    run(tmp_path / "a")
    write(tmp_path / "plain", ACC)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    shutil.copytree(tmp_path / "plain", tmp_path / "again")
    results = load_results(tmp_path, tmp_path / "a")
    assert len(results.runs) == 2
    assert {each.reason[:11] for each in results.excluded} == {"found twice"}


PLAIN = {
    "a dictionary": {"pretrained": "m", "rope_parameters": YARN, "max_length": 4096},
    "text": 'pretrained=m,rope_parameters={"rope_type": "yarn", "factor": 2.0},max_length=4096',
    "vLLM's overrides": {"hf_overrides": {"rope_parameters": YARN}, "max_model_len": 4096},
    "rope_scaling in overrides": {"hf_overrides": {"rope_scaling": {"type": "yarn", "factor": 2}},
                                  "max_model_len": 4096},
    "nested overrides": {"hf_overrides": {"text_config": {"rope_parameters": YARN}},
                         "max_model_len": 4096},
    "SGLang's overrides": {"json_model_override_args": json.dumps({"rope_scaling": YARN}),
                           "context_length": 4096},
    "the overrides as text": {"hf_overrides": json.dumps({"rope_parameters": YARN}),
                              "max_model_len": 4096},
}  # fmt: skip


@pytest.mark.parametrize("how", PLAIN)
def test_method_of_a_plain_run_is_that_of_its_arguments(tmp_path, how):
    write(tmp_path, ACC, config={"model_args": PLAIN[how]}, date=1767323045.5)
    (run,) = load_results(tmp_path).runs.to_dict("records")
    assert (run["model"], run["method"], run["context_length"]) == ("org/model", "yarn x2", 4096)
    assert run["created"] == "2026-01-02T03:04:05+00:00"


@pytest.mark.parametrize(
    ("arguments", "method"),
    [
        ("pretrained=m", "unmodified"),
        ("model=m,base_url=http://one:8000/v1", "as served"),
        ({"rope_parameters": {"type": "linear", "factor": 2}}, "linear x2"),
        ({"rope_parameters": {"full": YARN, "sliding": {"rope_type": "default"}}},
         "yarn x2"),
        ({"rope_parameters": {"rope_theta": 5e5}}, "default base 500000"),
        ({"rope_theta": 5e5}, "unmodified base 500000"),
    ],
)  # fmt: skip
def test_method_that_is_unknown_is_not_claimed(tmp_path, arguments, method):
    write(tmp_path, ACC, config={"model_args": arguments})
    assert load_results(tmp_path).runs["method"].tolist() == [method]


def test_method_names_of_a_served_model(tmp_path):
    for at in "ab":
        write(tmp_path / at, ACC, config={"model_args": f"model=m,base_url=http://{at}/v1"},
              date=ord(at))  # fmt: skip
    labels = compare(load_results(tmp_path))["label"].tolist()
    assert labels == ["as served (http://a/v1)", "as served (http://b/v1)"], "told by their address"
    names = {str(tmp_path / "a"): "Resonance YaRN"}
    assert load_results(tmp_path, method_names=names).runs["method"].tolist() == [
        "Resonance YaRN", "as served",
    ]  # fmt: skip
    with pytest.raises(ResultsError, match="no method, run or folder 'nope'; methods: as served"):
        load_results(tmp_path, method_names={"nope": "x"})


OLD = {"results": {"hellaswag": {"acc": 0.25, "acc_stderr": 0.05}}, "versions": {"hellaswag": 0},
       "config": {"model": "gpt2", "limit": None}}  # fmt: skip


def test_load_results_refuses_files_of_an_old_lm_eval(tmp_path):
    (tmp_path / "results_1.json").write_text(json.dumps(OLD))
    message = r"older than 0\.4\.5: the metric 'acc' names no filter; evaluate again"
    with pytest.raises(ResultsError, match=message):
        load_results(tmp_path)


@pytest.mark.parametrize(
    "argument",
    [
        ("load_in_4bit", True), ("revision", "abc"), ("enable_thinking", True), ("peft", "adapter"),
        ("quantization", "fp8"), ("kv_cache_dtype", "fp8"), ("trust_remote_code", True),
        ("attn_implementation", "eager"), ("add_bos_token", True),
        ("add_bos_token", False), ("enable_thinking", False), ("prefix_token_id", 3),
        ("think_end_token", "</think>"), ("softmax_dtype", "float32"), ("delta", "d"),
        ("an_argument_of_tomorrow", 7), ("max_position_embeddings", 16384),
        ("hf_overrides", {"sliding_window": 512}),
        ("json_model_override_args", {"num_experts_per_tok": 2}),
        ("hf_overrides", {"text_config": {"attention_chunk_size": 64}}),
    ],
)  # fmt: skip
def test_arguments_that_can_change_a_number_are_in_labels(tmp_path, argument):
    name, value = argument
    write(tmp_path / "a", ACC, config={"model_args": {"pretrained": "m"}}, date=1)
    write(tmp_path / "b", ACC, config={"model_args": {"pretrained": "m", name: value}}, date=2)
    rows = compare(load_results(tmp_path))
    assert rows["label"].tolist() == ["unmodified", f"unmodified ({name} {value})"]
    assert not rows["note"].str.contains("repeats it").any()


DECIDING = {
    "add_bos_token", "autogptq", "backend", "chat_template_args", "custom_prefix_token_id", "delta",
    "enable_thinking", "eos_string", "gguf_file", "gptqmodel", "kv_cache_dtype", "load_format",
    "logits_cache", "lora_local_path", "max_gen_toks", "max_images", "max_lora_rank",
    "mixed_precision_dtype", "peft", "prefix_token_id", "quantization", "revision", "seed",
    "softmax_dtype", "subfolder", "think_end_token", "tokenized_requests", "tokenizer",
    "tokenizer_backend", "tokenizer_mode", "tokenizer_path", "tokenizer_revision", "truncate",
    "truncation", "truncation_side", "trust_remote_code", "use_fast_tokenizer",
}  # fmt: skip
"""Arguments of lm-eval's models that can change a number."""


def arguments_of_lm_eval():
    """The arguments of the classes of lm-eval that run models, from their source."""
    folder = Path(importlib.util.find_spec("lm_eval").origin).parent / "models"
    names = set()
    for file in ("huggingface", "vllm_causallms", "api_models", "sglang_causallms"):
        for node in ast.walk(ast.parse((folder / f"{file}.py").read_text())):
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                names |= {each.arg for each in node.args.args + node.args.kwonlyargs}
    return names - {"self"}


def test_arguments_of_lm_eval_are_all_decided_on():
    known = DECIDING | NOT_DECIDING | IN_OTHER_COLUMNS
    assert arguments_of_lm_eval() - known == set()
    assert {*deciding_arguments(dict.fromkeys(known, "a value"))} == DECIDING


LONG = "/a/path/of/many/characters" * 3
EXAMPLES = {"n-shot": {"arc": 5}}
GENERATED = {"output_type": "generate_until"}
SAMPLED = {"do_sample": True, "max_gen_toks": 512, "temperature": 0.7, "top_p": 0.95}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"system_instruction": "Be terse."}, {}),
        ({"system_instruction": "Be terse."}, {"system_instruction": "Be exact."}),
        ({**EXAMPLES, "fewshot_as_multiturn": True}, EXAMPLES),
        ({**EXAMPLES, "config": {"fewshot_seed": 1}}, {**EXAMPLES, "config": {"fewshot_seed": 2}}),
        ({"fields": GENERATED, "config": {"torch_seed": 1}}, {"fields": GENERATED}),
        ({"fields": GENERATED, "config": {"numpy_seed": 1}}, {"fields": GENERATED}),
        ({"config": {"model_sha": "a" * 40}}, {"config": {"model_sha": "b" * 40}}),
        ({"config": {"peft_sha": "a" * 40}}, {"config": {"peft_sha": "b" * 40}}),
        ({"fields": {"doc_to_text": "Q: {{q}}"}}, {"fields": {"doc_to_text": "{{q}}"}}),
        ({"fields": {"generation_kwargs": {"max_gen_toks": 16}}},
         {"fields": {"generation_kwargs": {"max_gen_toks": 512}}}),
        ({"config": {"gen_kwargs": {**SAMPLED, "top_k": 20}}},
         {"config": {"gen_kwargs": {**SAMPLED, "top_k": 50}}}),
        ({"config": {"model_args": {"pretrained": f"{LONG}/a"}}},
         {"config": {"model_args": {"pretrained": f"{LONG}/b"}}}),
        ({"config": {"model_args": {"one": LONG, "two": LONG, "z": 1}}},
         {"config": {"model_args": {"one": LONG[1:], "two": LONG[1:], "z": 2}}}),
    ],
)  # fmt: skip
def test_settings_of_lm_eval_are_no_repetition(tmp_path, one, other):
    write(tmp_path / "a", ACC, date=1, **one)
    write(tmp_path / "b", ACC, date=2, **other)
    rows = compare(load_results(tmp_path))
    assert not rows["note"].str.contains("repeats it").any()
    assert len({*zip(rows["block"], rows["label"], strict=True)}) == 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"config": {"gen_kwargs": "temperature=0.0,top_p=1"}},
         {"config": {"gen_kwargs": {"temperature": 0, "top_p": 1.0}}}),
        ({"config": {"model_args": {"pretrained": "m", "hf-overrides": '{"sliding_window": 5}'}}},
         {"config": {"model_args": {"pretrained": "m", "hf_overrides": {"sliding_window": 5}}}}),
        ({"config": {"model_sha": "a" * 40}}, {"config": {"model_sha": ""}}),
        ({"config": {"fewshot_seed": 1}}, {"config": {"fewshot_seed": 2}}),
        ({"fields": GENERATED, "config": {"torch_seed": 1234, "random_seed": 0}},
         {"fields": GENERATED, "config": {"torch_seed": 0, "random_seed": 0}}),
        ({"fields": {"doc_to_text": "<function f at 0x7f01>"}},
         {"fields": {"doc_to_text": "<function f at 0x7f02>"}}),
        ({"fewshot_as_multiturn": True}, {"fewshot_as_multiturn": False}),
    ],
)  # fmt: skip
def test_settings_of_lm_eval_that_say_the_same_are(tmp_path, one, other):
    write(tmp_path / "a", ACC, date=1, **one)
    write(tmp_path / "b", ACC, date=2, **other)
    assert compare(load_results(tmp_path))["note"].str.contains("repeats it").sum() == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("token", "hf_SECRET"), ("api_key", "SECRET"), ("auth_token", "SECRET"),
        ("header", {"Authorization": "Bearer SECRET"}), ("header", "Authorization: SECRET"),
        ("base_url", "http://host/v1?api_key=SECRET&version=2"),
        ("base_url", "http://me:SECRET@host/v1"), ("password", "SECRET"),
    ],
)  # fmt: skip
def test_credentials_in_results_are_in_no_frame(tmp_path, name, value):
    write(tmp_path / "a", ACC, config={"model_args": {"model": "m", name: value}}, date=1)
    write(tmp_path / "b", ACC, config={"model_args": {"model": "n", "base_url": "http://b"}})
    results = load_results(tmp_path)
    everything = results.runs.to_csv() + compare(results).to_csv()
    assert "SECRET" not in everything
    if name == "base_url":
        assert "host/v1" in everything


@pytest.mark.parametrize(
    ("one", "other", "label"),
    [
        ({"args": {}}, {"args": {"load_in_4bit": True}}, "yarn (load_in_4bit True)"),
        ({"revision": "a"}, {"revision": "b"}, "yarn (revision b)"),
        ({"args": {"load_format": "auto"}}, {"args": {"load_format": "dummy"}},
         "yarn (load_format dummy)"),
    ],
)  # fmt: skip
def test_arguments_of_a_sweep_are_in_labels(tmp_path, one, other, label):
    for name, settings in (("a", one), ("b", other)):
        folder = run(tmp_path, name)
        edit(folder / "run.json", lambda content, new=settings: content["model"].update(new))
    rows = compare(load_results(tmp_path))
    assert label in rows["label"].tolist()
    assert not rows["note"].str.contains("repeats it").any()


def test_deciding_arguments_drops_a_default_alone(tmp_path):
    write(tmp_path / "a", ACC, config={"model_args": {"trust_remote_code": False}})
    write(tmp_path / "b", ACC, config={"model_args": {"trust_remote_code": True}})
    assert load_results(tmp_path).runs["arguments"].fillna("").tolist() == [
        "", '{"trust_remote_code": true}',
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow(long=True) if number % 6 else ())
        for number, name in enumerate(sorted(NOT_DECIDING))
    ],
)
def test_arguments_that_change_no_number_are_ignored(tmp_path, name):
    write(tmp_path / "a", ACC, config={"model_args": {"pretrained": "m"}}, date=1)
    write(tmp_path / "b", ACC, config={"model_args": {"pretrained": "m", name: "3"}}, date=2)
    rows = compare(load_results(tmp_path))
    assert rows["note"].str.contains("repeats it").sum() == 1


@pytest.mark.parametrize(
    ("metadata", "length"),
    [
        ({"context_length": 640}, 640),
        ({"context_length": [512, 1024]}, 1024),
        ({"prompt": {"context_length": 640}}, 640),
        ({"max_seq_lengths": [4096, 16384]}, 16384),
        ({"max_seq_lengths": "4k"}, 4096),
        ({"max_seq_lengths": "128K"}, 131072),
        ({"max_seq_lengths": "0k"}, None),
        ({}, 8192),
    ],
)
def test_context_length_is_that_of_the_task(tmp_path, metadata, length):
    write(tmp_path, ACC, fields={"metadata": metadata})
    (stated,) = load_results(tmp_path).runs["context_length"].astype(object).where(pd.notna, None)
    assert stated == length


def test_scores_that_are_not_finite_say_where(tmp_path):
    metadata = {"not_finite": {"govreport-3": 514}}
    write(tmp_path, {"loss,none": float("nan")}, "effective_context_govreport",
          fields={"metadata": metadata})  # fmt: skip
    (score,) = load_results(tmp_path).scores.to_dict("records")
    assert score["status"] == "not finite"
    assert score["note"] == "NaN from position 514 of document govreport-3"


def test_scores_of_groups_are_beside_their_tasks(tmp_path):
    """Of RULER at one length the group has no other number than -1 elsewhere."""
    tasks = {f"niah_{at}": {"alias": "x", "8192,none": value, "4096,none": -1}
             for at, value in enumerate((0.5, 0.2))}  # fmt: skip
    group = {"ruler": {"8192,none": 0.35, "4096,none": -1.0, "alias": "ruler"}}
    content = {"results": tasks | group, "groups": group, "group_subtasks": {"ruler": list(tasks)}}
    write(tmp_path, ACC, **content)
    results = load_results(tmp_path)
    found = results.scores.set_index("task")
    assert found["value"].to_dict() == {"niah_0": 0.5, "niah_1": 0.2, "ruler": 0.35}
    assert found["length"].tolist() == [8192] * 3
    assert found["group"].to_dict() == {"niah_0": False, "niah_1": False, "ruler": True}
    assert {each.reason for each in results.excluded} == {"-1: no question of this length"}


def test_scores_that_are_not_available_have_a_status(tmp_path):
    values = {"acc,none": "N/A", "f1,none": float("nan"), "ppl,none": float("inf"),
              "em,none": "0.25", "bypass,none": 999}  # fmt: skip
    write(tmp_path, values)
    results = load_results(tmp_path)
    found = results.scores.set_index("name")
    assert found["status"].to_dict() == {
        "acc": "not available", "f1": "not finite", "ppl": "not finite", "em": "done",
        "bypass": "unscored",
    }  # fmt: skip
    assert found.loc["em", "value"] == 0.25, "lm-eval writes numbers of numpy as text"
    assert found.loc["acc", "note"] == "lm-eval wrote N/A"
    assert compare(results)["value"].notna().sum() == 1


def damage_samples(folder):
    path = next(folder.glob("samples_*"))
    path.write_text(path.read_text().replace('"exact_match": 1.0', '"exact_match": 0.0', 1))


def lose_a_sample(folder):
    path = next(folder.glob("samples_*"))
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))


def cut_short(folder):
    path = next(folder.glob("samples_*"))
    path.write_text(path.read_text()[:-40])


DAMAGE = {
    "no results": (lambda f: next(f.glob("results_*")).unlink(), "no results_*.json"),
    "results are cut": (lambda f: next(f.glob("results_*")).write_text('{"re'), "cannot be read"),
    "results of nothing": (lambda f: next(f.glob("results_*")).write_text("{}"), "no task"),
    "other samples": (damage_samples, "the samples give 0"),
    "a sample is missing": (lose_a_sample, "3 samples were scored, 2 are logged"),
    "samples are cut": (cut_short, "line 3 is not JSON"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_scores_of_damaged_files_say_why(tmp_path, what):
    change, said = DAMAGE[what]
    run(tmp_path, "good", method={"name": "good"})
    change(run(tmp_path, "bad", method={"name": "bad"}))
    rows = compare(load_results(tmp_path)).set_index("label")
    assert rows.loc["good", "value"] == 1 / 3
    (bad,) = rows.drop(index="good").to_dict("records")
    assert (bad["status"], np.isnan(bad["value"])) == ("malformed", True)
    assert said in bad["note"]


def test_excluded_names_files_that_cannot_be_read(tmp_path):
    write(tmp_path, ACC)
    for at, text in enumerate(('{"run', "[]", '{"run_id": "x", "model": {"name": "m"}}')):
        (tmp_path / f"{at}").mkdir()
        (tmp_path / f"{at}" / "run.json").write_text(text)
    for name, text in {"other": '{"results": [1]}', "notes": "{}", "broken": '{"results": {',
                       "results_2": "[]", "results_3": ""}.items():  # fmt: skip
        (tmp_path / f"{name}.json").write_text(text)
    results = load_results(tmp_path)
    assert len(results.runs) == 1
    said = {each.file.name if each.file.name != "run.json" else each.file.parent.name: each.reason
            for each in results.excluded}  # fmt: skip
    assert set(said) == {"broken.json", "results_2.json", "results_3.json", "0", "1", "2"}
    assert "holds a list, not an object" in said["1"]
    assert "'method'" in said["2"]
    assert all(each.startswith("cannot be read (") for each in said.values())


def test_load_results_errors_say_what_to_do(tmp_path):
    with pytest.raises(ResultsError, match=r"no run\.json and no results of lm-eval"):
        load_results(tmp_path)
    with pytest.raises(ResultsError, match="absent: no such folder; give a folder with results"):
        load_results(tmp_path / "absent")
    folder = run(tmp_path)
    edit(folder / "run.json", lambda c: c.update(schema_version=99))
    with pytest.raises(ResultsError, match=r"schema_version 99 is newer than .*upgrade"):
        load_results(tmp_path)


def test_samples_without_a_filter_belong_to_the_only_one(tmp_path):
    rows = [{k: v for k, v in row.items() if k != "filter"} for row in answers([1, 0, 1, 1])]
    write(tmp_path / "one", None, samples=rows)
    results = load_results(tmp_path / "one")
    assert results.samples["filter"].tolist() == ["none"] * 4
    write(tmp_path / "two", {"acc,a": 0.75, "acc,b": 0.5}, samples=rows)
    results = load_results(tmp_path / "two")
    assert results.samples.empty
    assert "which filter" in str(results.excluded[-1])


def test_samples_skip_prompts_that_read_like_a_key(tmp_path):
    """Prompts are skipped while numbers are read."""
    rows = answers([1, 0, 0, 1])
    tricky = '", "resps": ", "arguments": {'
    for row in rows:
        row["doc"] = {"question": tricky, "arguments": {"resps": [tricky]}}
        row["arguments"] = {"gen_args_0": {"arg_0": tricky * 3}}
    rows = [{k: row[k] for k in sorted(row, key="doc_id doc arguments resps filter".find)}
            for row in rows]  # fmt: skip
    write(tmp_path, None, samples=rows)
    assert load_results(tmp_path).samples["num"].tolist() == [1, 0, 0, 1]


def test_samples_of_one_hash_are_several_questions(tmp_path):
    write(tmp_path, None, samples=[sample(at, at % 2, asked="same") for at in range(4)])
    found = compare(load_results(tmp_path))
    assert (found["n"].item(), found["status"].item()) == (4, "done")


def test_labels_of_rope_ignore_the_type_of_a_number(tmp_path):
    for at, kind in enumerate((int, float)):
        rope = {"rope_type": "yarn", "factor": kind(2), "beta_fast": kind(32)}
        write(tmp_path / f"{at}", ACC, f"arc{at}",
              config={"model_args": {**ROPE, "rope_parameters": rope}})  # fmt: skip
    assert set(compare(load_results(tmp_path))["label"]) == {"yarn x2"}


@pytest.mark.parametrize("native_length", [1024, 2560, 4096])
def test_blocks_reference_beyond_native_length(tmp_path, native_length):
    """Without a reference run, the unmodified model's own read serves where one window holds it."""
    shutil.copytree(EFFECTIVE, tmp_path / "sweep")
    for path in (tmp_path / "sweep").glob("runs/*"):
        if json.loads((path / "run.json").read_text())["method"]["name"] == "reference":
            shutil.rmtree(path)
            continue
        (results,) = path.glob("results_*.json")
        native = f'"shipped_length": {native_length}'
        results.write_text(results.read_text().replace('"shipped_length": 256', native))
    blocks = load_results(tmp_path).blocks
    ends = (blocks["start"] + blocks["tokens"]).groupby(blocks["document"]).transform("max")
    fits = ends <= native_length
    assert fits.any() == (native_length > 1024)
    assert fits.all() == (native_length == 4096)
    assert fits.equals(blocks["reference"].notna())
    assert fits.equals(blocks["difference"].notna())


def effective_run(folder, reference, full, rope=None, windows="both"):
    """A run of lm-eval alone on one document of two blocks, with sums of both reads."""
    rows = [
        [64 * at, 64, full, reference, full - reference] if windows == "both"
        else [64 * at, 64, full, None, None]
        for at in (2, 3)
    ]  # fmt: skip
    line = sample(0, [full, 64], "loss", filtered_resps=[rows],
                  doc={"document_id": "a", "cluster": "a", "tokens_sha256": "1"})  # fmt: skip
    metadata = {"shipped_length": 128, "settings": {"window": 128}}
    arguments = {"pretrained": "m", **({"rope_parameters": rope} if rope else {})}
    values = {"loss,none": full / 64}
    return write(folder, values, "effective_context_pydocs", [line], stamp=f"s{full}",
                 fields={"metadata": metadata}, config={"model_args": arguments})  # fmt: skip


def test_reference_of_a_method_is_the_unmodified_model(tmp_path):
    """lm-eval alone reads the windows under the method: they are no reference of it."""
    effective_run(tmp_path / "a", reference=128.0, full=130.0)
    effective_run(tmp_path / "b", reference=150.0, full=140.0, rope=YARN)
    blocks = load_results(tmp_path).blocks.groupby("run")
    assert blocks["reference"].unique().tolist() == [[128.0], [128.0]]
    assert blocks["difference"].unique().tolist() == [[2.0], [12.0]]


def test_reference_of_a_method_alone_is_missing(tmp_path):
    effective_run(tmp_path, reference=150.0, full=140.0, rope=YARN)
    results = load_results(tmp_path)
    assert results.blocks["reference"].isna().all()
    assert results.blocks["difference"].isna().all()
    (sentence,) = uncompared_sentences(compared_frame(results))
    assert sentence.startswith("Without a reference: yarn x2. Evaluate the unmodified model")


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (("/a/llama", "/b/qwen"), ["llama", "qwen"]),
        (("/a/llama", "/b/llama"), ["/a/llama", "/b/llama"]),
        (("org/llama", "/b/qwen"), ["org/llama", "qwen"]),
        (("org/llama", "/b/llama"), ["org/llama", "/b/llama"]),
    ],
)
def test_models_in_folders_are_shown_by_name(tmp_path, names, shown):
    for at, name in enumerate(names):
        write(tmp_path / f"{at}", ACC, f"arc{at}", model_name=name)
    assert load_results(tmp_path).runs["model"].tolist() == shown
