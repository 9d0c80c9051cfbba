"""Each setting that decides numbers, changed alone, makes another block."""

import json

import fixture_results as make
import pytest
from lm_eval.api.task import TaskConfig

from leval_harness.analysis import analyse
from leval_harness.cell_record import CellRecord, MethodRecord, ModelRecord
from leval_harness.results import load_results
from leval_harness.results.settings import (
    ARGUMENTS_ASIDE,
    CELL_ASIDE,
    FILE_ASIDE,
    LENGTHS,
    METADATA_ASIDE,
    RUN_ASIDE,
    TASK_ASIDE,
)
from leval_tasks.metadata import FAMILIES

ROWS = make.closed_samples("leval_closed_gsm", 0.4, 3)
OURS = sorted({(f.__name__, name) for f in FAMILIES for name in f.decides_numbers()})
RECORDED = [name for name in TaskConfig.__dataclass_fields__ if name not in ("metric_list",)]
OTHER = {"metadata": {"subset": "hard"}, "task": "arc"}
CELLS = {
    "gen_kwargs": {"temperature": 1.0},
    "task_gen_kwargs": {"leval_closed_gsm": {"temperature": 1.0}},
    "seed": 7,
    "num_fewshot": 3,
    "environment": {"NVIDIA_TF32_OVERRIDE": "1"},
    "limit": 5,
    "apply_chat_template": True,
    "metadata": {"truncation": "left"},
    "model": {"backend": "vllm"},
    "method": {"rope_precision": "model"},
}
MODELS = {"backend": "vllm", "dtype": "float16", "revision": "abc", "args": {"peft": "x"}}


def blocks(root):
    entries = analyse(load_results(root)).entries
    assert {entry.score.status for entry in entries} == {"done"}, "else apart for another reason"
    return [entry.block for entry in entries if entry.score.primary]


def cell_with(root, cell_id, **fields):
    """A cell whose record has these fields."""
    path = make.write_cell(root, cell_id, {"leval_closed_gsm": ROWS}) / "cell.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def recorded(root, **metadata):
    """A cell whose task wrote this metadata."""
    folder = make.write_cell(root, f"x{len(list(root.iterdir()))}", {"leval_closed_gsm": ROWS})
    path = next(folder.glob("results_*.json"))
    content = json.loads(path.read_text())
    content["configs"]["leval_closed_gsm"]["metadata"] |= metadata
    path.write_text(json.dumps(content))
    done = json.loads((folder / "done.json").read_text())
    (folder / "done.json").write_text(json.dumps(done | {"files": {}}))


@pytest.mark.parametrize(("family", "name"), OURS)
def test_a_setting_of_our_tasks_sets_apart(tmp_path, family, name):
    for value in (3, 4):
        recorded(tmp_path, settings={"mode": "sliding", name: value})
    assert (len(set(blocks(tmp_path))) == 2) == (name not in LENGTHS), family


@pytest.mark.parametrize("name", ["frame", "system_role", "answer_prefix"])
def test_how_a_question_was_asked_sets_apart(tmp_path, name):
    for value in "ab":
        recorded(tmp_path, settings={}, prompt={name: value})
    assert len(set(blocks(tmp_path))) == 2


def test_every_field_of_a_cell_sets_apart_or_says_why_not():
    fields = set(CellRecord.model_fields)
    assert fields - set(CELL_ASIDE) | {"model", "method", "metadata", "apply_chat_template",
                                       "limit"} == set(CELLS)  # fmt: skip
    assert set(CELL_ASIDE) <= fields
    shown = {"name", "path"}  # what tables call it, and where it lies
    assert set(ModelRecord.model_fields) - shown == set(MODELS)
    assert set(MethodRecord.model_fields) == {"name", "rope_parameters", "rope_precision"}


WRITTEN = {
    "model": {"name": "SmolLM2-135M", "path": "m", "revision": None, "backend": "hf-long",
              "dtype": "float32", "args": {}},
    "method": {"name": "yarn", "rope_parameters": {"rope_type": "yarn"},
               "rope_precision": "float32"},
}  # fmt: skip


@pytest.mark.parametrize("name", [*CELLS, *(f"model.{field}" for field in MODELS)])
def test_a_field_of_a_cell_sets_apart(tmp_path, name):
    field, _, of_model = name.partition(".")
    change = {of_model: MODELS[of_model]} if of_model else CELLS[field]
    change = {field: WRITTEN[field] | change} if field in WRITTEN else {field: change}
    cell_with(tmp_path, "x1")
    cell_with(tmp_path, "x2", **change)
    assert len(set(blocks(tmp_path))) == 2


IDENTITIES = {
    "another checkpoint": {"model": {"files": {"model.safetensors": "a"}}},
    "another commit": {"model": {"hub": "org/m", "commit": "a"}},
    "another adapter": {"model": {"args": {"peft": {"adapter.safetensors": "a"}}}},
    "another task file": {"task_versions": {"my/task.yaml": "a"}},
}


