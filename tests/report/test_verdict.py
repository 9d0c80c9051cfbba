"""What the verdict says of scores and retrieval, in words that fit the numbers."""

import numpy as np
import pandas as pd
import pytest

from leval_harness.report.verdict import TERMS, main_numbers, said, verdict

BASE = {
    "block": "m", "label": "yarn", "baseline": "rope", "task": "leval_closed_coursera",
    "name": "exact_match", "metric": "exact_match", "kind": "score", "unit": "share",
    "length": 8192, "higher_is_better": True, "sample": False, "group": False, "run": 0,
    "mark": "*", "difference": -0.042, "diff_low": -0.061, "diff_high": -0.023,
    "value": 0.5, "n": 100,
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
            "0.042 nats/token lower loss on PG19 at 8K (0.023 to 0.061)",
        ),
        (
            {"task": "mt", "name": "ter", "metric": "ter", "unit": "", "higher_is_better": False},
            "0.042 ter better on mt at 8K (0.023 to 0.061)",
        ),
        ({"mark": ""}, "no difference is shown in 1 comparison"),
        ({"mark": "?"}, "not decided in 1 comparison: it takes 6 documents"),
    ],
)  # fmt: skip
def test_a_difference_and_its_interval_are_said_in_one_direction(change, says):
    assert sentences(change) == [f"yarn against rope: {says}."]


def test_few_differences_are_named_and_the_others_counted():
    found = sentences(*({"length": 1024 * 2**at} for at in range(5)), {"mark": ""}, {"mark": "?"})
    assert found[0].startswith("yarn against rope: 4.2 points worse on Coursera at 16K")
    assert found[0].endswith(
        "; 2 further differences; no difference is shown in 1 comparison; not decided in 1 "
        "comparison: it takes 6 documents."
    )


def test_more_methods_take_more_documents():
    """2 / 2**7 is below 0.05 / 2, 2 / 2**6 is not."""
    found = sentences({"mark": "?"}, {"mark": "?", "label": "linear"})
    assert all(each.endswith("it takes 7 documents.") for each in found)


def test_a_method_of_any_name_is_what_its_sentence_is_about():
    found = said(pd.DataFrame([{**BASE, "label": "a: b"}, {**BASE, "block": "n"}]))
    assert [label for label, _ in found] == ["m, a: b against rope", "n, yarn against rope"]


def test_the_bundled_sample_decides_nothing():
    assert sentences({"sample": True}) == []


@pytest.mark.parametrize(
    ("right", "says"),
    [
        ((100, 40), "retrieves above 85.6% up to 8K, not 16K (niah_single_1; 200 questions)"),
        ((100, 99), "retrieves above 85.6% up to at least 16K (niah_single_1; 200 questions)"),
        ((40, 40), "retrieves above 85.6% nowhere (niah_single_1; 200 questions)"),
        (
            (86, 86),
            "retrieval above 85.6% is not decided (niah_single_1; 200 questions): it takes 24 "
            "questions a length",
        ),
    ],
)
def test_how_far_a_method_retrieves_is_a_sentence(right, says):
    rows = [
        {**BASE, "run": at, "task": "niah_single_1", "name": f"{length}", "metric": "score",
         "length": length, "value": each / 100, "n": 100, "difference": np.nan}
        for at, (length, each) in enumerate(zip((8192, 16384), right, strict=True))
    ]  # fmt: skip
    assert verdict(pd.DataFrame(rows)) == [f"yarn: {says}."]
    both = [*rows, *({**row, "label": "linear"} for row in rows)]
    assert verdict(pd.DataFrame(both)) == [f"yarn: {says}.", f"linear: {says}."]


def test_terms_are_at_most_eight():
    assert len(TERMS) <= 8


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
