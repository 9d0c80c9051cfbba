"""The sequential equivalence test, on differences whose truth is known."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from leval_tasks.statistics.equivalence import (
    LEVEL,
    MARGIN,
    bin_edges,
    equivalence,
    looks_at,
)
from leval_tasks.statistics.skewed_t import SkewedMean

LENGTH = 1024
EDGES = bin_edges(LENGTH)


def differences(shift, texts=8, noise=0.05, own=0.001, seed=0):
    """Token differences `[texts, LENGTH - 1]` whose mean at a position is `shift(position)`."""
    rng = np.random.default_rng(seed)
    position = np.arange(1, LENGTH)
    peculiar = own * rng.normal(size=(texts, 1))
    return shift(position) + peculiar + noise * rng.normal(size=(texts, position.size))


def test_bins_double_in_length():
    assert bin_edges(4096) == [0, 512, 1024, 2048, 4096]
    assert bin_edges(32768) == [0, 512, 1024, 2048, 4096, 8192, 16384, 32768]
    assert bin_edges(128) == [0, 32, 64, 128]


@given(st.integers(8, 200_000))
def test_bins_ascend_from_zero_to_the_length(length):
    edges = bin_edges(length)
    assert edges[0] == 0
    assert edges[-1] == length
    assert all(a < b for a, b in itertools.pairwise(edges))
    assert len(edges) >= 3


def test_a_text_too_short_for_bins_is_refused():
    with pytest.raises(ValueError, match="length: 7 tokens; allowed: at least 8"):
        bin_edges(7)


def test_looks_double_up_to_all_texts():
    assert [each.texts for each in looks_at(16)] == [4, 8, 16]
    assert [each.texts for each in looks_at(11)] == [4, 8, 11]
    assert [each.texts for each in looks_at(3)] == [3]
    assert [each.last for each in looks_at(16)] == [False, False, True]
    assert [each.share for each in looks_at(16)] == [1 / 16, 3 / 16, 12 / 16]
    assert [each.share for each in looks_at(11)] == pytest.approx([16 / 121, 48 / 121, 57 / 121])


@given(st.integers(0, 10_000), st.sampled_from([3, 4, 8]), st.sampled_from([0.2, 0.05, 0.01]))
def test_the_lower_bound_is_where_the_one_sided_test_begins_to_decide(seed, units, level):
    sums = np.random.default_rng(seed).gumbel(size=units) * 10
    tokens = np.full(units, 100.0)
    mean = SkewedMean.of(sums, tokens)
    bound = mean.lower_bound(level)
    above = [float(mean.one_sided(bound + step)[1]) for step in (-1e-6, 1e-6)]
    assert above[0] < level < above[1]


@pytest.mark.parametrize(("shift", "low", "high"), [(0.0, 4, 4), (0.03, 1, 4), (-0.03, 4, 1)])
def test_bounds_of_three_texts_are_those_of_the_paired_t_test(shift, low, high):
    """A quarter of the level on each side; all of it where the whole and three bins are shifted."""
    d = differences(lambda p: shift + 0 * p, texts=3, own=0.01)
    found = equivalence(d, EDGES, share=1.0).whole
    test = stats.ttest_1samp(d.mean(axis=1), 0.0)
    ends = [test.confidence_interval(1 - 2 * LEVEL / parts) for parts in (low, high)]
    assert (found.low, found.high) == pytest.approx((ends[0].low, ends[1].high))
    ends = test.confidence_interval(1 - 2 * LEVEL)
    assert (found.same_low, found.same_high) == pytest.approx((ends.low, ends.high))


def test_parts_step_up_as_hochberg_does():
    """Shown are the parts whose adjusted p value is below the level, by its own definition."""
    rng = np.random.default_rng(0)
    counts = []
    for _ in range(200):
        d = rng.normal(rng.uniform(0, 4, (1, 4)), 1, (3, 4)).repeat(LENGTH // 4, axis=1)[:, 1:]
        found = equivalence(d, EDGES)
        cuts = [(0, LENGTH), *itertools.pairwise(EDGES)]
        means = [d[:, max(start - 1, 0) : end - 1].mean(axis=1) for start, end in cuts]
        p = np.array([stats.ttest_1samp(each, 0, alternative="greater").pvalue for each in means])
        descending = np.argsort(-p)
        adjusted = np.empty(len(p))
        adjusted[descending] = np.minimum.accumulate(p[descending] * np.arange(1, len(p) + 1))
        shown = [each.low > 0 for each in (found.whole, *found.bins)]
        assert shown == (adjusted < LEVEL).tolist()
        counts.append(sum(shown))
    assert set(counts) == {0, 1, 2, 3, 4}


def test_what_bonferroni_shows_is_shown():
    """The step-up procedure never takes a bound that a fixed division of the level gives."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        d = rng.normal(rng.uniform(0, 2), 1, (4, LENGTH - 1))
        d += rng.gumbel(size=(4, 1))
        found = equivalence(d, EDGES)
        for part in (found.whole, *found.bins):
            of_part = d[:, max(part.start - 1, 0) : part.end - 1].mean(axis=1)
            assert part.low >= SkewedMean.of(of_part, np.ones(4)).lower_bound(LEVEL / 4) - 1e-12


