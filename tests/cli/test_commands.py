"""Every command: an example in its help, exit code 2 for wrong usage, no traceback.

The commands are those of `COMMANDS`, so a new one is tested here without a line.
"""

import re
import shlex
import shutil
import subprocess
import sys
from contextlib import chdir, suppress

import click
import pytest
from golden_access import RESULTS, SAMPLE

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


def command_at(path):
    """The command at a path."""
    command = app
    for name in path:
        command = command.get_command(click.Context(command), name)
    return command


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


def test_help_lists_each_command_and_three_to_begin_with(run):
    code, out, _ = run("--help")
    assert code == 0
    assert all(re.search(rf"^  {name} +", out, re.MULTILINE) for name in COMMANDS)
    assert len(re.findall(r"leval-harness (model|sweep|table) ", out)) == 3


@by_path
def test_help_cuts_no_summary(run, path):
    for end in range(1, len(path)):
        assert "..." not in run(*path[:end], "--help")[1].partition("Commands:")[2]


def options(path):
    """Name and help of each option of a command, as its help prints them."""
    command = command_at(path)
    context = click.Context(command, show_default=True)
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield parameter.get_help_record(context)


@by_path
def test_each_option_has_a_help_that_says_its_default_once(path):
    """A sentence of at least three words; what it says of a default is click's alone."""
    for name, text in options(path):
        assert len(text.partition("[")[0].split()) >= 3, name
        assert len(re.findall("default", text, re.IGNORECASE)) <= 1, (name, text)


def test_lm_eval_assertion_is_a_message(monkeypatch, run):
    def fails(*_):
        raise AssertionError("Elements of --samples should be in the interval [0,k-1]")

    monkeypatch.setattr("leval_harness.cli.lm_eval._run", fails)
    code, _, err = run("lm-eval", "ls", "tasks")
    assert code == 2
    assert err.endswith("Error: Elements of --samples should be in the interval [0,k-1]\n")


@by_path
def test_unknown_option_is_wrong_usage(run, path):
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
def test_exit_code_for_each_kind_of_error(run, monkeypatch, error, code, message):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(app.get_command(None, "model"), "callback", fail)
    ended, _, err = run("model", "smollm2")
    assert ended == code
    assert message in err


# ------------------------------------------------------------------ examples of --help

LONG = "leval-harness sweep quickstart"
"""Takes minutes."""
NEEDS_HUB = "leval-harness data fetch --out leval-data"
"""Runs with files in the place of the hub's, below."""


def groups(command, path=()):
    """Path of every group of commands but the first."""
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        if isinstance(inner, click.Group):
            yield (*path, name)
            yield from groups(inner, (*path, name))


EVERY_COMMAND = [*leaves(app), *groups(app)]


def examples(path):
    """The shell lines at the end of a command's help."""
    _, _, text = (command_at(path).epilog or "").partition("Examples:")
    return [line.strip() for line in text.splitlines() if line.strip()]


