"""A run's id: the same for the same numbers, another for whatever decides them."""

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from leval_harness.sweep import ConfigError, identity, task_registry
from leval_harness.sweep import plan as runs
from leval_harness.sweep.config import parse_config
from leval_harness.sweep.run_record import run_id
from leval_tasks.common.errors import DataError
from resonance_vllm.common.errors import SettingError

TASK = {
    "task": "own",
    "dataset_path": "json",
    "output_type": "generate_until",
    "doc_to_text": "{{q}}" + " Think about it." * 20,
    "doc_to_target": "{{a}}",
    "metadata": {"version": 1},
}


@pytest.fixture
def checkpoint(checkpoint: Path) -> Path:
    (checkpoint / "tokenizer.json").write_text("{}")
    (checkpoint / "model.safetensors").write_bytes(bytes(4 << 20))
    (checkpoint / "README.md").write_text("words")
    return checkpoint


@pytest.fixture
def task(tmp_path: Path) -> Path:
    folder = tmp_path / "task"
    folder.mkdir()
    (folder / "own.yaml").write_text(yaml.safe_dump({"include": "base.yaml", "task": "own"}))
    (folder / "base.yaml").write_text(yaml.safe_dump(TASK))
    (folder / "prompts.yaml").write_text("one: 'Say {{q}}'\n")
    (folder / "functions.py").write_text("def f(doc): return doc\n")
    (folder / "docs.jsonl").write_text('{"q": 1, "a": 2}\n')
    return folder / "own.yaml"


@pytest.fixture
def content(checkpoint: Path) -> dict[str, Any]:
    return {
        "name": "test",
        "models": {"small": {"path": str(checkpoint), "backend": "hf"}},
        "methods": {"yarn": {"rope_type": "yarn", "factor": 2}},
        "tasks": ["leval_closed_gsm"],
        "metadata": {"data_dir": "sample"},
        "context_lengths": [8192],
    }


def ids(content: dict[str, Any]) -> list[str]:
    return [run.run_id for run in runs.plan(parse_config(content))]


def changed(content: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """A config with settings laid over it, those of its model under `model`."""
    copied = copy.deepcopy(content)
    copied["models"]["small"].update(change.pop("model", {}))
    return copied | change


DECIDES = {
    "factor": {"methods": {"yarn": {"rope_type": "yarn", "factor": 4}}},
    "method": {"methods": {"yarn": {"rope_type": "resonance_yarn", "factor": 2}}},
    "length": {"context_lengths": [4096]},
    "task": {"tasks": ["leval_closed_codeu"]},
    "documents": {"metadata": {"data_dir": "sample", "num_docs": 1}},
    "seed": {"seed": 1},
    "limit": {"limit": 3},
    "generation": {"gen_kwargs": {"max_gen_toks": 32}},
    "longest prompt": {"metadata": {"data_dir": "sample", "context_length": 4096}},
    "precision": {"rope_precision": "model"},
    "few shots": {"num_fewshot": 1},
    "dtype": {"model": {"dtype": "float32"}},
    "backend": {"model": {"backend": "hf-long"}},
    "template": {"model": {"apply_chat_template": True}},
    "batch": {"model": {"batch_size": 2}},
    "argument": {"model": {"args": {"attn_implementation": "eager"}}},
}
DECIDES_NOTHING = {
    "label": {"model": {"label": "Shown"}},
    "jobs": {"jobs": 3},
    "gpus": {"model": {"gpus": 4}},
    "name": {"name": "elsewhere"},
    "baseline and margin": {"baseline": "yarn", "margin": 0.1},
    "name of the method": {"methods": {"y": {"rope_type": "yarn", "factor": 2}}},
    "what another family reads": {"metadata": {"data_dir": "sample", "stride": 3}},
}


@pytest.mark.parametrize("name", [*DECIDES, *DECIDES_NOTHING])
def test_identity_is_what_decides_numbers(content: dict[str, Any], name: str) -> None:
    changes = copy.deepcopy(DECIDES | DECIDES_NOTHING)
    assert (ids(content) != ids(changed(content, changes[name]))) == (name in DECIDES)


GENERATION: list[dict[str, Any]] = [
    {"gen_kwargs": {"max_gen_toks": 6}},
    {"seed": 3},
    {"num_fewshot": 2},
    {"model": {"apply_chat_template": True}},
    {"metadata": {"context_length": 4096, "truncation": "left"}},
]


@pytest.mark.parametrize("task_name", ["ppl_pydocs", "effective_context_pydocs"])
def test_identity_of_running_text_ignores_other_settings(
    content: dict[str, Any], task_name: str
) -> None:
    base = content | {"tasks": [task_name], "metadata": {"context_length": 4096}}
    for change in GENERATION:
        assert ids(base) == ids(changed(base, copy.deepcopy(change)))
    assert ids(base) != ids(base | {"metadata": {"context_length": 4096, "num_docs": 2}})


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        *((name, True) for name in ("config.json", "tokenizer.json", "chat_template.jinja",
          "modeling_own.py", "model-2.safetensors", "adapter_config.json", "merges.txt")),
        *((name, False) for name in ("README.md", "train.log", "optimizer.pt", "rng_state.pth",
          "training_args.bin", "trainer_state.json", "eval/results.json", ".git", "events.out")),
    ],
)  # fmt: skip
def test_identity_counts_files_that_a_loader_opens(
    content: dict[str, Any], checkpoint: Path, name: str, counts: bool
) -> None:
    before = ids(content)
    path = checkpoint / name
    path.parent.mkdir(exist_ok=True)
    old = path.read_text() if path.exists() else ""
    path.write_text(old.replace("{", '{"new": 1, ', 1) or "new")
    assert (ids(content) != before) == counts


