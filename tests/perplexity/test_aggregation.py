"""Numbers against their definitions written out, and standard errors against repeated sampling."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leval_tasks.aggregation import aggregations, ratio, ratio_stderr
from leval_tasks.metrics import OURS
from leval_tasks.perplexity.windows import METRICS, document_pairs

PAIRS = [[10.0, 4], [9.0, 3], [20.0, 8], [2.0, 2]]


def test_token_perplexity_divides_once():
    value, _ = aggregations(OURS["token_perplexity"].aggregation)
    assert value(PAIRS) == pytest.approx(math.exp(41 / 17), rel=1e-14)


def test_bits_per_byte_is_log2_of_byte_perplexity():
    bits, _ = aggregations(OURS["bits_per_byte"].aggregation)
    byte, _ = aggregations(OURS["byte_perplexity"].aggregation)
    assert bits(PAIRS) == pytest.approx(math.log2(byte(PAIRS)), rel=1e-14)


def test_a_band_is_reported_in_nats_a_token():
    value, _ = aggregations(OURS["nll"].aggregation)
    assert value(PAIRS) == pytest.approx(41 / 17, rel=1e-14)


def test_paper_perplexity_counts_every_window_alike():
    # two documents, windows of very different size
    first = document_pairs([8.0, 1.0], [4, 1], "a b cdefg")
    second = document_pairs([6.0], [2], "abcde")
    value, _ = aggregations(OURS["paper_perplexity"].aggregation)
    expected = math.exp(np.mean([8 / 4, 1 / 1, 6 / 2]))
    assert value([first["paper_perplexity"], second["paper_perplexity"]]) == pytest.approx(expected)
    token, _ = aggregations(OURS["token_perplexity"].aggregation)
    assert token([first["token_perplexity"], second["token_perplexity"]]) == pytest.approx(
        math.exp(15 / 7)
    )


def test_words_and_bytes_are_the_documents_own():
    pairs = document_pairs([6.0], [4], "one two drei")
    assert pairs["word_perplexity"] == [6.0, 3]
    assert pairs["byte_perplexity"] == pairs["bits_per_byte"] == [6.0, 12]


def test_standard_error_is_the_spread_over_repeated_draws_of_documents():
    rng = np.random.default_rng(0)

    def draw(documents: int) -> list[list[float]]:
        n = rng.integers(50, 150, documents)
        level = rng.normal(2.0, 0.2, documents)  # documents differ: tokens are not independent
        return [[float(a * b), int(b)] for a, b in zip(level, n, strict=True)]

    value, stderr = aggregations(OURS["token_perplexity"].aggregation)
    samples = [draw(40) for _ in range(1500)]
    spread = np.std([value(pairs) for pairs in samples])
    assert np.mean([stderr(pairs) for pairs in samples]) == pytest.approx(spread, rel=0.05)


def test_equal_lengths_give_the_textbook_standard_error():
    x = np.array([1.5, 2.0, 2.6, 1.9])
    pairs = [[float(v) * 10, 10] for v in x]
    assert ratio_stderr(pairs) == pytest.approx(x.std(ddof=1) / 2, rel=1e-12)


@pytest.mark.parametrize("name", [*METRICS, "nll"])
@pytest.mark.parametrize("documents", [0, 1, 2])
def test_no_interval_below_three_documents(name, documents):
    _, stderr = aggregations(OURS[name].aggregation)
    assert stderr(PAIRS[:documents]) == "N/A"
    assert isinstance(stderr(PAIRS[:3]), float)


@pytest.mark.parametrize("name", [*METRICS, "nll"])
def test_documents_that_are_alike_have_no_known_error(name):
    value, stderr = aggregations(OURS[name].aggregation)
    assert stderr([[6.0, 4]] * 5) == "N/A"
    assert isinstance(value([[6.0, 4]] * 5), float)


def test_failed_documents_do_not_count():
    value, stderr = aggregations(OURS["token_perplexity"].aggregation)
    assert value([*PAIRS, [0.0, 0]]) == value(PAIRS)
    assert stderr([*PAIRS, [0.0, 0]]) == stderr(PAIRS)
    assert stderr([*PAIRS[:2], [0.0, 0]]) == "N/A"
    assert json.dumps(value([[0.0, 0]])) == '"N/A"'


@given(
    st.lists(
        st.tuples(st.floats(0.01, 1e4), st.integers(1, 10_000)).map(list), min_size=3, max_size=20
    ),
    st.randoms(),
)
def test_order_of_documents_does_not_matter(pairs, random):
    shuffled = random.sample(pairs, len(pairs))
    assert ratio(pairs) == ratio(shuffled)
    errors = [ratio_stderr(each) for each in (pairs, shuffled)]
    assert errors[0] == pytest.approx(errors[1], rel=1e-6, nan_ok=True)
