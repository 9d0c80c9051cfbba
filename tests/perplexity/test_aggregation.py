"""Numbers against their definitions written out, and standard errors against repeated sampling."""

import json
import math

import numpy as np
import pytest

from leval_tasks.common.metrics import OURS, aggregations
from leval_tasks.perplexity.task import METRICS, document_pairs

PAIRS = [[10.0, 4], [9.0, 3], [20.0, 8], [2.0, 2]]


def of(name):
    return aggregations(OURS[name].aggregation)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("token_perplexity", math.exp(41 / 17)),
        ("byte_perplexity", math.exp(41 / 17)),
        ("bits_per_byte", 41 / 17 / math.log(2)),
        ("loss", 41 / 17),
    ],
)
def test_sums_are_divided_once(name, expected):
    value, _ = of(name)
    assert value(PAIRS) == pytest.approx(expected, rel=1e-14)
    assert value(PAIRS[::-1]) == value(PAIRS)


def test_paper_perplexity_counts_every_window_alike():
    # two documents, windows of very different size
    first = document_pairs([8.0, 1.0], [4, 1], "one two drei")
    second = document_pairs([6.0], [2], "abcde")
    value, _ = of("paper_perplexity")
    expected = math.exp(np.mean([8 / 4, 1 / 1, 6 / 2]))
    assert value([first["paper_perplexity"], second["paper_perplexity"]]) == pytest.approx(expected)
    assert first["token_perplexity"] == [9.0, 5]
    assert first["word_perplexity"] == [9.0, 3]
    assert first["byte_perplexity"] == first["bits_per_byte"] == [9.0, 12]


@pytest.mark.parametrize("name", ["token_perplexity", "loss"])
def test_stderr_is_spread_over_drawn_documents(name):
    rng = np.random.default_rng(0)

    def draw(documents: int) -> list[list[float]]:
        n = rng.integers(50, 150, documents)
        level = rng.normal(2.0, 0.2, documents)  # documents differ: tokens are not independent
        return [[float(a * b), int(b)] for a, b in zip(level, n, strict=True)]

    value, stderr = of(name)
    samples = [draw(40) for _ in range(1500)]
    spread = np.std([value(pairs) for pairs in samples])
    assert np.mean([stderr(pairs) for pairs in samples]) == pytest.approx(spread, rel=0.05)


@pytest.mark.parametrize("name", [*METRICS, "loss"])
def test_no_error_below_three_documents_or_where_they_are_alike(name):
    value, stderr = of(name)
    assert [stderr(PAIRS[:n]) for n in range(3)] == ["N/A"] * 3
    assert isinstance(stderr(PAIRS[:3]), float)
    assert stderr([[6.0, 4]] * 5) == "N/A"
    assert isinstance(value([[6.0, 4]] * 5), float)


def test_documents_of_which_nothing_was_scored_do_not_count():
    value, stderr = of("token_perplexity")
    assert value([*PAIRS, [0.0, 0]]) == value(PAIRS)
    assert stderr([*PAIRS, [0.0, 0]]) == stderr(PAIRS)
    assert stderr([*PAIRS[:2], [0.0, 0]]) == "N/A"
    assert json.dumps(value([[0.0, 0]])) == json.dumps(value([[math.nan, 4]])) == '"N/A"'
