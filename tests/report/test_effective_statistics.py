"""Effective context length: closed forms of the rule, and its error rates where truth is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from leval_tasks.statistics.effective_context import (
    BINS,
    BLOCK,
    LEVEL,
    MARGIN,
    Bin,
    bin_edges,
    bin_intervals,
    block_sums,
    clipped_difference,
    context_bounds,
    interval,
    onset,
)

START, LONGEST = 2048, 11264
EDGES = bin_edges(START, LONGEST)


def blocks(means, documents=3, seed=0):
    """Middles, sums and tokens of the blocks of some documents, for a mean at each position.

    Means of blocks scatter by 0.043 nats, as on real documents.
    """
    rng = np.random.default_rng(seed)
    middles = np.tile(np.arange(START, LONGEST, BLOCK) + BLOCK / 2, documents)
    tokens = np.full(middles.size, float(BLOCK))
    return (
        middles,
        tokens * (means(middles) + 0.043 * rng.standard_normal(middles.size)),
        tokens,
    )


def rates(means, count=400, **how):
    """`(no degradation up to, degradation by)` of many samples."""
    found = [
        context_bounds(bin_intervals(*blocks(means, seed=seed, **how), EDGES))
        for seed in range(count)
    ]
    return np.array([[held or START, broken or 10**9] for held, broken in found])


def test_a_difference_is_what_the_method_loses_up_to_one_nat():
    assert clipped_difference([1.5, 1.0, 3.0], [2.0, 5.0, 0.1]).tolist() == [-0.5, -1.0, 1.0]


@given(st.integers(1, 20_000))
def test_blocks_hold_every_token_once(size):
    values = np.arange(size, dtype=np.float64)
    sums, tokens = block_sums(values)
    assert (sums.sum(), tokens.sum()) == (pytest.approx(values.sum()), size)
    assert tokens.size == 1 or tokens[-1] >= BLOCK / 2
    assert (tokens[:-1] == BLOCK).all()
    assert block_sums(np.zeros(BLOCK + BLOCK // 2))[1].tolist() == [BLOCK, BLOCK / 2]


def test_without_uneven_blocks_the_interval_is_students():
    sums = np.array([-3.0, -1.0, 0.0, 1.0, 3.0]) + 2
    found = interval(sums * BLOCK, np.full(5, BLOCK), 0.05)
    expected = stats.ttest_1samp(sums, 0).confidence_interval(0.95)
    assert (found.mean, found.low, found.high) == pytest.approx((2.0, *expected))


def test_an_uneven_block_weighs_by_its_tokens():
    sums, tokens = np.array([6.0, 8.0, 1.0]), np.array([64.0, 64.0, 32.0])
    found = interval(sums, tokens, 0.01)
    mean = 15 / 160
    error = np.sqrt(3 / 2 * ((sums - mean * tokens) ** 2).sum()) / 160
    assert found.mean == pytest.approx(mean)
    assert found.high - found.mean == pytest.approx(stats.t.ppf(0.995, 2) * error)


def test_one_block_alone_tells_nothing():
    assert interval(np.array([9.0]), np.array([64.0])).contains_zero


@given(st.integers(1, 5000), st.integers(1, 60_000))
def test_bins_are_equal_as_far_as_whole_blocks_allow(start, more):
    edges = bin_edges(start, start + more)
    assert (edges[0], edges[-1]) == (start, start + more)
    assert len(edges) - 1 == min(BINS, max(1, more // BLOCK))
    widths = np.diff(edges)
    assert all((edge - start) % BLOCK == 0 for edge in edges[1:-1])
    assert widths.min() > 0
    assert widths.max() - widths.min() < 2 * BLOCK


def test_bins_of_the_quickstart():
    assert EDGES == [2048, 3584, 5120, 6656, 8192, 9728, 11264]


def test_bin_is_the_mean_over_documents_that_reach_it():
    long, short = np.full(2048, 0.2), np.full(1024, -0.1)
    parts = [(START, *block_sums(each)) for each in (long, short, long)]
    middles = np.concatenate([at + np.cumsum(tokens) - tokens / 2 for at, _, tokens in parts])
    sums, tokens = (np.concatenate([part[each] for part in parts]) for each in (1, 2))
    found = bin_intervals(middles, sums, tokens, [2048, 3072, 4096])
    assert [each.mean for each in found] == pytest.approx([0.1, 0.2])
    first = interval(sums[middles < 3072], tokens[middles < 3072], LEVEL / 2)
    assert (found[0].low, found[0].high) == (first.low, first.high)


def bin_of(end, sign):
    """A bin above the margin, below it, or neither."""
    low, high = {"+": (0.06, 0.08), "-": (0.01, 0.03), "?": (0.0, 0.1)}[sign]
    return Bin((low + high) / 2, low, high, end - 1, end)


@pytest.mark.parametrize(
    ("signs", "expected"),
    [
        ("------", (6, None)),
        ("----??", (4, None)),
        ("??-?--", (6, None)),  # the last one below the margin counts
        ("----?+", (4, 6)),
        ("---+--", (3, 4)),  # bins after a break do not
        ("+-----", (None, 1)),
        ("??????", (None, None)),
        ("", (None, None)),
    ],
)
def test_the_answer_is_read_off_the_intervals(signs, expected):
    assert (
        context_bounds([bin_of(at + 1, sign) for at, sign in enumerate(signs)], MARGIN) == expected
    )


def test_an_interval_that_ends_at_the_margin_decides_nothing():
    assert context_bounds([Bin(0.04, 0.03, MARGIN, 0, 1)]) == (None, None)
    assert context_bounds([Bin(0.06, MARGIN, 0.07, 0, 1)]) == (None, None)


def test_a_break_is_bracketed_and_found_near_its_place():
    middles, sums, tokens = blocks(lambda at: np.where(at < 10_240, 0.0, 0.4))
    held, broken = context_bounds(bin_intervals(middles, sums, tokens, EDGES))
    assert (held, broken) == (9728, 11264)
    assert abs(onset(middles + BLOCK / 2, sums, tokens) - 10_240) <= 4 * BLOCK


def test_a_method_that_loses_from_the_start_breaks_nowhere_else():
    middles, sums, tokens = blocks(lambda at: 0.2 + 0 * at)
    assert onset(middles + BLOCK / 2, sums, tokens) is None


@pytest.mark.parametrize("documents", [1, 3])
def test_error_rate_of_each_bound_at_the_margin(documents):
    """Independent blocks: the nominal 0.25% a side; of 400 samples at most 5 in 99.9% of runs."""
    found = rates(lambda at: MARGIN + 0 * at, documents=documents)
    assert (found[:, 0] > START).sum() <= 5
    assert (found[:, 1] <= LONGEST).sum() <= 5


def test_power_below_the_margin_and_at_a_break():
    assert (rates(lambda at: 0.01 + 0 * at)[:, 0] == LONGEST).mean() > 0.9
    broken = rates(lambda at: np.where(at < 9728, 0.0, 0.3))
    assert (broken == [9728, 11264]).all(axis=1).mean() > 0.9


@given(st.floats(0.001, 0.5), st.integers(0, 1000))
def test_a_wider_margin_never_shortens_what_is_shown(margin, seed):
    found = bin_intervals(*blocks(lambda at: 0.02 + 0 * at, seed=seed), EDGES)
    narrow, wide = context_bounds(found, margin), context_bounds(found, margin + MARGIN)
    assert (wide[0] or 0) >= (narrow[0] or 0)
    assert (wide[1] or 10**9) >= (narrow[1] or 10**9)
