"""Every command: an example in its help, exit code 2 for wrong usage, no traceback.

The commands are those of `COMMANDS`, so a new one is tested here without a line.
"""

import re

import click
import pytest

from leval_harness.cli.main import COMMANDS, app, main
from resonance_vllm.common.errors import RunError, SettingError, UserError


def leaves(command, path=()):
    """Path of everything that can be run."""
    if not isinstance(command, click.Group):
        yield path
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        yield from leaves(command.get_command(context, name), (*path, name))


by_path = pytest.mark.parametrize("path", list(leaves(app)), ids=" ".join)


@pytest.fixture
def run(capsys, monkeypatch):
    """`run(*arguments)` gives exit code, output and errors of a command in this process."""
    monkeypatch.delenv("LEVAL_HARNESS_DEBUG", raising=False)

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return ended.value.code, out, err

    return run


def test_the_help_names_each_command_and_the_first_ones_to_type(run):
    code, out, _ = run("--help")
    assert code == 0
    assert all(re.search(rf"^  {name} +", out, re.MULTILINE) for name in COMMANDS)
    assert len(re.findall(r"leval-harness (model|sweep|table) ", out)) == 3


@by_path
def test_help_has_an_example_and_no_summary_is_cut_off(run, path):
    code, out, _ = run(*path, "--help")
    assert code == 0
    _, example, line = " ".join(out.split()).partition("Example: leval-harness ")
    assert example
    assert " ".join(path) in line
    for end in range(1, len(path)):
        assert "..." not in run(*path[:end], "--help")[1].partition("Commands:")[2]


def test_what_lm_eval_asserts_of_an_argument_is_a_message(monkeypatch, run):
    def fails(*_):
        raise AssertionError("Elements of --samples should be in the interval [0,k-1]")

    monkeypatch.setattr("leval_harness.cli.lm_eval._run", fails)
    code, _, err = run("lm-eval", "ls", "tasks")
    assert code == 2
    assert err.endswith("Error: Elements of --samples should be in the interval [0,k-1]\n")


@by_path
def test_an_unknown_option_is_wrong_usage(run, path):
    code, out, err = run(*path, "--no-such-option")
    assert code == 2
    assert "no-such-option" in err
    assert out == ""


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "Interrupted."),
        (SettingError("steps: 0 is not allowed"), 2, "Error: steps: 0 is not allowed"),
        (UserError("folder: empty"), 2, "Error: folder: empty"),
        (RunError("loss: nan"), 1, "Error: loss: nan"),
        (OSError(28, "No space left on device"), 1, "No space left on device"),
    ],
    ids=["ctrl-c", "setting", "input", "run", "disk"],
)
def test_what_ends_a_command_decides_its_exit_code(run, monkeypatch, error, code, message):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(app.get_command(None, "model"), "callback", fail)
    ended, _, err = run("model", "smollm2")
    assert ended == code
    assert message in err
