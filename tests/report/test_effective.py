"""Effective context length from blocks of real reads: rows of the compared frame.

Lengths and means are those of the experiment that the rule comes from, computed by other code; its
intervals were at 1%, so that these are wider by the ratio of two quantiles of t.
"""

import numpy as np
import pandas as pd
import pytest
from block_frames import frames

from leval_harness.report.effective_context import (
    compared_frame,
    effective_rows,
    position_curves,
)
from leval_harness.results.load import load_results

REAL = {"rope": "rope", "yarn": "yarn"}


def rows_of(differences=REAL, margin=None, **how):
    return effective_rows(*frames(differences, **how), margin)


def one(rows, label, metric, baseline="reference", **where):
    found = rows[(rows["label"] == label) & (rows["metric"] == metric)]
    found = found[found["baseline"] == baseline]
    for name, value in where.items():
        found = found[found[name] == value]
    return found.iloc[0]


@pytest.mark.parametrize(
    ("documents", "margin", "label", "held", "broken", "near"),
    [
        (3, 0.05, "rope", 9728, 11264, 9920),
        (3, 0.05, "yarn", 11264, None, None),
        (2, 0.05, "rope", 9728, 11264, 9856),
        (2, 0.05, "yarn", 8192, None, None),
        (3, 0.04, "rope", 9728, 11264, 9920),
        (3, 0.04, "yarn", 8192, None, None),
    ],
)
def test_rows_lengths_of_the_experiment(documents, margin, label, held, broken, near):
    rows = rows_of(documents=documents, margin=margin)
    names = ("no_degradation_up_to", "degradation_by", "breaks_near")
    found = [one(rows, label, name)["value"] for name in names]
    assert [None if pd.isna(each) else each for each in found] == [held, broken, near]


def test_rows_bins_and_cost_of_the_experiment():
    rows = rows_of()
    cost = one(rows, "yarn", "cost")
    assert (cost["start"], cost["end"], cost["clusters"]) == (2048, 8192, 3)
    numbers = cost[["difference", "diff_low", "diff_high", "least", "most"]]
    assert list(numbers.astype(float).round(3)) == [0.022, 0.016, 0.028, 0.014, 0.030]
    bins = rows[(rows["label"] == "yarn") & (rows["metric"] == "difference")]
    bins = bins[bins["baseline"] == "reference"]
    assert [*bins["start"]] == [2048, 3584, 5120, 6656, 8192, 9728]
    assert [*bins["difference"].round(3)] == [0.018, 0.021, 0.030, 0.018, 0.034, 0.020]
    assert [*bins["diff_low"].round(3)] == [0.002, 0.007, 0.017, 0.003, 0.020, -0.005]
    assert [*bins["mark"]] == ["*", "*", "*", "*", "*", ""]
    nothing = one(rows, "rope", "difference", start=2048)
    assert (nothing["diff_low"], nothing["diff_high"], nothing["mark"]) == (0, 0, "")


def test_pair_reversed_is_its_negative():
    """A method that is worse than another must not vanish when both change places."""
    there = effective_rows(*frames(REAL, baseline="rope"))
    back = effective_rows(*frames({"yarn": "yarn", "rope": "rope"}, baseline="yarn"))
    one_way = there[(there["label"] == "yarn") & (there["baseline"] == "rope")]
    other = back[(back["label"] == "rope") & (back["baseline"] == "yarn")]
    assert len(one_way) == len(other) == 7
    assert np.allclose(one_way["difference"], -other["difference"])
    assert np.allclose(one_way["diff_low"], -other["diff_high"])
    assert [*one_way["mark"]] == [*other["mark"]]
    shown = (one_way["diff_low"] > 0) | (one_way["diff_high"] < 0)
    assert [*one_way["mark"]] == ["*" if each else "" for each in shown]


def test_pair_of_resonance_and_the_same_without():
    worse = {**REAL, "resonance_yarn": lambda blocks: blocks["yarn"] + 0.18}
    rows = rows_of(worse)
    pair = one(rows, "resonance_yarn", "difference", "yarn", start=2048, end=11264)
    assert pair["difference"] == pytest.approx(0.18 / 64)
    assert pair["mark"] == "*"
    pairs = rows[rows["baseline"] != "reference"].dropna(subset="baseline")
    pairs = pairs[["label", "baseline"]].drop_duplicates()
    assert sorted(map(tuple, pairs.to_numpy())) == [
        ("resonance_yarn", "rope"), ("resonance_yarn", "yarn"), ("yarn", "rope"),
    ]  # fmt: skip


