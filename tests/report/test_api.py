"""`import leval_harness as lh`: the Python API shows what the commands show."""

import json
import subprocess
import sys
from pathlib import Path

import matplotlib.figure
import pandas as pd
import pytest
from click.testing import CliRunner

import leval_harness as lh
from leval_harness.cli.results import table
from leval_harness.cli.rope import rope
from leval_harness.results.load import ResultsError
from resonance_vllm.common.errors import UserError

RESULTS = Path(__file__).parents[1] / "golden" / "results"


def test_the_frame_is_that_of_the_command() -> None:
    folder = RESULTS / "perplexity"
    loaded = lh.load(str(folder))
    frame = loaded.to_pandas()
    shown = json.loads(CliRunner().invoke(table, [str(folder), "--json"]).stdout)
    assert list(frame["value"].dropna()) == [r["value"] for r in shown if r["value"] is not None]
    pd.testing.assert_frame_equal(lh.compare(loaded), frame)
    for name in ("runs", "scores", "samples", "blocks"):
        part = getattr(loaded, name)
        assert part.index.equals(pd.RangeIndex(len(part)))
        assert "run" in part


def test_a_length_in_a_metrics_name_is_the_length_of_the_row() -> None:
    frame = lh.load(RESULTS / "perplexity").to_pandas()
    one = frame[(frame["metric"] == "token_perplexity") & (frame["task"] == "ppl_pg19")]
    assert sorted(set(one["length"])) == [256, 768]
    assert not frame["metric"].str.contains("token_perplexity@").any()


def test_a_figure_is_drawn_by_its_title() -> None:
    compared = lh.load(RESULTS / "perplexity")
    first, *_, last = compared.figures()
    assert isinstance(compared.plot(), matplotlib.figure.Figure)
    assert any(axes.get_xlabel() for axes in compared.plot(last).axes)
    with pytest.raises(ValueError, match=r"^title: .*not.*allowed: " + first[:5]):
        compared.plot("no such figure")


def test_a_baseline_is_chosen_when_results_are_read() -> None:
    compared = lh.load(RESULTS / "perplexity", baseline="yarn").to_pandas()
    again = lh.compare(lh.load(RESULTS / "perplexity"), "yarn")
    pd.testing.assert_frame_equal(compared, again)
    assert set(compared["baseline"]) == {"yarn"}
    own = compared[compared["method"] == "yarn"]
    assert own["difference"].isna().all()
    assert compared["difference"].notna().any()


def test_what_is_not_there_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match=r"no run\.json"):
        lh.load(tmp_path)
    with pytest.raises(UserError, match=r"^config: .*quickstart"):
        lh.run("quickstar")
    with pytest.raises(UserError, match=r"^form: "):
        lh.load(RESULTS / "sweep").table("markdown")
    with pytest.raises(AttributeError, match="laod"):
        lh.laod  # noqa: B018


def test_rope_has_the_numbers_of_the_command() -> None:
    options = ["--method", "yarn", "--resonance", "--head-dim", "64", "--original", "64", "--json"]
    shown = CliRunner().invoke(rope, options)
    assert lh.rope("resonance_yarn", head_dim=64, original=64) == json.loads(shown.stdout)
    assert "factor" not in lh.rope("default", head_dim=8)


def test_importing_costs_nothing() -> None:
    code = (
        "import sys, leval_harness as lh; assert 'run' in dir(lh); "
        "print([name for name in ('numpy', 'torch', 'pandas', 'lm_eval') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
