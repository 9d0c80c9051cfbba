"""The commands `posgen` and `finetune`: output, exit codes and errors without a traceback."""

import sys

import pytest
from click.testing import CliRunner

from leval_harness.cli.console import exit_code_for
from leval_harness.cli.main import app
from leval_harness.training.trainer import made_by

pytestmark = pytest.mark.hf


def _run(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("posgen", "train", "--modulus", "7"), "give only 2401"),
        (("finetune", "nowhere", "--warmup", "1"), "warmup: 1.0 is not allowed"),
        (("finetune", "nowhere", "--rope", "{"), "not JSON"),
    ],
)
def test_wrong_input_is_named(tmp_path, args, message):
    error = _run(*args, "--out", tmp_path / "out").exception
    assert message in str(error)
    assert exit_code_for(error) == 2
    assert not (tmp_path / "out").exists(), "the folder is free for the mended command"


@pytest.mark.parametrize("program", ["bin/leval-harness", "leval_harness/__main__.py"])
def test_the_command_of_a_result_can_be_repeated(program, monkeypatch):
    """`python -m leval_harness` recorded a command that starts with `__main__.py`."""
    monkeypatch.setattr(sys, "argv", [program, "posgen", "train", "--out", "my folder"])
    assert made_by()["command"] == "leval-harness posgen train --out 'my folder'"
