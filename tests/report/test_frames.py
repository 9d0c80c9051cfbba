"""The frames that results are read into, and the frame that everything shown is made of."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from leval_harness.report.compare import COMPARED, compare
from leval_harness.results.columns import BLOCKS, RUNS, SAMPLES, SCORES
from leval_harness.results.load import load_results
from leval_tasks.statistics.by_document import ratio_of_sums

TESTS = Path(__file__).parents[1]
REAL = {
    "sweep": TESTS / "golden/results/sweep",
    "perplexity": TESTS / "golden/results/perplexity",
    "posgen": TESTS / "golden/results/posgen",
    "lm_eval": TESTS / "golden/results/lm_eval",
    "every kind of task": TESTS / "report/real_runs/results",
    "effective context": TESTS / "report/effective",
}
FOREIGN = sorted(path for path in (TESTS / "report/foreign").iterdir() if path.is_dir())
NUMBER = ["run", "task", "name", "filter"]


def types_of(columns):
    return {name: column.type for name, column in columns.items()}


def kind_of(column):
    return "text" if isinstance(column.dtype, pd.StringDtype) else str(column.dtype)


@pytest.mark.parametrize("folder", [*REAL.values(), *FOREIGN], ids=lambda path: path.name)
def test_frames_have_the_declared_columns_and_types(folder):
    results = load_results(folder)
    frames = {"runs": RUNS, "scores": SCORES, "samples": SAMPLES, "blocks": BLOCKS}
    for name, schema in frames.items():
        frame = getattr(results, name)
        further = [each for each in frame if each not in schema]
        assert {each: kind_of(frame[each]) for each in schema} == types_of(schema), name
        assert name == "scores" or not further
        assert all(each.startswith("setting ") for each in further)
        assert isinstance(frame.index, pd.RangeIndex)
    compared = compare(results)
    assert isinstance(compared.index, pd.RangeIndex)
    assert {name: kind_of(compared[name]) for name in COMPARED} == types_of(COMPARED)
    assert {*SCORES, *RUNS} - {*compared} == {"tasks"}


@pytest.mark.parametrize("folder", REAL.values(), ids=REAL)
def test_each_number_is_that_of_its_own_samples(folder):
    """Frames are joined by their keys: a join by position swaps rows in all but small folders."""
    results = load_results(folder)
    compared = compare(results).query("interval == 'clustered'").set_index(NUMBER)
    samples = results.samples.rename(columns={"metric": "name"})
    for key, part in samples.sample(frac=1, random_state=1).groupby(NUMBER):
        if key not in compared.index:
            continue
        row = compared.loc[key]
        sums = part.groupby("document")[["num", "den"]].sum()
        found = ratio_of_sums(sums["num"], sums["den"], np.zeros(len(sums), np.int64))
        ratio, error, df, _ = (each[0] for each in found)
        if row["unit"] == "perplexity":
            half = stats.t.ppf(0.975, df) * error
            assert np.allclose(
                row[["value", "low", "high"]].astype(float),
                np.exp([ratio, ratio - half, ratio + half]),
                rtol=1e-9,
            )
        else:
            times = 1 / np.log(2) if row["unit"] == "bits" else 1
            assert np.isclose(row["value"], ratio * times, rtol=1e-6)
            assert np.isclose(row["stderr"], error * times, rtol=1e-9)
