"""`make test` names what it cannot run."""

import os
import sys
from pathlib import Path

import pytest
from scripts import script

SCRIPT = Path(__file__).parents[2] / "packaging" / "checks.py"


@pytest.fixture
def checks(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))  # where `long_parts` is
    return script("packaging/checks.py")


def test_absent_programs_and_engines_are_reasons(checks, monkeypatch):
    there = {"chromium": "/usr/bin/chromium", "pdflatex": "/usr/bin/pdflatex"}
    monkeypatch.setattr(checks.shutil, "which", there.get)
    assert checks.missing({"vllm": True}) == {"browser": "chromedriver not found"}
    there["chromedriver"] = "/usr/bin/chromedriver"
    assert checks.missing({"vllm": True}) == {}
    assert checks.missing({"vllm": False, "reason": "no wheel"}) == {"vllm": "no wheel"}
    there.clear()
    assert set(checks.missing({"vllm": True})) == {"browser", "latex"}


@pytest.mark.parametrize("ci", [True, False])
def test_what_cannot_run_is_named_and_in_ci_that_is_a_failure(checks, monkeypatch, capsys, ci):
    monkeypatch.setenv("PATH", os.environ["PATH"])  # it puts its own environment first
    steps = []
    monkeypatch.setattr(checks, "run", lambda name, command, **_: steps.append(command))
    monkeypatch.setattr(checks, "run_side_by_side", steps.extend)
    monkeypatch.setattr(checks.json, "loads", lambda text: {"vllm": True})
    monkeypatch.setattr(checks.Path, "read_text", lambda path: "")
    monkeypatch.setattr(checks, "missing", lambda installed: {"latex": "pdflatex not found"})
    monkeypatch.setattr(checks, "tests_of", lambda marker: [f"tests/t.py::test_{marker}"])
    monkeypatch.setenv("CI", "1") if ci else monkeypatch.delenv("CI", raising=False)
    if ci:
        with pytest.raises(SystemExit, match="in CI every test has to run"):
            checks.main()
    else:
        checks.main()
    output = capsys.readouterr().out
    assert "pdflatex not found" in output
    assert "tests/t.py::test_latex" in output
    assert set(checks.STATIC) <= set(steps)
    assert steps[-1][-1] == "(vllm or ray or browser or latex) and not long and not latex"


@pytest.mark.parametrize("options", [[], ["--record"]])
def test_a_full_run_is_one_line_of_the_record(checks, monkeypatch, options):
    def run(name, command, **_):
        (report,) = (each for each in command if each.startswith("--junit-xml="))
        case = f'<testcase classname="tests.t" name="{name[:4]}" time="{len(name)}"/>'
        Path(report.partition("=")[2]).write_text(f"<testsuites>{case}</testsuites>")

    lines = []
    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.setattr(sys, "argv", ["checks.py", *options])
    monkeypatch.setattr(checks, "run", lambda name, *_, **__: name == "model" or run(name, *_))
    monkeypatch.setattr(checks, "run_side_by_side", lambda steps: None)
    monkeypatch.setattr(checks.json, "loads", lambda text: {"vllm": True})
    monkeypatch.setattr(checks.Path, "read_text", lambda path: "")
    monkeypatch.setattr(checks, "missing", lambda installed: {})
    monkeypatch.setattr(checks, "write_line", lines.append)
    checks.main()
    slowest = {"tests.t::real": 12.0, "tests.t::fast": 10.0}  # the longer name took longer
    expected = {"part": "make test", "seconds": 0, "tests": 2, "slowest": slowest}
    assert lines == ([expected] if options else [])


def test_checks_side_by_side_are_shown_whole_and_any_failure_ends_the_run(
    checks, monkeypatch, capsys, tmp_path
):
    monkeypatch.setattr(checks, "BIN", Path("/bin"))
    wait = f"until [ -e {tmp_path}/there ]; do sleep 0.05; done"
    steps = (
        ("first", ("sh", "-c", f"{wait}; echo one; echo wrong >&2; exit 3")),
        ("second", ("sh", "-c", f"touch {tmp_path}/there; echo two")),
    )
    with pytest.raises(SystemExit) as ended:
        checks.run_side_by_side(steps)
    assert ended.value.code == 3
    output = capsys.readouterr().out
    assert output.index("one\nwrong\n") < output.index("exit code 3") < output.index("two\n")
    checks.run_side_by_side(steps[1:])
