"""`lh.run` on a real model of a few kilobytes, and `lh.check` on the same."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

import leval_harness as lh
from leval_border.errors import UserError
from leval_harness.cli import check


def test_a_sweep_from_a_dictionary_runs_resumes_and_is_read(tiny: Path, tmp_path: Path) -> None:
    config = yaml.safe_load((tiny / "sweep.yaml").read_text())
    overrides = ["methods.yarn.factor=4"]
    frame = lh.run(config, overrides=overrides, out=tmp_path).to_pandas()
    scores = frame[frame["metric"] == "exact_match"]
    assert sorted(scores["method"]) == ["rope", "yarn"]
    assert set(scores["length"]) == {128}
    assert scores["value"].between(0, 1).all()
    records = sorted((tmp_path / "run").glob("*/done.json"))
    written = [record.stat().st_mtime_ns for record in records]
    assert lh.run(config, overrides=overrides, out=str(tmp_path)).to_pandas().equals(frame)
    assert [record.stat().st_mtime_ns for record in records] == written


def test_a_sweep_in_which_every_cell_fails_is_an_error(tiny: Path, tmp_path: Path) -> None:
    config = yaml.safe_load((tiny / "sweep.yaml").read_text())
    config["methods"] = {"rope": None}
    config["models"]["tiny"]["args"] = {"attn_implementation": "no_such"}
    config.pop("baseline")
    with pytest.raises(UserError, match=r"no cell could be computed; the first: .*no_such"):
        lh.run(config, out=tmp_path)


@pytest.mark.slow
def test_check_gives_what_the_command_prints(tiny: Path) -> None:
    model = str(tiny / "model")
    options = [model, "--rope", "yarn:factor=2", "--json"]
    shown = CliRunner().invoke(check.command, options)
    rope = {"rope_type": "yarn", "factor": 2}
    assert lh.check(Path(model), rope) == json.loads(shown.stdout)
    assert (
        lh.check(model)["transformers"]["limit"] != lh.check(model, rope)["transformers"]["limit"]
    )
