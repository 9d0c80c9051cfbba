"""The JSON Schema of sweep files agrees with what the reader of sweep files accepts."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from click.testing import CliRunner

import harness_configs
from leval_harness.cli.sweep import sweep as command
from leval_harness.sweep.config import ModelConfig, SweepConfig, TaskEntry
from leval_harness.sweep.config_files import file_schema

CONFIGS = sorted((Path(harness_configs.__path__[0]) / "sweeps").glob("*.yaml"))
VALIDATOR = jsonschema.Draft202012Validator(file_schema())
BROKEN = {
    "a misspelt key": {"contextlengths": [4096]},
    "a length that is text": {"context_lengths": ["long"]},
    "a length of 0": {"context_lengths": 0},
    "no such RoPE type": {"methods": {"a": {"rope_type": "yarm"}}},
    "a misspelt key of a model": {"models": {"a": {"pth": "x"}}},
    "a misspelt key of an entry": {"tasks": [{"task": "ppl_pg19"}]},
    "a task that is a number": {"tasks": [5]},
    "no such dtype": {"models": {"a": {"path": "x", "dtype": "int3"}}},
}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_config_is_valid(path: Path) -> None:
    assert list(VALIDATOR.iter_errors(yaml.safe_load(path.read_text()))) == []


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_what_the_reader_refuses_is_invalid(content: dict[str, object]) -> None:
    assert list(VALIDATOR.iter_errors(content))


def test_a_single_value_may_stand_for_a_list() -> None:
    file = {"tasks": "ppl_pg19", "context_lengths": 4096, "include": "a.yaml"}
    assert VALIDATOR.is_valid(file)
    assert VALIDATOR.is_valid({"tasks": [["ppl_pg19", "ppl_govreport"], {"tasks": "gsm8k"}]})


def test_every_key_has_a_description() -> None:
    schema = file_schema()
    found = {
        "SweepConfig": schema["properties"],
        **{name: part["properties"] for name, part in schema["$defs"].items()},
    }
    for model in (SweepConfig, ModelConfig, TaskEntry):
        described = {key for key, value in found[model.__name__].items() if "description" in value}
        assert set(model.model_fields) <= described


def test_the_command_prints_the_schema() -> None:
    shown = CliRunner().invoke(command, ["--schema"])
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout) == file_schema()
