"""`make test` names what it cannot run."""

import importlib.util
import os
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "packaging" / "checks.py"


@pytest.fixture
def checks():
    spec = importlib.util.spec_from_file_location("checks", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
