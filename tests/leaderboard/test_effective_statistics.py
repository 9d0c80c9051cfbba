"""Effective context length: bins, answers and the break, on gains whose truth is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from leval_tasks.statistics.effective_context import (
    BLOCK,
    Blocks,
    Length,
    bin_edges,
    block_sums,
    break_position,
    clipped_gain,
    decide,
    effective_context,
    texts_that_agree,
)
from leval_tasks.statistics.skewed_t import MARGIN, REFUSED_AT, SHOWN_AT, SkewedMean

START, LONGEST = 2048, 12288


def texts(mean, count=8, spread=0.3, seed=0, length=LONGEST):
    """Gains `[T]` of texts whose mean at a position is `mean(position)`."""
    rng = np.random.default_rng(seed)
    position = np.arange(START, length)
    return [
        np.clip(mean(position) + spread * rng.normal(size=position.size), -1, 1)
        for _ in range(count)
    ]


def of_texts(gains):
    """Blocks of texts whose gains begin at `START`."""
    return Blocks.joined([(START, *block_sums(each)) for each in gains])


def test_gain_is_the_loss_that_full_context_saves_up_to_one_nat():
    assert clipped_gain([2.0, 5.0, 0.1], [1.5, 1.0, 3.0]).tolist() == [0.5, 1.0, -1.0]


@given(st.integers(1, 20_000))
def test_blocks_hold_every_token_once(size):
    gains = np.arange(size, dtype=np.float64)
    sums, tokens = block_sums(gains)
    assert sums.sum() == pytest.approx(gains.sum())
    assert tokens.sum() == size
    assert tokens.size == 1 or tokens[-1] >= BLOCK / 2


def test_bins_are_an_eighth_of_the_longest_length():
    assert bin_edges(2048, 16384) == [2048, 4096, 6144, 8192, 10240, 12288, 14336, 16384]
    assert bin_edges(2048, 12288) == [2048, 3072, 4608, 6144, 7680, 9216, 10752, 12288]


def test_a_bin_is_the_mean_over_the_tokens_of_the_texts_that_reach_it():
    long, short = np.full(4096, 0.2), np.full(1024, -0.1)
    found = effective_context(of_texts([long, short, long]), [2048, 3072, 6144])
    assert [each.gain for each in found.bins] == pytest.approx([0.1, 0.2])
    assert [each.units for each in found.bins] == [6, 12]


def test_the_ends_of_a_bin_are_where_its_tests_begin_to_decide():
    blocks = of_texts(texts(lambda p: 0.05 + 0 * p, count=3))
    first = effective_context(blocks, bin_edges(START, LONGEST)).bins[0]
    part = blocks.within(first.start, first.end)
    loss = SkewedMean.of(-part.gain, part.tokens)
    assert loss.one_sided(-first.low)[0] == pytest.approx(SHOWN_AT, rel=1e-6)
    assert loss.one_sided(-first.high)[1] == pytest.approx(REFUSED_AT, rel=1e-6)


def test_without_skewness_the_test_is_students():
    sums = np.array([-3.0, -1.0, 0.0, 1.0, 3.0]) + 2
    below, above = SkewedMean.of(sums, np.ones(5)).one_sided(0.5)
    expected = stats.ttest_1samp(sums, 0.5, alternative="greater").pvalue
    assert above == pytest.approx(expected)
    assert below == pytest.approx(1 - expected)


def test_units_that_all_lie_at_the_threshold_show_nothing():
    assert SkewedMean.of(np.zeros(5), np.ones(5)).one_sided(0.0) == (0.5, 0.5)


def test_gains_throughout_are_shown_to_the_end():
    blocks = of_texts(texts(lambda p: 0.05 + 0 * p))
    found = effective_context(blocks, bin_edges(START, LONGEST))
    assert (found.no_degradation.shown, found.no_degradation.verdict) == (LONGEST, "shown")
    assert (found.benefits.shown, found.benefits.refused) == (LONGEST, None)
    assert break_position(blocks) is None
    assert texts_that_agree(blocks, found.no_degradation) == (8, 8)


def test_texts_that_agree_lose_less_than_the_margin_per_token():
    blocks = of_texts([np.full(LONGEST - START, loss * MARGIN) for loss in (-0.5, -1.5)])
    length = Length(shown=LONGEST, refused=None, measured=LONGEST, start=START)
    assert texts_that_agree(blocks, length) == (1, 2)


def test_a_break_is_bracketed_and_found():
    blocks = of_texts(texts(lambda p: np.where(p < 9728, 0.05, -0.8)))
    found = effective_context(blocks, bin_edges(START, LONGEST)).no_degradation
    assert found.shown <= 9728 <= found.refused
    assert found.verdict == "refused"
    assert abs(break_position(blocks) - 9728) <= 512


def test_a_model_that_never_gains_breaks_where_measuring_begins():
    assert break_position(of_texts(texts(lambda p: -0.5 + 0 * p))) == START


def test_two_texts_decide_nothing_about_texts_like_these():
    blocks = of_texts(texts(lambda p: 0.3 + 0 * p, count=2))
    edges = bin_edges(START, LONGEST)
    assert effective_context(blocks, edges).no_degradation.verdict == "shown"
    like = effective_context(blocks, edges, texts_as_units=True)
    assert (like.no_degradation.verdict, like.no_degradation.shown) == ("undecided", START)
    assert {(each.low, each.high, each.units) for each in like.bins} == {(None, None, 2)}


def test_texts_of_different_length_count_as_far_as_they_reach():
    gains = [*texts(lambda p: 0.05 + 0 * p, 3), *texts(lambda p: 0.05 + 0 * p, 3, length=6144)]
    blocks = of_texts(gains)
    bins = effective_context(blocks, bin_edges(START, LONGEST), texts_as_units=True).bins
    assert [each.units for each in bins] == [6, 6, 6, 3, 3, 3, 3]


@pytest.mark.parametrize(
    ("above", "below", "expected"),
    [
        ([0.001, 0.001, 0.2], [0.9, 0.9, 0.5], (2, None)),
        ([0.001, 0.2, 0.001], [0.9, 0.5, 0.9], (1, None)),  # in order: the third does not count
        ([0.2, 0.2, 0.2], [0.9, 0.0024, 0.9], (0, 1)),
        ([0.2, 0.2, 0.2], [0.9, 0.9, 0.0024], (0, None)),  # Bonferroni: a third of the level
        ([0.2, 0.2, 0.2], [0.001, 0.9, 0.9], (0, 0)),  # the first refusal stays
        ([], [], (0, None)),
    ],
)
def test_bins_are_shown_in_order_and_a_length_is_refused_by_any_of_its_bins(above, below, expected):
    assert decide(above, below) == expected


@given(st.floats(0.001, 0.5), st.integers(0, 1000))
def test_a_wider_margin_never_shortens_what_is_shown(margin, seed):
    blocks = of_texts(texts(lambda p: 0.02 + 0 * p, count=4, seed=seed))
    edges = bin_edges(START, LONGEST)
    narrow = effective_context(blocks, edges, margin=margin).no_degradation
    wide = effective_context(blocks, edges, margin=margin + MARGIN).no_degradation
    assert wide.shown >= narrow.shown
