"""The commands `posgen` and `finetune`: output, exit codes and errors without a traceback."""

import json

import pytest
from click.testing import CliRunner

from leval_leaderboard.cli import cli
from leval_leaderboard.cli.errors import exit_code_for

pytestmark = pytest.mark.hf


def _run(*args):
    return CliRunner().invoke(cli, [str(arg) for arg in args])


def test_posgen_table_of_finished_runs(tmp_path):
    folder = tmp_path / "cot/rope/seed-0"
    folder.mkdir(parents=True)
    test = {"id_accuracy": 0.99, "ood_accuracy": 0.5}
    record = {"schema_version": 1, "subtask": "cot", "encoding": "rope", "seed": 0, "test": test}
    (folder / "result.json").write_text(json.dumps(record))
    result = _run("posgen", "table", tmp_path)
    assert result.exit_code == 0
    assert "| RoPE | CoT | 1 | 99.00 | 50.00 | – | 69.56 | best learned |" in result.output
    rows = json.loads(_run("posgen", "table", tmp_path, "--format", "json").output)
    assert rows[0]["learned"] is True
    record["schema_version"] = 2
    (folder / "result.json").write_text(json.dumps(record))
    assert exit_code_for(_run("posgen", "table", tmp_path).exception) == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("posgen", "train", "--preset", "papr"), "did you mean paper"),
        (("posgen", "train", "--encoding", "jarn"), "did you mean yarn"),
        (("posgen", "train", "--modulus", "7"), "give only 2401"),
        (("finetune", "nowhere", "--preset", "cpuu"), "did you mean cpu"),
        (("finetune", "nowhere", "--rope", "{"), "is not JSON"),
    ],
)
def test_wrong_input_is_named(tmp_path, args, message):
    error = _run(*args, "--out", tmp_path / "out").exception
    assert isinstance(error, ValueError)
    assert message in str(error)
    assert exit_code_for(error) == 1


@pytest.mark.parametrize(
    "args", [("posgen",), ("posgen", "train"), ("posgen", "evaluate"), ("finetune",)]
)
def test_help_has_an_example(args):
    result = _run(*args, "--help")
    assert result.exit_code == 0
    assert "Example: leval-harness" in " ".join(result.output.split())
