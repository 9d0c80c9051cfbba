"""Effective context length from blocks of real reads: rows of the compared frame, and sentences.

Lengths and means are those of the experiment that the rule comes from, computed by other code; its
intervals were at 1%, so that these are wider by the ratio of two quantiles of t.
"""

import numpy as np
import pandas as pd
import pytest
from block_frames import BLOCKS, COMMAND, compared_of, frames

from leval_harness.report.effective_context import compared_frame, effective_rows
from leval_harness.report.verdict import said, verdict
from leval_harness.results.load import load_results

REAL = {"rope": "rope", "yarn": "yarn"}


def rows_of(differences=REAL, margin=None, **how):
    return effective_rows(*frames(differences, **how), margin)


def verdict_of(differences=REAL, margin=None, **how):
    return verdict(compared_of(differences, margin, **how))


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
def test_lengths_are_those_of_the_experiment(documents, margin, label, held, broken, near):
    rows = rows_of(documents=documents, margin=margin)
    names = ("no_degradation_up_to", "degradation_by", "breaks_near")
    found = [one(rows, label, name)["value"] for name in names]
    assert [None if pd.isna(each) else each for each in found] == [held, broken, near]


def test_bins_and_price_are_those_of_the_experiment():
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


def test_a_difference_turned_round_is_its_negative_with_the_same_mark():
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


def test_resonance_is_compared_with_the_same_method_without_it():
    worse = {**REAL, "resonance_yarn": lambda blocks: blocks["yarn"] + 0.18}
    rows = rows_of(worse)
    pair = one(rows, "resonance_yarn", "difference", "yarn", start=2048, end=11264)
    assert pair["difference"] == pytest.approx(0.18 / 64)
    assert pair["mark"] == "*"
    pairs = rows[rows["baseline"] != "reference"][["label", "baseline"]].drop_duplicates()
    assert sorted(map(tuple, pairs.to_numpy())) == [
        ("resonance_yarn", "rope"), ("resonance_yarn", "yarn"), ("yarn", "rope"),
    ]  # fmt: skip


def test_the_order_of_rows_does_not_matter():
    compared, blocks = frames(REAL)
    shuffled = blocks.sample(frac=1, random_state=1).reset_index(drop=True)
    columns = ["label", "baseline", "metric", "value", "start", "difference", "diff_low"]
    here, there = (
        effective_rows(compared, each)[columns].sort_values([*columns[:3], "start"])
        for each in (blocks, shuffled)
    )
    pd.testing.assert_frame_equal(here.reset_index(drop=True), there.reset_index(drop=True))


def test_sentences_are_those_of_the_rule():
    assert verdict_of() == [
        "rope: no degradation up to 9,728, degradation by 11,264; it breaks near 9,920.",
        "yarn: no degradation up to 11,264, the longest position measured; it costs 0.022 nats a "
        "token within the trained 8,192 (0.016 to 0.028; documents: 0.014 to 0.030).",
        "yarn against rope at 9,728 to 11,264: 0.164 lower loss (0.102 to 0.227).",
        "to take: rope up to 9,728, yarn at 9,728 to 11,264 (rope unless another one is shown to "
        "have a lower loss).",
        "past 8,192: no method is shown to have a lower loss on the whole text than the unscaled "
        "model has on the last 8,192 tokens.",
        "reference: compared with the unscaled model in windows of 8,192 tokens, 3 documents; losing "
        "less than 0.05 nats/token counts as none; wrong in at most 3% of samples either way.",
    ]


def test_one_text_errs_more_often_and_the_verdict_says_so():
    assert "1 text;" in verdict_of(documents=1)[-1]
    assert "wrong in at most 5% of samples" in verdict_of(documents=1)[-1]


def taken(differences, **how):
    (found,) = [each for each in verdict_of(differences, **how) if each.startswith("to take: ")]
    return found.removeprefix("to take: ").partition(" (")[0]


@pytest.mark.parametrize("baseline", ["rope", "yarn"])
def test_which_one_to_take_is_read_off_the_same_intervals_whichever_is_the_baseline(baseline):
    assert taken(REAL, baseline=baseline) == "rope up to 9,728, yarn at 9,728 to 11,264"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (0.0, "rope up to 9,728, yarn or resonance_yarn at 9,728 to 11,264"),
        (-0.6, "rope up to 9,728, yarn at 9,728 to 11,264"),
        (0.6, "rope up to 9,728, resonance_yarn at 9,728 to 11,264"),
    ],
)
def test_of_two_that_are_better_the_one_that_is_not_worse_is_taken(change, says):
    differences = {**REAL, "resonance_yarn": lambda blocks: blocks["yarn"] - change}
    assert taken(differences) == says