def test_looks_bins_and_lengths_widen_the_interval_of_worse_and_only_looks_that_of_same():
    d = differences(lambda p: 0.0 * p)
    one, looks, lengths = (
        equivalence(d, EDGES, **more) for more in ({}, {"share": 1 / 3}, {"lengths": 3})
    )
    widths = [each.whole.high - each.whole.low for each in (one, looks, lengths)]
    assert widths[0] < widths[1] == widths[2]
    widths = [each.whole.same_high - each.whole.same_low for each in (one, looks, lengths)]
    assert widths[0] == widths[2] < widths[1]


def test_no_difference_is_the_same_and_equal_losses_are_so_at_once():
    found = equivalence(differences(lambda p: 0 * p), EDGES, share=1 / 3)
    assert found.verdict == "same"
    assert not found.measurable
    exact = equivalence(np.zeros((3, LENGTH - 1)), EDGES, share=1 / 3)
    assert (exact.verdict, exact.whole.low, exact.whole.high) == ("same", 0.0, 0.0)


def test_a_shown_difference_within_the_margin_is_the_same_measurably_worse():
    found = equivalence(differences(lambda p: 0.004 + 0 * p, noise=0.01), EDGES)
    assert found.verdict == "same"
    assert found.measurable
    assert found.whole.low > 0


@pytest.mark.parametrize(("sign", "verdict"), [(1, "worse"), (-1, "better")])
def test_a_shift_everywhere_begins_at_the_start(sign, verdict):
    found = equivalence(sign * differences(lambda p: 0.05 + 0 * p), EDGES)
    assert (found.verdict, found.onset) == (verdict, 0)
    assert sign * found.whole.difference == pytest.approx(0.05, abs=0.005)


@pytest.mark.parametrize("start", [100, 256, 400, 700, 900])
def test_the_onset_is_named_to_a_few_tokens(start):
    found = equivalence(differences(lambda p: 0.2 * (p >= start)), EDGES)
    assert found.verdict == "worse"
    assert abs(found.onset - start) <= 8


def test_a_shift_everywhere_that_only_the_longest_bin_shows_begins_at_the_start():
    """Texts that differ by much at few positions hide it in the short bins."""
    noise = np.random.default_rng(0).normal(size=(4, LENGTH - 1))
    d = 0.35 + 0.2 * np.sign(noise) * np.repeat([[1], [-1], [1.1], [-1.1]], LENGTH - 1, axis=1)
    d[:, :511] += np.array([[0.3], [-0.3], [0.25], [-0.25]])
    found = equivalence(d, EDGES)
    assert [each.low > 0 for each in found.bins] == [False, False, True]
    assert (found.verdict, found.onset) == ("worse", 0)


def test_a_small_shift_before_the_damage_does_not_end_the_search():
    """It is shown in the first bin, which does not hold the position where the damage begins."""
    found = equivalence(differences(lambda p: np.where(p >= 600, 0.3, 0.02)), EDGES)
    assert [each.low > 0 for each in found.bins] == [True, True, True]
    assert abs(found.onset - 600) <= 8


def test_damage_of_the_last_bin_is_not_hidden_by_the_others():
    """Over all positions it stays within the margin; a part better elsewhere does not cancel it."""
    late = equivalence(differences(lambda p: 0.015 * (p >= 512), noise=0.01), EDGES)
    assert late.whole.within(MARGIN)
    assert late.verdict == "worse"
    mixed = equivalence(differences(lambda p: np.where(p >= 512, 0.1, -0.1)), EDGES)
    assert mixed.verdict == "worse"
    assert mixed.onset == pytest.approx(512, abs=8)


def test_a_small_shown_difference_waits_for_the_last_look():
    d = np.full((4, LENGTH - 1), 0.006)
    d[:, :255] += np.array([[0.012], [-0.012], [0.011], [-0.011]])  # so that bin 1 is not shown
    early, late = (equivalence(d, EDGES, share=1 / 2, last=last) for last in (False, True))
    assert early.verdict == "undecided"
    assert late.verdict == "worse"
    assert early.more_texts is not None
    early, late = (equivalence(-d, EDGES, share=1 / 2, last=last) for last in (False, True))
    assert (early.verdict, late.verdict) == ("undecided", "better")


def test_wide_spread_is_undecided_and_the_estimate_of_texts_decides():
    d = differences(lambda p: 0 * p, texts=4, own=0.02, noise=0.0, seed=1)
    found = equivalence(d, EDGES)
    assert found.verdict == "undecided"
    more = differences(lambda p: 0 * p, texts=4 + 2 * found.more_texts, own=0.02, noise=0.0, seed=1)
    assert equivalence(more, EDGES).verdict == "same"


@pytest.mark.parametrize(
    ("mean", "room", "level"), [(0.0, MARGIN, LEVEL), (0.02, 0.02, LEVEL / len(EDGES))]
)
def test_further_texts_are_those_of_a_normal_test_with_this_spread(mean, room, level):
    """Texts without noise, so that all parts agree: to show "same", or a shift past the margin."""
    d = np.outer(mean + np.array([0.05, -0.05, 0.05, -0.05]), np.ones(LENGTH - 1))
    spread = 0.05 * math.sqrt(4 / 3)
    needed = (stats.norm.isf(level) * spread / room) ** 2 + 2
    found = equivalence(d, EDGES)
    assert found.verdict == "undecided"
    assert found.more_texts == math.ceil(needed) - 4


def test_too_few_texts_and_numbers_that_are_not_finite_are_refused():
    for d in (np.zeros((2, LENGTH - 1)), np.full((4, LENGTH - 1), np.nan)):
        with pytest.raises(ValueError, match="at least 3 texts and finite numbers"):
            equivalence(d, EDGES)
