"""`leval-harness sweep` without a run: the plan, wrong usage, the last line of a log."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from leval_harness.cli.main import app
from leval_harness.cli.sweep import _report
from leval_harness.sweep import ConfigError
from leval_harness.sweep.config import parse_config
from leval_harness.sweep.identity import differences
from leval_harness.sweep.local_executor import last_line
from leval_harness.sweep.plan import plan
from resonance_vllm.common.errors import SettingError


@pytest.fixture
def config(tmp_path: Path, checkpoint: Path) -> Path:
    content = {
        "models": {"small": {"path": str(checkpoint), "backend": "vllm",
                             "args": {"tensor_parallel_size": 2}}},
        "methods": {"rope": None, "yarn": {"rope_type": "yarn", "factor": 2}},
        "tasks": "leval_closed_gsm",
        "metadata": {"data_dir": "sample"},
        "context_lengths": [4096],
    }  # fmt: skip
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def sweep(*words: object) -> Any:
    return CliRunner().invoke(app, ["sweep", *map(str, words)])


def test_dry_run_shows_groups_runs_and_gpus(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    told = sweep(config, "--out", tmp_path / "out", "--dry-run").output
    assert "GPUs: 2" in told
    assert "to do  small | rope @ 4096 | leval_closed_gsm" in told
    assert "2 runs, 2 to do" in told
    assert not (tmp_path / "out").exists()
    groups = json.loads(sweep(config, "--dry-run", "--json").output)["groups"]
    assert sum(len(group["runs"]) for group in groups) == 2
    assert {group["gpus"] for group in groups} == {2}


def test_dry_run_says_what_differs_from_finished_run(config: Path, tmp_path: Path) -> None:
    runs = plan(parse_config({"name": "sweep", **yaml.safe_load(config.read_text())}))
    for run in runs:
        folder = tmp_path / "out" / "sweep" / "runs" / run.run_id
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps(run.written()))
    words = (config, "--out", tmp_path / "out", "--dry-run")
    assert "2 runs, 0 to do" in sweep(*words).output
    told = sweep(*words, "--set", "methods.yarn.factor=4").output
    assert "2 runs, 1 to do" in told
    assert f"not {runs[1].run_id}: rope_parameters.factor: 2.0 -> 4.0" in told


def test_what_differs_is_shown_in_short() -> None:
    old = {"files": {"a": "0" * 64}, "text": "x" * 63, "more": "y" * 99}
    new = {"files": {"a": "1" * 64}}
    found = differences(old, new)
    assert found["files.a"] == ("0" * 12, "1" * 12)
    assert found["text"] == ("x" * 63, "nothing")
    assert found["more"] == ("y" * 80, "nothing")


def test_more_gpus_than_there_are_end_before_anything_starts(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    ended = sweep(config, "--out", tmp_path / "out")
    assert isinstance(ended.exception, ConfigError)
    assert "small takes 2 GPUs and 1 are visible" in str(ended.exception)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("place", ["/proc/here", "{file}/below"])
def test_a_folder_that_cannot_be_written_is_refused_first(
    config: Path, tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").write_text("")
    config.write_text(config.read_text().replace(str(tmp_path / "model"), "no/such/model"))
    ended = sweep(config, "--out", place.format(file=tmp_path / "file"))
    assert isinstance(ended.exception, SettingError)
    assert "cannot be written" in str(ended.exception)


def test_the_last_line_of_a_log_is_its_last_state() -> None:
    assert last_line(b"one\n 10%|#   |\r 20%|##  |\n\n") == "20%|##  |"
    assert last_line(b"") == "no output"


def test_closed_pipe_still_writes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Any] = []

    def write(folder: Path) -> None:
        written.append(sys.stdout)
        if len(written) == 1:
            raise BrokenPipeError

    monkeypatch.setattr("leval_harness.cli.results.write_report", write)
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    assert _report(tmp_path)
    assert len(written) == 2
    assert written[1].name == os.devnull