@pytest.mark.parametrize(
    ("place", "counts"), [(0, True), ((1 << 20) - 1, True), (3 << 19, False), (-1, True)]
)
def test_weights_count_by_size_and_ends(
    content: dict[str, Any], checkpoint: Path, place: int, counts: bool
) -> None:
    weights, before = checkpoint / "model.safetensors", ids(content)
    os.utime(weights, (1, 1))
    assert ids(content) == before
    with weights.open("r+b") as handle:
        handle.seek(place, os.SEEK_END if place < 0 else os.SEEK_SET)
        handle.write(b"\x01")
    assert (ids(content) != before) == counts


def test_files_of_a_subfolder_count_where_arguments_name_it(
    content: dict[str, Any], checkpoint: Path
) -> None:
    (checkpoint / "inner").mkdir()
    content["models"]["small"]["args"] = {"subfolder": "inner"}
    before = ids(content)
    (checkpoint / "inner" / "generation_config.json").write_text("{}")
    assert ids(content) != before


def test_a_checkpoint_may_lie_anywhere(content: dict[str, Any], checkpoint: Path) -> None:
    before, moved = ids(content), checkpoint.with_name("moved")
    checkpoint.rename(moved)
    content["models"]["small"]["path"] = str(moved)
    assert ids(content) == before


@pytest.mark.parametrize("key", ["peft", "tokenizer"])
def test_files_that_arguments_name_count(content: dict[str, Any], tmp_path: Path, key: str) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "adapter_config.json").write_text("{}")
    content["models"]["small"]["args"] = {key: str(other)}
    before = ids(content)
    (other / "notes.txt").write_text("nothing")
    assert ids(content) == before
    (other / "adapter_config.json").write_text('{"r": 1}')
    assert ids(content) != before


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        (lambda task: task.write_text("# a comment\n" + task.read_text()), False),
        (lambda task: task.write_text("task: own\ninclude: base.yaml\n"), False),
        (lambda task: (task.parent / "base.yaml").write_text(
            "# a comment\n" + yaml.safe_dump(TASK)), False),
        (lambda task: (task.parent / "README.md").write_text("words"), False),
        (lambda task: (task.parent / "sweep.yaml").write_text("models: {}\njobs: 3\n"), False),
        (lambda task: (task.parent / "out").mkdir() or (
            task.parent / "out" / "results_2026-11-28T03-40-01.5.json").write_text("{}"), False),
        (lambda task: (task.parent / "__pycache__").mkdir() or (
            task.parent / "__pycache__" / "x.pyc").write_text(""), False),
        (lambda task: task.write_text("task: own\ninclude: base.yaml\nrepeats: 2\n"), True),
        (lambda task: (task.parent / "base.yaml").write_text(
            yaml.safe_dump({**TASK, "doc_to_text": "{{q}}?"})), True),
        (lambda task: (task.parent / "prompts.yaml").write_text("one: 'Tell {{q}}'\n"), True),
        (lambda task: (task.parent / "functions.py").write_text("def f(doc): return 3\n"), True),
        (lambda task: (task.parent / "docs.jsonl").write_text('{"q": 1, "a": 3}\n'), True),
    ],
    ids=["comment", "order of keys", "comment of an include", "note", "sweep config", "results",
         "compiled", "setting", "include", "prompt", "function", "documents"],
)  # fmt: skip
def test_a_task_file_counts_with_its_folder(
    content: dict[str, Any], task: Path, change: Callable[[Path], object], counts: bool
) -> None:
    content["tasks"] = [str(task)]
    before = ids(content)
    change(task)
    assert (ids(content) != before) == counts


