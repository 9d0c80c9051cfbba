"""`make test-all` goes on where it ended, and CI runs the parts whose sources changed."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "packaging" / "long_parts.py"


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """The script with two parts, each a file of tests in an empty folder."""
    spec = importlib.util.spec_from_file_location("long_parts", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "long_parts", module)
    spec.loader.exec_module(module)
    (tmp_path / "tests").mkdir()
    for name in ("one", "two"):
        (tmp_path / f"test_{name}.py").write_text("def test_it():\n    assert True\n")
    monkeypatch.setenv("PATH", "")  # the script puts its own environment first
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "BIN", Path(sys.executable).parent)
    monkeypatch.setattr(module, "RECORD", tmp_path / "tests" / "record.jsonl")
    monkeypatch.setattr(module, "STATE", tmp_path / ".test-all")
    monkeypatch.setattr(
        module,
        "PARTS",
        {
            name: module.Part(("-p", "no:cacheprovider", f"test_{name}.py"), (f"test_{name}.py",))
            for name in ("one", "two")
        },
    )

    def git(command, **options):
        assert command[0] == "git"
        return module.subprocess.CompletedProcess(command, 0, "abc1234\n")

    run = module.subprocess.run
    monkeypatch.setattr(
        module.subprocess,
        "run",
        lambda command, **more: (git if command[0] == "git" else run)(command, **more),
    )
    return module


def start(parts, monkeypatch, *options):
    monkeypatch.setattr(sys, "argv", ["long_parts.py", *options])
    parts.main()


def ran(capfd):
    """Parts that were started."""
    lines = capfd.readouterr().out.splitlines()
    return [line.split(":")[0].removeprefix("== ") for line in lines if ": pytest " in line]


def test_parts_that_passed_are_not_run_again_and_all_of_them_make_a_record(
    parts, monkeypatch, capfd, tmp_path
):
    good = (tmp_path / "test_two.py").read_text()
    (tmp_path / "test_two.py").write_text("def test_it():\n    assert False\n")
    with pytest.raises(SystemExit, match="failed: two"):
        start(parts, monkeypatch)
    assert ran(capfd) == ["one", "two"]
    assert not parts.RECORD.exists()
    (tmp_path / "test_two.py").write_text(good)
    start(parts, monkeypatch)
    assert ran(capfd) == ["two"]
    (line,) = map(json.loads, parts.RECORD.read_text().splitlines())
    assert (line["tests"], list(line["parts"])) == (2, ["one", "two"])
    assert list(line["parts"]["two"]["slowest"]) == ["test_two::test_it"]
    start(parts, monkeypatch)  # a new full run
    assert ran(capfd) == ["one", "two"]
    assert len(parts.RECORD.read_text().splitlines()) == 2


def test_ci_runs_what_changed_and_lists_what_it_has_no_time_for(
    parts, monkeypatch, capfd, tmp_path
):
    start(parts, monkeypatch)
    record = parts.RECORD.read_text()
    capfd.readouterr()
    start(parts, monkeypatch, "--changed")
    assert ran(capfd) == []
    with (tmp_path / "test_one.py").open("a") as file:
        file.write("\n")
    start(parts, monkeypatch, "--changed", "--minutes", "-1")
    assert "No time was left for: one" in capfd.readouterr().out
    start(parts, monkeypatch, "--changed")
    assert ran(capfd) == ["one"]
    assert parts.RECORD.read_text() == record