def test_rows_in_any_order():
    compared, blocks = frames(REAL)
    shuffled = blocks.sample(frac=1, random_state=1).reset_index(drop=True)
    columns = ["label", "baseline", "metric", "value", "start", "difference", "diff_low"]
    here, there = (
        effective_rows(compared, each)[columns].sort_values([*columns[:3], "start"])
        for each in (blocks, shuffled)
    )
    pd.testing.assert_frame_equal(here.reset_index(drop=True), there.reset_index(drop=True))


def test_margin_of_sweep_or_of_caller():
    assert one(rows_of(), "rope", "cost")["margin"] == 0.05
    compared, blocks = frames(REAL)
    compared["margin"] = 0.01
    assert one(effective_rows(compared, blocks), "rope", "cost")["margin"] == 0.01
    assert one(effective_rows(compared, blocks, 0.3), "rope", "cost")["margin"] == 0.3


def test_unmodified_model_is_its_own_reference():
    """Full read and first window are the same but for the order in which bfloat16 adds up."""
    noise = lambda blocks: -0.1 * np.sin(blocks["start"])  # noqa: E731
    rows = rows_of({"rope": noise, "yarn": noise})
    assert one(rows, "rope", "cost")["diff_high"] == 0
    assert one(rows, "rope", "difference", start=8192)["diff_high"] > 0
    assert one(rows, "yarn", "cost")["diff_high"] > 0
    replaced = effective_rows(*frames({"rope": noise}, replaced='{"rope_type": "llama3"}'))
    assert one(replaced, "rope", "cost")["diff_high"] > 0


def test_compared_frame_of_real_runs(real_runs):
    results = load_results(real_runs)
    compared = compared_frame(results)
    rows = compared[compared["task"] == "effective_context"]
    assert {"cost", "difference", "no_degradation_up_to"} <= set(rows["metric"])
    assert compared.index.equals(pd.RangeIndex(len(compared)))
    blocks = results.blocks.merge(rows[["run", "label"]].drop_duplicates(), on="run")
    for label, part in blocks.groupby("label"):
        mean = part["difference"].sum() / part["tokens"].sum()
        assert one(rows, label, "cost")["difference"] == pytest.approx(mean, abs=1e-12)


def test_loss_rows_are_the_methods_own_means():
    rows = rows_of()
    losses = rows[(rows["label"] == "rope") & (rows["metric"] == "loss")]
    _, blocks = frames(REAL)
    own = blocks[blocks["run"] == 0]
    within = own["start"] < 8192
    means = [
        own.loc[mask, "full"].sum() / own.loc[mask, "tokens"].sum() for mask in (within, ~within)
    ]
    assert losses["value"].tolist() == pytest.approx(means)
    assert losses[["start", "end"]].to_numpy().tolist() == [[2048, 8192], [8192, 11264]]


def test_counts_of_a_bin_are_its_own():
    """A document that ends early is in the first bins alone."""
    compared, blocks = frames(REAL)
    first = blocks["document"].iloc[0]
    shorter = blocks[(blocks["document"] != first) | (blocks["start"] < 5120)]
    rows = effective_rows(compared, shorter)
    bins = rows[(rows["label"] == "yarn") & (rows["baseline"] == "reference")]
    bins = bins[bins["metric"] == "difference"]
    assert bins["clusters"].tolist() == [3, 3, 2, 2, 2, 2]
    assert bins["n"].tolist() == [72, 72, 48, 48, 48, 48]


def test_curves_are_running_means_of_the_blocks():
    compared, blocks = frames(REAL)
    curves = position_curves(compared, blocks)
    rope = curves[(curves["label"] == "rope") & (curves["baseline"] == "reference")]
    own = blocks[(blocks["run"] == 0) & blocks["start"].between(9216, 9216 + 7 * 64)]
    mean = own["difference"].sum() / own["tokens"].sum()
    at = rope[rope["position"] == 9216 + 4 * 64 + 32]  # the window ends one block after its middle
    assert at["difference"].tolist() == pytest.approx([mean])
    assert rope.loc[rope["position"] < 7900, "difference"].eq(0).all()
    pair = curves[(curves["label"] == "yarn") & (curves["baseline"] == "rope")]
    assert len(pair) == len(rope) == 144