RESULTS = [
    "results_2026-11-28T03-40.json", "samples_own_2026-11-28T03-40.jsonl", "sweep.json", "run.json",
    "failed.json", "log.txt", "losses_own_d-1_full.npy", "table.md", "table.csv", "notes.md",
]  # fmt: skip
"""What lm-eval and sweeps write, which may be the task's own folder."""


@pytest.mark.parametrize("where", ["", "out", "out/runs/abc"])
@pytest.mark.parametrize("name", RESULTS)
def test_identity_results_in_task_folder(
    content: dict[str, Any], task: Path, name: str, where: str
) -> None:
    """They decide nothing themselves, and hide nothing: not what lies beside or below them."""
    folder = task.parent / where
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "utils.py").write_text("def f(doc): return doc\n")
    content["tasks"] = [str(task)]
    before = ids(content)
    (folder / name).write_text("{}")
    assert ids(content) == before
    (folder / "utils.py").write_text("def f(doc): return 3\n")
    changed_function = ids(content)
    assert changed_function != before
    (task.parent / "docs.jsonl").write_text('{"q": 1, "a": 4}\n')
    assert ids(content) not in (before, changed_function)


@pytest.mark.parametrize("name", ["results_gold.json", "samples_train.jsonl", "tables.csv"])
def test_data_with_a_name_like_results_counts(
    content: dict[str, Any], task: Path, name: str
) -> None:
    content["tasks"] = [str(task)]
    (task.parent / name).write_text("{}")
    before = ids(content)
    (task.parent / name).write_text('{"a": 1}')
    assert ids(content) != before


def test_linked_folder_of_a_task_counts(
    content: dict[str, Any], task: Path, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "helpers.py").write_text("A = 1\n")
    (task.parent / "shared").symlink_to(shared)
    (shared / "back").symlink_to(task.parent)  # a link that leads back ends the search
    (task.parent / "gone").symlink_to(tmp_path / "gone")
    content["tasks"] = [str(task)]
    before = ids(content)
    (shared / "helpers.py").write_text("A = 2\n")
    assert ids(content) != before


def test_functions_beside_an_included_file_count(
    content: dict[str, Any], task: Path, tmp_path: Path
) -> None:
    """lm-eval looks for `!function utils.f` beside the file that says it."""
    far = tmp_path / "far"
    far.mkdir()
    (far / "base.yaml").write_text(f"process_results: !function utils.f\n{yaml.safe_dump(TASK)}")
    (far / "utils.py").write_text("def f(doc, results): return {'acc': 1}\n")
    task.write_text("task: own\ninclude: ../far/base.yaml\n")
    content["tasks"] = [str(task)]
    before = ids(content)
    (far / "notes.txt").write_text("nothing")
    assert ids(content) == before
    (far / "utils.py").write_text("def f(doc, results): return {'acc': 0}\n")
    assert ids(content) != before


def test_functions_beside_two_included_files_count(
    content: dict[str, Any], task: Path, tmp_path: Path
) -> None:
    """Folders of one name, each with a module of one name."""
    folders = [tmp_path / "a" / "shared", tmp_path / "b" / "shared"]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "base.yaml").write_text("repeats: 1\n")
        (folder / "utils.py").write_text("A = 1\n")
    includes = ["../a/shared/base.yaml", "../b/shared/base.yaml"]
    task.write_text(yaml.safe_dump({**TASK, "include": includes}))
    content["tasks"] = [str(task)]
    seen = {tuple(ids(content))}
    for folder in folders:
        (folder / "utils.py").write_text("A = 2\n")
        seen.add(tuple(ids(content)))
    assert len(seen) == 3


