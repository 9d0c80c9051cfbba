"""Each setting that decides numbers, changed alone, makes another block."""

import json

import fixture_results as make
import pytest
from fixture_results import IDENTITY
from lm_eval.api.task import TaskConfig

from leval_harness.analysis import analyse
from leval_harness.old_results import load_results
from leval_harness.old_results.lm_eval import ResultsFile
from leval_harness.old_results.settings import (
    ARGUMENTS_ASIDE,
    IDENTITY_ASIDE,
    LENGTHS,
    METADATA_ASIDE,
    TASK_ASIDE,
    settings_of,
)
from leval_tasks.metadata import FAMILIES

ROWS = make.closed_samples("leval_closed_gsm", 0.4, 3)
RECORDED = [name for name in TaskConfig.__dataclass_fields__ if name not in ("metric_list",)]
OTHER = {"metadata": {"subset": "hard"}, "task": "arc"}


def blocks(root):
    entries = analyse(load_results(root)).entries
    assert {entry.score.status for entry in entries} == {"done"}, "else apart for another reason"
    return [entry.block for entry in entries if entry.score.primary]


def cell_with(root, cell_id, **fields):
    """A cell whose record has these fields."""
    path = make.write_cell(root, cell_id, {"leval_closed_gsm": ROWS}) / "cell.json"
    cell = json.loads(path.read_text()) | fields
    cell["identity"] = make.identity_of(cell) | fields.get("identity", {})
    path.write_text(json.dumps(cell))


def separating(name, /, **config):
    """What separates a task with this configuration, in the row of 8192 tokens."""
    content = {"results": {name: {"acc,none": 0.5}}, "configs": {name: config}}
    file = ResultsFile.model_validate(content)
    return file.separating(name, 8192, is_ours=name.startswith("leval"))


def test_settings_of_our_tasks_separate_unless_they_are_rows_or_columns():
    def recorded(name, value):
        settings = {"mode": "sliding", name: value}
        return separating("leval_closed_gsm", metadata={"settings": settings})

    names = {name for family in FAMILIES for name in family.decides_numbers()}
    assert {name for name in names if recorded(name, 3) == recorded(name, 4)} == names & {*LENGTHS}
    assert len(names) > 20


def test_the_prompt_of_a_question_separates():
    for name in ("frame", "system_role", "answer_prefix"):
        one, other = (separating("leval_closed_gsm", metadata={"prompt": {name: each}})
                      for each in "ab")  # fmt: skip
        assert one != other


@pytest.mark.parametrize("what", IDENTITY)
def test_what_an_identity_holds_separates(tmp_path, what):
    plain = {"model": {"backend": "hf-long", "dtype": "float32", "args": {}}}
    change = IDENTITY[what]
    if "model" in change:
        change = {"model": plain["model"] | change["model"]}
    cell_with(tmp_path, "x1", identity=plain)
    cell_with(tmp_path, "x2", identity=plain | change)
    assert len(set(blocks(tmp_path))) == 2


def test_a_record_alone_separates_nothing(tmp_path):
    for seed in (1, 2):
        cell_with(tmp_path, f"x{seed}", identity={"seed": 0}, seed=seed)
    assert len(set(blocks(tmp_path))) == 1


def test_a_limit_separates(tmp_path):
    cell_with(tmp_path, "x1")
    cell_with(tmp_path, "x2", limit=5)
    assert len(set(blocks(tmp_path))) == 2


def test_a_cell_without_an_identity_is_refused(tmp_path):
    cell_with(tmp_path, "x1")
    path = tmp_path / "x1" / "cell.json"
    cell = json.loads(path.read_text())
    del cell["identity"]
    path.write_text(json.dumps(cell))
    (run,) = load_results(tmp_path).runs
    assert (run.status, run.reason) == ("malformed", f"{path}: identity: missing")


@pytest.mark.parametrize("part", ["model", "model.args", "metadata", "task_versions"])
def test_a_part_of_an_identity_that_is_no_object_is_refused(tmp_path, part):
    cell_with(tmp_path, "x1")
    path = tmp_path / "x1" / "cell.json"
    cell = json.loads(path.read_text())
    outer, _, inner = part.rpartition(".")
    (cell["identity"][outer] if outer else cell["identity"])[inner] = "x"
    path.write_text(json.dumps(cell))
    (run,) = load_results(tmp_path).runs
    assert run.status == "malformed"
    assert run.reason == f"{path}: identity: {part}: 'x' is not allowed; allowed: an object"


MODEL = {"name": "SmolLM2-135M", "path": "m", "revision": None, "backend": "hf-long",
         "dtype": "float32", "args": {}}  # fmt: skip
METHOD = {"name": "yarn", "rope_parameters": {"rope_type": "yarn"}, "rope_precision": "float32"}

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
        root, name, method=METHOD | {"name": method},
        model=MODEL | {"path": path or method},
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
        model = MODEL | {"args": args}
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


def test_fields_of_lm_evals_tasks_separate_or_say_why_not():
    plain = {"task": "arc", "output_type": "generate_until"}
    same = {
        name
        for name in RECORDED
        if separating("arc", **plain) == separating("arc", **plain | {name: OTHER.get(name, "x")})
    }
    assert same == {name for name in RECORDED if name in TASK_ASIDE and name != "metadata"}


def test_a_key_of_another_tasks_metadata_separates():
    one, other = (separating("arc", metadata={"version": 1.0, "new": at}) for at in range(2))
    assert one != other


def test_a_field_of_a_results_file_separates_or_says_why_not():
    known = {name: 1 for name in IDENTITY_ASIDE if name not in ("model", "metadata",
             "rope_parameters", "task_versions", "apply_chat_template")}  # fmt: skip
    assert settings_of(known) == settings_of({})
    assert settings_of({"new": 1}) == {"new": "1"}


@pytest.mark.parametrize("aside", [ARGUMENTS_ASIDE, IDENTITY_ASIDE, TASK_ASIDE, METADATA_ASIDE])
def test_what_does_not_separate_has_a_reason(aside):
    assert all(isinstance(reason, str) and len(reason) > 8 for reason in aside.values())
