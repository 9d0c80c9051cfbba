"""One setting is changed at a time: another cell id, or a reason why the numbers are the same."""

import ast
import copy
import importlib.util
import json
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from leval_harness.backends.arguments import HFLongSettings
from leval_harness.cell_record import CellRecord
from leval_harness.old_results.settings import ARGUMENTS_ASIDE, model_arguments
from leval_harness.secrets import is_credential, without_credentials
from leval_harness.sweep import cells
from leval_harness.sweep.config import (
    RESERVED_ARGS,
    EntrySettings,
    ModelConfig,
    SweepConfig,
    TaskEntry,
    parse_config,
)
from leval_harness.sweep.task_registry import SETTINGS
from leval_tasks.data import SAMPLE
from leval_tasks.generation import GenerationSettings

REASONS = {
    "name": "names a folder",
    "models": "changed setting by setting",
    "methods": "a name is a label; the dictionary behind it is tested in test_identity",
    "baseline": "says what tables compare with",
    "margin": "says which differences tables count as none",
    "timeout": "a cell that is ended has no numbers",
    "jobs": "cells at a time, each in a process of its own",
    "confirm_run_unsafe_code": "without it a task that needs it does not run",
    "models.small.name": "a label",
    "models.small.path": "the hashes of the files count, wherever they are",
    "models.small.revision": "the commit that it means counts; of a folder there is none",
    "models.small.methods": "which cells there are",
    "models.small.tokens_per_second": "a guess for --dry-run",
    "models.small.resources": "where Ray puts the cell",
    "metadata.data_dir": "the hashes of the documents count, wherever they are",
}
"""The settings that are no part of a cell's id, and why: the one list of them."""

OTHERS = {
    "backend": "hf-long", "device": "cuda:1", "apply_chat_template": True, "path": "{other}",
    "data_dir": "{data}", "methods": ["rope"], "context_lengths": [1024],
    "task_gen_kwargs": {"leval_closed_gsm": {"max_gen_toks": 9}},
    "frame": "plain", "tasks": ["leval_closed_gsm"], "args": {"x": 1}, "own_data": False,
    "context_length": [1024, 2048], "revision": "main",
    "resources": {"num_cpus": 3}, "metadata": {"num_docs": 2}, "bos": True,
    "name": "other", "baseline": "rope", "margin": 0.02, "gen_kwargs": {"temperature": 0.7},
    "top_p": 0.5, "min_p": 0.5,
}  # fmt: skip
"""Another value for what a rule below cannot guess."""


def another(name: str, annotation: Any, default: Any) -> Any:
    """A value that a setting may have and does not have by itself."""
    if name in OTHERS:
        return copy.deepcopy(OTHERS[name])
    choices, literals = list(_flat(annotation)), list(_literals(annotation))
    if literals:
        return next(each for each in literals if each != default)
    if isinstance(default, bool) or bool in choices:
        return not default
    if int in choices or float in choices:
        return (default or 6) + 1
    return "another"


def _flat(annotation: Any) -> Iterator[Any]:
    yield annotation
    if typing.get_origin(annotation) is not typing.Literal:
        for each in typing.get_args(annotation):
            yield from _flat(each)


def _literals(annotation: Any) -> Iterator[Any]:
    for each in _flat(annotation):
        if typing.get_origin(each) is typing.Literal:
            yield from typing.get_args(each)


def fields(model: type[BaseModel]) -> Iterator[tuple[str, Any, Any]]:
    for name, field in model.model_fields.items():
        yield name, field.annotation, None if field.is_required() else field.get_default()


def settings() -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Path and another value of every setting of a sweep, its models, tasks and backends."""
    for name, annotation, default in fields(SweepConfig):
        yield (name,), another(name, annotation, default)
    for name, annotation, default in fields(ModelConfig):
        yield ("models", "small", name), another(name, annotation, default)
    for name, annotation, default in fields(TaskEntry):
        yield ("tasks", 0, name), another(name, annotation, default)
    for name, annotation, default in fields(HFLongSettings):
        if name not in RESERVED_ARGS:
            yield ("models", "small", "args", name), another(name, annotation, default)
    yield ("models", "small", "args", "an_argument_that_nobody_knows"), 3
    for family in SETTINGS.values():
        for name, annotation, default in fields(family):
            yield ("metadata", name), another(name, annotation, default)
    yield ("metadata", "of_another_project"), 3
    for name, annotation, default in fields(GenerationSettings):
        yield ("gen_kwargs", name), another(name, annotation, default)
    yield ("gen_kwargs", "of_the_backend"), "x"


CASES = {".".join(map(str, path)): (path, value) for path, value in settings()}


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A sweep whose tasks have settings of both families."""
    root = tmp_path_factory.mktemp("every")
    llama = {"model_type": "llama", "rope_theta": 1e4, "max_position_embeddings": 4096,
             "hidden_size": 64, "num_attention_heads": 1}  # fmt: skip
    for name in ("model", "other"):
        (root / name).mkdir()
        (root / name / "config.json").write_text(json.dumps(llama))
    (root / "data").mkdir()
    (root / "data" / "gsm100.jsonl").write_bytes((SAMPLE / "gsm100.jsonl").read_bytes())
    return {
        "root": root,
        "name": "every",
        "models": {"small": {"path": str(root / "model"), "args": {}}},
        "methods": {"rope": None},
        "tasks": [{"tasks": ["leval_closed_gsm", "ppl_pydocs"]}],
        "metadata": {"data_dir": str(root / "data"), "own_data": True},
        "gen_kwargs": {},
        "context_lengths": [2048],
    }