def test_documents_elsewhere_that_a_task_names_count(
    content: dict[str, Any], task: Path, tmp_path: Path
) -> None:
    data = tmp_path / "far.jsonl"
    data.write_text("{}\n")
    (task.parent / "binary.yaml").write_bytes(b"\xff")  # no YAML of a task
    named = {**TASK, "dataset_kwargs": {"data_files": {"test": str(data)}}}
    task.write_text(yaml.safe_dump(named))
    content["tasks"] = [str(task)]
    content["metadata"]["data_dir"] = "where"  # of other people's tasks, which may mean anything
    before = ids(content)
    data.write_text('{"q": 1}\n')
    assert ids(content) != before


def test_data_counts_by_content_wherever_it_lies(content: dict[str, Any], tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pg19.jsonl").write_text('{"text": "words"}\n')
    content |= {"tasks": ["ppl_pg19"], "metadata": {"data_dir": str(tmp_path / "one")}}
    before = ids(content)
    content["metadata"]["data_dir"] = str(tmp_path / "two")
    assert ids(content) == before
    (tmp_path / "two" / "pg19.jsonl").write_text('{"text": "other words"}\n')
    assert ids(content) != before


@pytest.mark.parametrize("package", ["leval-harness", "lm_eval", "torch", "transformers", "vllm"])
def test_a_version_that_computes_counts(
    content: dict[str, Any], monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    before, real = ids(content), identity.version
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")  # no part of it
    assert ids(content) == before
    monkeypatch.setattr(identity, "version", lambda name: real(name) + "9" * (name == package))
    identity.package_versions.cache_clear()
    after = ids(content)
    identity.package_versions.cache_clear()
    assert (after != before) == (package != "vllm"), "the model runs on transformers"


def test_identity_replaces_arguments_that_name_models(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "resolve_commit", lambda name, revision: ("of " + name, None))
    others = {"note": str(checkpoint), "fraction": "and/or"}
    assert identity.with_digests(others) == others
    files = identity.checkpoint_digests(checkpoint)
    named = {"peft": str(checkpoint), "inner": [{"model": "org/name"}]}
    hub = {"hub": "org/name", "commit": "of org/name"}
    assert identity.with_digests(named) == {"peft": files, "inner": [{"model": hub}]}


def test_a_version_of_our_task_counts(
    content: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, real = ids(content), task_registry.own_tasks()
    later = real["leval_closed_gsm"]._replace(version="later")
    monkeypatch.setattr(task_registry, "own_tasks", lambda: {**real, "leval_closed_gsm": later})
    assert ids(content) != before


def test_an_id_is_the_hash_of_what_is_declared(content: dict[str, Any]) -> None:
    (run,) = runs.plan(parse_config(content))
    again = json.loads(json.dumps(run.written()))
    assert run_id(dict(reversed(again["identity"].items()))) == run.run_id


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"methods": {"a": {"rope_type": "yarn", "factor": 2}, "b": {"rope_type": "yarn",
          "factor": 2.0}}}, ConfigError, "two runs compute the same: 'small | a"),
        ({"context_lengths": [16384]}, ConfigError, "above the limit of 8192 tokens"),
        pytest.param({"tasks": ["leval_closed_gms"]}, ConfigError,
                     "did you mean .*leval_closed_gsm", marks=pytest.mark.slow),
        ({"tasks": ["nowhere.yaml"]}, ConfigError, "tasks: there is no file nowhere.yaml"),
        ({"tasks": ["ppl_pg19"], "metadata": {"data_dir": str(Path(__file__).parent)}}, DataError,
         "has no pg19.jsonl"),
        ({"model": {"path": "./nowhere"}}, SettingError, "small.path: there is no folder"),
        ({"metadata": {"data_dir": "sample", "num_docs": 0}}, ConfigError, r"metadata\.num_docs"),
    ],
)  # fmt: skip
def test_what_cannot_be_computed_is_refused(
    content: dict[str, Any], change: dict[str, Any], error: type, message: str
) -> None:
    with pytest.raises(error, match=message):
        ids(changed(content, dict(change)))
