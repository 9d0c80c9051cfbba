"""Bins that begin where losses differ, their intervals, and how often the verdict is wrong."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from leval_tasks.statistics.difference import (
    Bin,
    difference_bins,
    doubling_edges,
    equal_up_to,
    verdict_of,
)


@pytest.mark.parametrize(
    ("start", "end", "edges"),
    [
        (4096, 8191, [4096, 4352, 4864, 5888, 8191]),
        (0, 5000, [0, 256, 768, 1792, 5000]),
        (0, 6000, [0, 256, 768, 1792, 3840, 6000]),
        (0, 127, [0, 31, 127]),
        (126, 127, [126, 127]),
        (127, 127, [127]),
    ],
)
def test_bins_double(start, end, edges):
    assert doubling_edges(start, end) == edges


@given(st.integers(0, 9000), st.integers(1, 9000))
def test_bins_cover_every_position_once(start, size):
    edges = doubling_edges(start, start + size)
    assert edges[0] == start
    assert edges[-1] == start + size
    assert (np.diff(edges) > 0).all()


def test_equal_up_to_the_first_position_that_differs_in_any_text():
    a = np.ones((3, 50))
    b = a.copy()
    assert equal_up_to(a, b) == 50
    assert difference_bins(b - a, 50) == ()
    assert verdict_of(()) == "same"
    b[1, 20] += 1e-12
    assert equal_up_to(a, b) == 20


def test_the_interval_is_the_t_interval_over_blocks():
    differences = np.random.default_rng(0).normal(0.02, 0.3, (4, 512))
    (first, *rest) = found = difference_bins(differences, 0)
    blocks = differences[:, :128].reshape(-1, 64).mean(axis=1)
    level = 1 - 0.05 / len(found)
    low, high = stats.t.interval(level, len(blocks) - 1, blocks.mean(), stats.sem(blocks))
    assert (first.start, first.end, rest[-1].end) == (0, 128, 512)
    assert (first.difference, first.low, first.high) == pytest.approx((blocks.mean(), low, high))


@pytest.mark.parametrize(
    ("mean", "spread", "verdict"),
    [(0.0, 0.001, "same"), (0.005, 0.001, "same"), (0.05, 0.1, "worse"), (-0.05, 0.1, "better"),
     (0.0, 0.5, "not decided")],
)  # fmt: skip
def test_a_verdict_can_be_read_off_the_intervals(mean, spread, verdict):
    noise = np.random.default_rng(1).normal(0, spread, (8, 4096))
    noise -= noise.mean()
    found = difference_bins(noise + mean, 0)
    assert verdict_of(found) == verdict
    for each in found:
        inside = -each.margin < each.low and each.high < each.margin
        assert (each.verdict == "same") == inside
        assert each.low <= each.difference <= each.high


def test_a_fault_that_begins_in_the_middle_is_not_diluted():
    differences = np.zeros((3, 8191))
    differences[:, 4096:4352] = np.random.default_rng(2).normal(0.05, 0.1, (3, 256))
    differences[:, 4352:] = np.random.default_rng(3).normal(0.0, 0.02, (3, 8191 - 4352))
    found = difference_bins(differences, 4096)
    assert [each.verdict for each in found] == ["worse", "same", "same", "same"]


@pytest.mark.slow
@pytest.mark.parametrize("documents", [2, 4, 8])
def test_no_difference_is_rarely_called_one(documents):
    """Skewed tokens whose neighbours depend on one another: wrong in at most 5% a side."""
    rng, wrong = np.random.default_rng(4), {"worse": 0, "better": 0}
    runs = 1000
    for _ in range(runs):
        steps = rng.gamma(1.0, 1.0, (documents, 2048 + 15)) - 1
        smooth = np.apply_along_axis(np.convolve, 1, steps, np.ones(16) / 16, "valid")
        verdict = verdict_of(difference_bins(smooth, 0))
        wrong[verdict] = wrong.get(verdict, 0) + 1
    assert wrong["worse"] <= 0.05 * runs
    assert wrong["better"] <= 0.05 * runs


@pytest.mark.parametrize(
    ("mean", "half", "margin", "times"),
    [
        (0.02, 0.04, 0.01, 4.0),  # until the interval excludes zero
        (0.002, 0.016, 0.01, 4.0),  # until it lies within the margin
        (0.0, 0.1, 0.0, math.inf),
    ],
)
def test_how_many_times_the_texts_would_decide(mean, half, margin, times):
    of_bin = Bin(0, 64, mean, mean - half, mean + half, margin)
    assert of_bin.more() == pytest.approx(times)
