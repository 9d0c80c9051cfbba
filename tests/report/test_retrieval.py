"""Retrieval: counts at growing lengths against exact tails, and what is said of them."""

import numpy as np
import pytest
from lm_eval_output import mean_of, sample, write
from scipy import stats

from leval_harness.report.compare import compare
from leval_harness.report.retrieval import length_text, retrievals
from leval_harness.report.tables import build_tables
from leval_harness.results.load import load_results
from leval_tasks.statistics.retrieval import Retrieved, length_above

LENGTHS = (4096, 8192, 12288)
ASKED = (1024, 2048, 4096, 8192, 12288)


def counts(*right: float, asked: int = 100) -> list[Retrieved]:
    return [Retrieved(n, each, asked) for n, each in zip(LENGTHS, right, strict=True)]


@pytest.mark.parametrize(
    ("right", "asked", "above"),
    [
        ((100, 99, 0), 100, "8K, not 12K"),
        ((100, 99, 98), 100, "at least 12K"),
        ((40, 38, 0), 400, "nowhere"),
        ((1, 1, 0), 1, "cannot tell"),
        ((20, 19, 0), 20, "cannot tell"),
    ],
)
def test_what_is_said_of_counts(right, asked, above):
    assert length_text(length_above(counts(*right, asked=asked))) == above


@pytest.mark.parametrize(
    ("right", "low", "high", "text"),
    [
        ((900, 900, 900, 900, 900), 12288, 12288, "at least 12K"),
        ((900, 900, 900, 900, 800), 8192, 8192, "8K, not 12K"),
        ((900, 900, 900, 866, 800), 4096, 8192, "at least 4K"),
        ((900, 900, 900, 866, 866), 4096, 12288, "at least 4K"),
        ((900, 800, 900, 900, 900), 1024, 1024, "1K, not 2K"),
        ((866, 900, 900, 900, 900), None, 12288, "cannot tell"),
        ((866, 900, 900, 900, 800), None, 8192, "cannot tell"),
        ((900, 833, 900, 900, 900), 1024, 12288, "at least 1K"),  # p is 0.023, above 0.025 / 2
    ],
)
def test_what_is_said_of_counts_at_growing_lengths(right, low, high, text):
    pairs = zip(ASKED, right, strict=True)
    found = length_above([Retrieved(length, each, 1000) for length, each in pairs])
    assert (found.low, found.high) == (low, high)
    assert length_text(found) == text


@pytest.mark.parametrize("right", range(80, 101))
def test_a_length_is_shown_by_the_exact_binomial_tail(right):
    found = length_above(counts(right, 0, 0))
    p = stats.binomtest(right, 100, 0.856, alternative="greater").pvalue
    assert (found.low == 4096) == (p <= 0.025)


@pytest.mark.parametrize("rates", [(0.9, 0.856, 0.5), (0.9, 0.85, 0.85), (0.6, 0.56, 0.54)])
@pytest.mark.parametrize("asked", [20, 200])
def test_retrieval_interval_covers_the_true_length(rates, asked):
    lengths = (0, *LENGTHS)
    true = lengths[next((at for at, rate in enumerate(rates) if rate < 0.856), 3)]
    missed = 0
    for each in np.random.default_rng(1).binomial(asked, rates, (2000, 3)):
        length = length_above(counts(*map(float, each), asked=asked))
        missed += not (length.low or 0) <= true <= length.high
    assert missed / 2000 <= 0.06


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two tasks; at 12K half of the questions are answered, and one task was not asked."""
    folder = tmp_path_factory.mktemp("ruler")
    for length in LENGTHS:
        for task in ("niah_single_1", "ruler_vt")[: 1 + (length < 12288)]:
            rows = [
                sample(at, float(length < 12288 or at % 10 >= 5), str(length)) for at in range(100)
            ]
            write(folder / task, mean_of(rows, str(length)), task, rows, max_length=length,
                  stamp=f"2026-01-01T00-00-00.{length}")  # fmt: skip
    return folder


def test_the_length_is_over_the_tasks_that_all_lengths_have(folder):
    compared = compare(load_results(folder))
    (found,) = retrievals(compared).to_dict("records")
    assert found["tasks"] == ("niah_single_1",)
    assert found["lengths"] == LENGTHS
    assert found["questions"] == (100, 100, 100)
    assert found["above"] == "8K, not 12K"


def test_the_table_of_lengths_stands_before_the_scores(folder):
    tables = build_tables(compare(load_results(folder)))
    titles = [table.title for table in tables]
    assert titles[0] == "Retrieval length"
    assert tables[0].cells.to_numpy().tolist() == [["8K, not 12K", "100 questions per length"]]


def test_real_runs_have_too_few_questions_to_tell(real_runs):
    found = retrievals(compare(load_results(real_runs)))
    assert found["label"].tolist() == ["rope", "yarn"]
    assert set(found["above"]) == {"cannot tell"}