def only_id(content: dict[str, Any]) -> str:
    (cell,) = cells.plan(parse_config({k: v for k, v in content.items() if k != "root"}))
    return cell.id


ALONE = [name for name, (path, _) in CASES.items() if path not in (("models",), ("methods",))]


@pytest.mark.parametrize("name", ALONE)
def test_a_setting_is_another_cell_or_has_its_reason(
    content: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LEVAL_CACHE_DIR", str(tmp_path))
    path, value = CASES[name]
    if isinstance(value, str):
        root: Path = content["root"]
        value = value.format(other=root / "other", data=root / "data")
    before = {k: copy.deepcopy(v) for k, v in content.items() if k != "root"}
    node: Any = before
    for part in path[:-1]:
        node = node[part]
    after = copy.deepcopy(before)
    node = after
    for part in path[:-1]:
        node = node[part]
    mapping = isinstance(value, dict) and isinstance(node.get(path[-1]), dict)
    node[path[-1]] = {**node[path[-1]], **value} if mapping else value
    assert (only_id(after) == only_id(before)) == (name in REASONS), f"{name} = {value!r}"


def test_the_list_of_reasons_names_settings_that_there_are() -> None:
    assert set(CASES) - set(ALONE) <= set(REASONS) <= set(CASES)
    assert set(EntrySettings.model_fields) & set(REASONS) == set()


def arguments_of(module: str, name: str) -> list[str]:
    """Arguments of a class's `__init__`, or its fields, read without importing what it needs."""
    spec = importlib.util.find_spec(module.partition(".")[0])
    assert spec is not None
    assert spec.submodule_search_locations
    path = Path(spec.submodule_search_locations[0]).joinpath(*module.split(".")[1:])
    tree = ast.parse(path.with_suffix(".py").read_text())
    (found,) = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == name]
    for part in found.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            return [each.arg for each in part.args.args[1:]]
    return [part.target.id for part in found.body
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)]  # fmt: skip


HF = arguments_of("lm_eval.models.huggingface", "HFLM")
VLLM = {
    *arguments_of("lm_eval.models.vllm_causallms", "VLLM"),
    *(
        arguments_of("vllm.engine.arg_utils", "EngineArgs")
        if importlib.util.find_spec("vllm")
        else ()
    ),
}
ARGUMENTS = {
    "hf": HF,
    "hf-long": [*HF, *HFLongSettings.model_fields],
    "vllm": sorted(VLLM),
    "vllm-long": sorted(VLLM),
}


@pytest.mark.parametrize("backend", ARGUMENTS)
def test_an_argument_of_a_model_is_another_cell_and_another_block_or_has_its_reason(
    content: dict[str, Any], backend: str
) -> None:
    def planned(**args: Any) -> CellRecord:
        model = {"path": str(content["root"] / "model"), "backend": backend, "args": args}
        changed = {**content, "models": {"small": model}}
        (cell,) = cells.plan(parse_config({k: v for k, v in changed.items() if k != "root"}))
        return cell.record

    plain = planned()
    wrong = []
    for name in dict.fromkeys(ARGUMENTS[backend]):
        if name in RESERVED_ARGS:
            continue
        own = HFLongSettings.model_fields.get(name)
        value = another(name, own.annotation, own.get_default()) if own else f"another {name}"
        record = planned(**{name: value})
        same_id = record.cell_id == plain.cell_id
        read = without_credentials(record.model_args, keep_names=False)
        same_block = model_arguments(read) == model_arguments(plain.model_args)
        if same_id != is_credential(name) or same_block != (same_id or name in ARGUMENTS_ASIDE):
            wrong.append(name)
    assert not wrong