def test_a_method_with_resonance_is_compared_in_words_with_the_same_without():
    found = verdict_of({**REAL, "resonance_yarn": lambda blocks: blocks["yarn"] + 0.6})
    assert [each.partition(" against")[0] for each in found if " against " in each] == [
        "yarn", "resonance_yarn",
    ]  # fmt: skip
    assert "resonance_yarn against yarn: 0.0094 higher loss (0.0094 to 0.0094)." in found


def test_what_is_not_decided_says_what_would_decide_it_and_what_that_costs():
    found = verdict_of(documents=2)
    assert found[1] == (
        "yarn: no degradation up to 8,192, not decided beyond: 0.018 higher loss (−0.017 to 0.053) "
        "at 9,728 to 11,264; it costs 0.018 nats/token within the trained 8,192 (0.011 to 0.025; "
        "documents: 0.014 to 0.022)."
    )
    (decides,) = [each for each in found if each.startswith("to decide yarn")]
    # (0.0351 / 0.0317) squared times two documents; one minute, since runs side by side count once
    command = f"{COMMAND} --set tasks.effective_context_pydocs.metadata.num_docs=3"
    assert decides == f"to decide yarn: `{command}`, in about 2 minutes."


def constant(value, start=0):
    return lambda blocks: 64 * np.where(blocks["start"] >= start, value, 0.0)


@pytest.mark.parametrize(
    ("difference", "says"),
    [
        (constant(0.2), "yarn: degradation by 3,584; from the first position on; it costs 0.200"),
        (constant(-0.03), "it saves 0.030 nats/token within the trained 8,192 (0.030 to 0.030"),
        (
            constant(-0.03, 8192),
            "yarn at 8,192 to 9,728, 9,728 to 11,264: a lower loss on the whole",
        ),
        (constant(0.0), "yarn: no degradation up to 11,264, the longest position measured."),
    ],
)
def test_sentences_of_other_courses(difference, says):
    assert any(says in each for each in verdict_of({"yarn": difference}, baseline="yarn"))


def test_a_text_within_the_trained_length_has_the_shipped_model_as_yardstick():
    found = verdict_of(trained=131072)
    assert (
        "reference: compared with the unmodified model on the whole text (the 11,264 positions "
        "measured do not exceed its trained 131,072), 3 documents; losing less"
    ) in found[-1]
    assert "it costs 0.024 nats/token up to 11,264 (0.018 to 0.029" in found[1]
    assert not any(each.startswith("past ") for each in found)


def test_the_margin_is_the_sweeps_unless_another_is_given():
    assert one(rows_of(), "rope", "cost")["margin"] == 0.05
    compared, blocks = frames(REAL)
    compared["margin"] = 0.01
    assert one(effective_rows(compared, blocks), "rope", "cost")["margin"] == 0.01
    assert one(effective_rows(compared, blocks, 0.3), "rope", "cost")["margin"] == 0.3


def test_up_to_the_trained_length_the_model_as_shipped_is_the_yardstick():
    """Full read and first window are the same but for the order in which bfloat16 adds up."""
    noise = lambda blocks: -0.1 * np.sin(blocks["start"])  # noqa: E731
    rows = rows_of({"rope": noise, "yarn": noise})
    assert one(rows, "rope", "cost")["diff_high"] == 0
    assert one(rows, "rope", "difference", start=8192)["diff_high"] > 0
    assert one(rows, "yarn", "cost")["diff_high"] > 0
    replaced = effective_rows(*frames({"rope": noise}, replaced='{"rope_type": "llama3"}'))
    assert one(replaced, "rope", "cost")["diff_high"] > 0


def test_two_models_are_named_in_their_sentences():
    parts = [frames(REAL, block=name) for name in ("one", "two")]
    parts[1][0]["run"] += 2
    parts[1][1]["run"] += 2
    compared, blocks = (pd.concat(each, ignore_index=True) for each in zip(*parts, strict=True))
    rows = effective_rows(compared, blocks).assign(sample=False, group=False)
    labels = [label for label, _ in said(pd.concat([compared, rows], ignore_index=True))]
    assert {each.partition(", ")[0] for each in labels} == {"one", "two"}


def test_rows_of_real_runs_are_in_the_compared_frame(real_runs):
    results = load_results(real_runs)
    compared = compared_frame(results)
    rows = compared[compared["task"] == "effective_context"]
    assert {"cost", "difference", "no_degradation_up_to"} <= set(rows["metric"])
    assert compared.index.equals(pd.RangeIndex(len(compared)))
    blocks = results.blocks.merge(rows[["run", "label"]].drop_duplicates(), on="run")
    for label, part in blocks.groupby("label"):
        mean = part["difference"].sum() / part["tokens"].sum()
        assert one(rows, label, "cost")["difference"] == pytest.approx(mean, abs=1e-12)


def test_the_data_are_whole():
    assert [*BLOCKS.groupby("document").size()] == [144] * 3
