"""`import leval_harness as lh`: the Python API shows what the commands show."""

import inspect
import json
import re
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


def test_to_pandas_has_the_numbers_of_the_command() -> None:
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


def test_to_pandas_has_lengths_in_a_column() -> None:
    frame = lh.load(RESULTS / "perplexity").to_pandas()
    one = frame[(frame["metric"] == "token_perplexity") & (frame["task"] == "ppl_pg19")]
    assert sorted(set(one["length"])) == [256, 768]
    assert not frame["metric"].str.contains("token_perplexity@").any()


def test_plot_draws_a_figure_by_its_title() -> None:
    compared = lh.load(RESULTS / "perplexity")
    first, *_, last = compared.figures()
    assert isinstance(compared.plot(), matplotlib.figure.Figure)
    assert any(axes.get_xlabel() for axes in compared.plot(last).axes)
    with pytest.raises(ValueError, match=r"^title: .*not.*allowed: " + first[:5]):
        compared.plot("no such figure")


def test_load_takes_a_baseline() -> None:
    compared = lh.load(RESULTS / "perplexity", baseline="yarn").to_pandas()
    again = lh.compare(lh.load(RESULTS / "perplexity"), "yarn")
    pd.testing.assert_frame_equal(compared, again)
    assert set(compared["baseline"]) == {"yarn"}
    own = compared[compared["method"] == "yarn"]
    assert own["difference"].isna().all()
    assert compared["difference"].notna().any()


def test_api_errors_name_what_is_wrong(tmp_path: Path) -> None:
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
    printed = json.loads(CliRunner().invoke(rope, options).stdout)
    features = lh.rope("resonance_yarn", head_dim=64, original=64)
    assert isinstance(features, lh.RopeFeatures)
    assert json.loads(json.dumps(features.to_dict())) == printed
    assert len(lh.rope("default", head_dim=8).inv_freq) == 4


def test_api_docstrings_describe_every_argument() -> None:
    """Google style: each argument is in Args, each field in Attributes."""
    for name in sorted({*lh.__all__} - {"__version__", "diff"}):
        public = getattr(lh, name)
        if not public.__module__.startswith("leval_harness"):
            continue
        documented = inspect.getdoc(public) or ""
        for parameter, kind in inspect.signature(public).parameters.items():
            if kind.kind is inspect.Parameter.VAR_KEYWORD:
                continue  # described one by one, or as settings of something else
            assert re.search(rf"^    {parameter}: ", documented, re.MULTILINE), (name, parameter)
        if inspect.isfunction(public):
            assert "Args:\n" in documented, name
            assert "Returns:\n" in documented, name
            assert "Raises:\n" in documented, name


def test_diff_can_be_called_after_its_package_is_imported() -> None:
    """The function has the name of the package that it is in."""
    from leval_harness.diff import compare  # noqa: F401 - binds the package to `lh.diff`

    with pytest.raises(UserError, match="a saved reference, which can only be A"):
        lh.diff("hf:model", "saved.npz")


def test_import_loads_no_heavy_package() -> None:
    code = (
        "import sys, leval_harness as lh; assert 'run' in dir(lh); "
        "heavy = ('numpy', 'torch', 'pandas', 'matplotlib', 'lm_eval'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
