"""`make test-all` goes on where it ended, and CI runs the parts whose sources changed."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "packaging" / "long_parts.py"
GIT = shutil.which("git")


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
    monkeypatch.setattr(
        module,
        "PARTS",
        {
            name: module.Part(("-p", "no:cacheprovider", f"test_{name}.py"), (f"test_{name}.py",))
            for name in ("one", "two")
        },
    )

    run = subprocess.run
    for command in (
        ("init", "--quiet"),
        ("add", "--all"),
        ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message=first"),
    ):
        run((GIT, *command), cwd=tmp_path, check=True)

    def found(command, **options):
        """A program of the system is found although PATH is empty."""
        return run((GIT, *command[1:]) if command[0] == "git" else command, **options)

    monkeypatch.setattr(module.subprocess, "run", found)
    return module


def start(parts, monkeypatch, *options):
    monkeypatch.setattr(sys, "argv", ["long_parts.py", *options])
    parts.main()


def ran(capfd):
    """Parts that were started."""
    lines = capfd.readouterr().out.splitlines()
    return [line.split(":")[0].removeprefix("== ") for line in lines if ": pytest " in line]


def test_a_part_that_passed_has_a_line_and_is_not_run_again_with_the_same_sources(
    parts, monkeypatch, capfd, tmp_path
):
    good = (tmp_path / "test_two.py").read_text()
    (tmp_path / "test_two.py").write_text("def test_it():\n    assert False\n")
    with pytest.raises(SystemExit, match="failed: two"):
        start(parts, monkeypatch)
    assert ran(capfd) == ["one", "two"]
    (line,) = map(json.loads, parts.RECORD.read_text().splitlines())
    assert (line["part"], line["tests"]) == ("one", 1)
    assert line["commit"].endswith("-dirty")
    assert list(line["slowest"]) == ["test_one::test_it"]
    (tmp_path / "test_two.py").write_text(good)
    start(parts, monkeypatch)
    assert ran(capfd) == ["two"]
    start(parts, monkeypatch)
    assert ran(capfd) == []
    (tmp_path / "test_one.py").write_text(good + "\n")
    start(parts, monkeypatch)
    assert ran(capfd) == ["one"]
    assert len(parts.RECORD.read_text().splitlines()) == 3


def test_the_record_alone_makes_no_commit_dirty(parts, monkeypatch):
    (parts.ROOT / "notes.txt").write_text("untracked")
    start(parts, monkeypatch)
    one, two = (json.loads(line)["commit"] for line in parts.RECORD.read_text().splitlines())
    assert one == two == parts.commit()
    assert re.fullmatch("[0-9a-f]{7,}", one)
    (parts.ROOT / "test_one.py").write_text("def test_it():\n    assert 1\n")
    assert parts.commit() == f"{one}-dirty"


def test_ci_runs_what_changed_and_lists_what_it_has_no_time_for(
    parts, monkeypatch, capfd, tmp_path
):
    start(parts, monkeypatch, "--recorded")
    assert "Never run so far, see `make test-all`: one, two" in capfd.readouterr().out
    start(parts, monkeypatch)
    capfd.readouterr()
    with (tmp_path / "test_one.py").open("a") as file:
        file.write("\n")
    start(parts, monkeypatch, "--recorded", "--minutes", "-1")
    assert "No time was left for: one" in capfd.readouterr().out
    start(parts, monkeypatch, "--recorded")
    assert ran(capfd) == ["one"]


def test_a_part_that_would_not_end_in_time_is_listed_and_a_shorter_one_runs(
    parts, monkeypatch, capfd
):
    minutes = {"one": 20, "two": 2}
    for name, needed in minutes.items():
        parts.write_line({"part": name, "seconds": 60 * needed, "sources": "of an earlier state"})
    start(parts, monkeypatch, "--minutes", "19")
    output = capfd.readouterr().out
    assert "No time was left for: one" in output
    assert "== two: pytest" in output
    parts.write_line({"part": "two", "seconds": 120, "sources": "of an earlier state"})
    start(parts, monkeypatch, "--minutes", "14")  # none begins in the last quarter of an hour
    assert "No time was left for: one, two" in capfd.readouterr().out
    start(parts, monkeypatch, "--minutes", "21")
    assert ran(capfd) == ["one", "two"]
