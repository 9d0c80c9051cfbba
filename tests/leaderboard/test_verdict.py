"""What the verdict says of scores: differences to the baseline, in words that fit the numbers."""

import numpy as np
import pandas as pd
import pytest

from leval_harness.verdict import main_numbers, verdict

BASE = {
    "block": "m", "label": "yarn", "baseline": "rope", "task": "leval_closed_coursera",
    "name": "exact_match", "metric": "exact_match", "kind": "score", "unit": "share",
    "length": 8192, "higher_is_better": True, "sample": False, "group": False, "run": 0,
    "mark": "*",     "difference": -0.042, "diff_low": -0.061, "diff_high": -0.023,
}  # fmt: skip


def sentences(*changes):
    return verdict(pd.DataFrame([{**BASE, "run": at, **each} for at, each in enumerate(changes)]))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, "4.2 points worse on Coursera at 8K (2.3 to 6.1)"),
        (
            {"difference": 0.042, "diff_low": 0.023, "diff_high": 0.061},
            "4.2 points better on Coursera at 8K (2.3 to 6.1)",
        ),
        (
            {"task": "ppl_pg19", "name": "token_perplexity@8192", "metric": "token_perplexity",
             "kind": "loss", "unit": "perplexity", "higher_is_better": False},
            "0.042 nats a token better on PG19 at 8K (0.023 to 0.061)",
        ),
        (
            {"task": "mt", "name": "ter", "metric": "ter", "unit": "", "higher_is_better": False},
            "0.042 ter better on mt at 8K (0.023 to 0.061)",
        ),
        ({"mark": ""}, "no difference is shown in 1 comparison"),
        ({"mark": "?"}, "too few documents in 1 comparison"),
    ],
)  # fmt: skip
def test_a_difference_and_its_interval_are_said_in_one_direction(change, says):
    assert sentences(change) == [f"yarn against rope: {says}."]


def test_few_differences_are_named_and_the_others_counted():
    found = sentences(*({"length": 1024 * 2**at} for at in range(5)), {"mark": ""}, {"mark": "?"})
    assert found[0].startswith("yarn against rope: 4.2 points worse on Coursera at 16K")
    assert found[0].endswith(
        "; 2 further differences; no difference is shown in 1 comparison; too few documents in 1 "
        "comparison."
    )


def test_the_bundled_sample_decides_nothing():
    assert sentences({"sample": True}) == []


def test_numbers_of_tables():
    names = ["exact_match", "exact_match_strict", "loyalty"]
    frame = pd.DataFrame([
        *({**BASE, "task": "leval_closed_sfiction", "name": n, "metric": n} for n in names),
        {**BASE, "task": "leval_closed", "group": True},
        {**BASE, "task": "ppl_pg19", "name": "word_perplexity@8192", "metric": "word_perplexity"},
        {**BASE, "task": "ppl_pg19", "name": "token_perplexity@8192", "metric": "token_perplexity"},
        {**BASE, "task": "arc", "name": "acc", "metric": "acc"},
        {**BASE, "task": "mmlu", "name": "acc", "metric": "acc", "group": True},
        {**BASE, "task": "effective_context_pg19", "name": "loss", "metric": "loss"},
        {**BASE, "task": "arc", "name": np.nan, "metric": np.nan},
    ])  # fmt: skip
    shown = frame[main_numbers(frame)]
    assert [*zip(shown["task"], shown["metric"], strict=True)] == [
        ("leval_closed_sfiction", "exact_match"), ("ppl_pg19", "token_perplexity"), ("arc", "acc"),
        ("mmlu", "acc"),
    ]  # fmt: skip