@pytest.mark.parametrize("what", IDENTITIES)
def test_what_a_name_stands_for_sets_apart(tmp_path, what):
    """Two sweeps may call two checkpoints alike, or one with an adapter that was trained on."""
    other = json.loads(json.dumps(IDENTITIES[what]).replace('"a"', '"b"').replace("org/m", "org/n"))
    for at, identity in enumerate((IDENTITIES[what], IDENTITIES[what], other)):
        make.write_cell(tmp_path, f"x{at}", {"leval_closed_gsm": ROWS}, identity=identity)
    of_run = {entry.score.run: entry.block for entry in analyse(load_results(tmp_path)).entries}
    assert of_run[0] == of_run[1] != of_run[2]


def fine_tuned(root, name, method, *, path=None, files=None):
    """A cell of the checkpoint that was fine-tuned to a method, called as all of them are."""
    cell_with(
        root, name, method=WRITTEN["method"] | {"name": method},
        model=WRITTEN["model"] | {"path": path or method},
        identity={"model": {"files": {"model.safetensors": files or method}}},
    )  # fmt: skip


def test_a_sweep_may_give_the_checkpoints_of_its_methods_one_name(tmp_path):
    for method in ("rope", "yarn"):
        fine_tuned(tmp_path / "sweep", method, method)
    assert len(set(blocks(tmp_path))) == 1


@pytest.mark.parametrize("what", ["another sweep", "one method twice", "files changed"])
def test_checkpoints_of_one_name_are_apart_otherwise(tmp_path, what):
    fine_tuned(tmp_path / "sweep", "x1", "rope")
    if what == "another sweep":
        fine_tuned(tmp_path / "another", "x2", "yarn")
    elif what == "one method twice":
        fine_tuned(tmp_path / "sweep", "x2", "yarn")
        fine_tuned(tmp_path / "sweep", "x3", "rope", path="other", files="other")
    else:
        fine_tuned(tmp_path / "sweep", "x2", "yarn", path="rope")
    assert len(set(blocks(tmp_path))) > 1


@pytest.mark.parametrize("what", ["another adapter", "another task file"])
def test_where_it_lies_sets_nothing_apart(tmp_path, what):
    for at, folder in enumerate(("mine", "yours")):
        text = json.dumps(IDENTITIES[what]).replace("my/", f"/{folder}/")
        args = {"peft": f"/{folder}/adapter"} if "adapter" in what else {}
        model = WRITTEN["model"] | {"args": args}
        cell_with(tmp_path, f"x{at}", identity=json.loads(text), model=model)
    assert len(set(blocks(tmp_path))) == 1


def test_other_questions_by_number_of_a_task_of_ours_are_another_block(tmp_path):
    """lm-eval's `--samples`, which its file does not repeat: only the hash of what was asked."""
    for at, asked in enumerate("aab"):
        name = "leval_closed_gsm"
        folder = tmp_path / f"{at}"
        folder.mkdir()
        content = {
            "results": {name: {"exact_match,none": 0.5 + at / 10}},
            "configs": {name: {"task": name, "metadata": {"settings": {}}}},
            "n-samples": {name: {"original": 100, "effective": 3}},
            "task_hashes": {name: asked},
        }
        (folder / "results_2026.json").write_text(json.dumps(content))
    of_run = {entry.score.run: entry.block for entry in analyse(load_results(tmp_path)).entries}
    assert of_run[0] == of_run[1] != of_run[2]


def plain(root, at, fields):
    folder = root / f"{at}"
    folder.mkdir()
    config = {"task": "arc", "output_type": "generate_until", **fields}
    content = {"results": {"arc": {"acc,none": 0.5 + at / 10}}, "configs": {"arc": config}}
    (folder / "results_2026.json").write_text(json.dumps(content))


@pytest.mark.parametrize("name", RECORDED)
def test_a_field_of_lm_evals_tasks_sets_apart_or_says_why_not(tmp_path, name):
    for at in range(2):
        plain(tmp_path, at, {name: OTHER.get(name, f"value {at}")} if at else {})
    apart = len(set(blocks(tmp_path))) == 2
    assert apart == (name not in TASK_ASIDE or name == "metadata")


def test_a_key_of_another_tasks_metadata_sets_apart(tmp_path):
    for at in range(2):
        plain(tmp_path, at, {"metadata": {"version": 1.0, "brand_new": at}})
    assert len(set(blocks(tmp_path))) == 2


@pytest.mark.parametrize(
    "aside", [ARGUMENTS_ASIDE, CELL_ASIDE, FILE_ASIDE, RUN_ASIDE, TASK_ASIDE, METADATA_ASIDE]
)
def test_what_sets_nothing_apart_has_a_reason(aside):
    assert all(isinstance(reason, str) and len(reason) > 8 for reason in aside.values())
