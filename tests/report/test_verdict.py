"""What the verdict says of scores and retrieval, in words that fit the numbers."""

import numpy as np
import pandas as pd
import pytest

from leval_harness.report.selection import main_numbers
from leval_harness.report.verdict import verdicts

BASE = {
    "block": "m", "model": "m", "label": "yarn", "baseline": "rope", "task": "leval_closed_coursera",
    "name": "exact_match", "metric": "exact_match", "kind": "score", "unit": "share",
    "length": 8192, "higher_is_better": True, "sample": False, "group": False, "run": 0,
    "mark": "*", "difference": -0.042, "diff_low": -0.061, "diff_high": -0.023,
    "value": 0.5, "n": 100, "wins": 3, "losses": 7, "partial": True, "num_docs": None,
}  # fmt: skip


def sentences_of(frame):
    return [sentence for verdict in verdicts(frame) for sentence in verdict.all_sentences]


def sentences(*changes):
    rows = [{**BASE, "run": run, **change} for run, change in enumerate(changes)]
    return sentences_of(pd.DataFrame(rows))


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
        ({"mark": ""}, "no significant difference in 1 comparison"),
        ({"mark": "?"}, "1 comparison undecided: at least 6 documents are needed"),
        (
            {"mark": "?", "partial": False},
            "1 comparison undecided: the task has too few documents, 6 are needed",
        ),
        (
            {"mark": "?", "partial": False, "num_docs": 3},
            "1 comparison undecided: at least 6 documents are needed",
        ),
        (
            {"mark": "?", "difference": 0.0, "wins": 0, "losses": 0},
            "identical answers in 1 comparison",
        ),
    ],
)  # fmt: skip
def test_difference_and_interval_have_one_direction(change, says):
    assert sentences(change) == [f"yarn compared with rope: {says}."]


def test_few_differences_are_named_others_counted():
    found = sentences(*({"length": 1024 * 2**at} for at in range(5)), {"mark": ""}, {"mark": "?"})
    assert found[0].startswith("yarn compared with rope: 4.2 points worse on Coursera at 16K")
    assert found[0].endswith(
        "; 2 further differences; no significant difference in 1 comparison; 1 comparison "
        "undecided: at least 6 documents are needed."
    )


def test_more_methods_need_more_documents():
    """2 / 2**7 is below 0.05 / 2, 2 / 2**6 is not."""
    found = sentences({"mark": "?"}, {"mark": "?", "label": "linear"})
    assert all(each.endswith("at least 7 documents are needed.") for each in found)


def test_two_blocks_have_a_heading_each():
    frame = pd.DataFrame([{**BASE, "label": "a: b"}, {**BASE, "block": "n"}])
    found = verdicts(frame)
    assert [verdict.heading for verdict in found] == ["m", "n"]
    assert found[0].sentences[0].startswith("a: b compared with rope: ")


def test_bundled_sample_decides_nothing():
    assert sentences({"sample": True}) == []


@pytest.mark.parametrize(
    ("right", "says"),
    [
        (
            (100, 40),
            "retrieves above 85.6% up to 8K, not 16K (niah_single_1; 100 questions per length)",
        ),
        (
            (100, 99),
            "retrieves above 85.6% up to at least 16K (niah_single_1; 100 questions per length)",
        ),
        ((40, 40), "retrieves above 85.6% at no length (niah_single_1; 100 questions per length)"),
        (
            (86, 86),
            "is undecided in retrieval above 85.6% (niah_single_1; 100 questions per length): at least "
            "24 questions per length are needed",
        ),
    ],
)
def test_sentence_on_retrieval(right, says):
    rows = [
        {**BASE, "run": at, "task": "niah_single_1", "name": f"{length}", "metric": "score",
         "length": length, "value": each / 100, "n": 100, "difference": np.nan}
        for at, (length, each) in enumerate(zip((8192, 16384), right, strict=True))
    ]  # fmt: skip
    assert sentences_of(pd.DataFrame(rows)) == [f"yarn {says}."]
    both = [*rows, *({**row, "label": "linear"} for row in rows)]
    assert sentences_of(pd.DataFrame(both)) == [f"yarn {says}.", f"linear {says}."]


def test_main_numbers_of_tasks():
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