@pytest.fixture
def shell(tmp_path, smollm2):
    """Run a line in a folder with results, where `leval-harness` is this Python's."""
    shutil.copytree(RESULTS / "perplexity", tmp_path / "results" / "quickstart")
    programs = tmp_path / "programs"
    programs.mkdir()
    program = programs / "leval-harness"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m leval_harness "$@"\n')
    program.chmod(0o755)
    (programs / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (programs / "python").chmod(0o755)

    def run(line):
        return subprocess.run(
            ["/bin/sh", "-c", f'PATH="{programs}:$PATH"; {line}'],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip

    return run


@pytest.mark.parametrize("path", EVERY_COMMAND, ids=" ".join)
def test_help_prints_an_example_of_the_command(run, path):
    lines = examples(path)
    assert any(line.startswith(" ".join(["leval-harness", *path])) for line in lines)
    printed = run(*path, "--help")[1]
    assert all(f"\n    {line}\n" in printed for line in lines), "none is wrapped"


def test_examples_name_options_that_exist(shell, tmp_path):
    """All that can be said of an example without running it."""
    with chdir(tmp_path):
        for path in leaves(app):
            for line in examples(path):
                program, *arguments = shlex.split(line, comments=True)
                if program != "leval-harness":
                    continue
                with suppress(click.BadParameter):  # a folder that an earlier line would write
                    app.make_context("leval-harness", arguments)
                    command_at(path).make_context(path[-1], arguments[len(path) :])


RUN_A_MODEL = {
    "check",
    "diff",
    "export",
    "finetune",
    "lm-eval",
    "page",
    "posgen",
    "prompt",
    "sweep",
}
"""Commands whose examples load or train models, for up to ten minutes together."""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=pytest.mark.slow(long=True) if path[0] in RUN_A_MODEL else ())
        for path in EVERY_COMMAND
    ],
    ids=" ".join,
)
def test_examples_run_as_written(path, shell):
    lines = [line for line in examples(path) if line not in (LONG, NEEDS_HUB)]
    if path[0] == "posgen" and len(path) > 1:
        # one training for all: the group's examples are those of its commands, in order
        assert set(lines) <= set(examples(("posgen",)))
        return
    # a difference or the lack of one is what `diff` measures
    results = (0, 3, 4) if path == ("diff",) else (0,)
    for line in lines:
        ended = shell(line)
        assert ended.returncode in results, f"{line}\n{ended.stderr}"


@pytest.mark.slow(long=True)
def test_example_of_the_quickstart_runs_as_written(shell, tmp_path):
    shutil.rmtree(tmp_path / "results")
    ended = shell(LONG)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "results" / "quickstart" / "table.md").is_file()


def test_data_fetch_writes_the_published_files(real_data, run, tmp_path, monkeypatch):
    """With the real files in the place of the hub's; of CodeU there is no published copy."""

    def hub_file(task):
        file = real_data / "leval" / "closed" / task.file
        return file if file.is_file() else SAMPLE / task.file

    monkeypatch.setattr("leval_tasks.common.data.hub_file", hub_file)
    with chdir(tmp_path):
        code, out, err = run(*shlex.split(NEEDS_HUB)[1:])
    assert code == 0, err
    assert out.count("as published") == 6
    assert len(list((tmp_path / "leval-data").iterdir())) == 7


def test_data_fetch_never_advises_itself(run, tmp_path, monkeypatch):
    """Neither where the hub is out of reach, nor where it lacks a file, nor for other content."""
    from leval_tasks.common import data
    from leval_tasks.common.errors import DataError

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    command = ("data", "fetch", "--out", tmp_path / "new")
    code, _, err = run(*command)
    assert code == 1
    assert "cannot be fetched" in err
    assert "github.com/OpenLMLab/LEval" in err
    assert "data fetch" not in err

    def absent(task):
        raise DataError(f"There is no {task.file}. {data.HOW_TO_GET}")

    for hub_file in (absent, lambda task: SAMPLE / task.file):
        monkeypatch.setattr(data, "hub_file", hub_file)
        code, out, err = run(*command)
        assert code == 1
        assert out.count("FAILED") >= 6
        assert "data fetch" not in out + err
    assert not (tmp_path / "new" / "tpo.jsonl").exists()


def test_data_verify_names_what_is_missing(run, tmp_path):
    shutil.copytree(SAMPLE, tmp_path / "data")
    (tmp_path / "data" / "tpo.jsonl").unlink()
    (tmp_path / "data" / "quality.jsonl").write_text("{}")
    code, out, err = run("data", "verify", tmp_path / "data")
    assert code == 1
    assert re.search("tpo.jsonl +MISSING; leval_closed_toefl needs it", out)
    assert re.search("quality.jsonl +FAILED: .*line 1", out)
    assert "data fetch" in err
    (tmp_path / "empty").mkdir()
    code, out, _ = run("data", "verify", tmp_path / "empty")
    assert code == 1
    assert out.count("MISSING") == 7
    shutil.copytree(SAMPLE, tmp_path / "empty" / "LEval" / "Exam")
    assert (
        f"the folder {tmp_path / 'empty' / 'LEval' / 'Exam'} has it"
        in run("data", "verify", tmp_path / "empty")[2]
    )
