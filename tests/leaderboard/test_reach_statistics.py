"""The reach and its interval: against a reckoning by hand, and on samples with a known reach."""

import itertools

import numpy as np
import pytest
from scipy import stats

from leval_harness.analysis.reach import reach_text
from leval_tasks.statistics.reach import Reach, reach_by, reach_of, steps_of
from leval_tasks.statistics.skewed_t import MARGIN, one_sided

LENGTHS = (1024, 2048, 4096, 8192, 12288)


def losses(steps, texts, spread=0.02, seed=0, tokens=512):
    """Nats `[K + 1, G]` of texts whose steps have these true means."""
    rng = np.random.default_rng(seed)
    start = rng.normal(2.5, 0.5, texts)
    change = rng.normal(steps, spread, (texts, len(steps))).T
    return tokens * np.vstack([start, start + np.cumsum(change, axis=0)]), np.full(texts, tokens)


def test_steps_are_paired_by_text():
    nats, tokens = losses((-0.1, 0.2, 0.0, 1.0), 6)
    centre = nats.mean(axis=1, keepdims=True)
    nats = np.hstack([nats, 2 * centre - nats])  # symmetric: no skewness to correct
    tokens = np.full(12, 512)
    for at, step in enumerate(steps_of(nats, tokens, LENGTHS)):
        test = stats.ttest_rel(nats[at + 1] / 512, nats[at] / 512)
        low, high = test.confidence_interval(0.99).low, test.confidence_interval(0.98).high
        assert (step.shorter, step.longer) == LENGTHS[at : at + 2]
        assert step.difference == pytest.approx((nats[at + 1] - nats[at]).mean() / 512)
        assert (step.low, step.high) == pytest.approx((low, high))


@pytest.mark.parametrize("texts", [3, 5, 8, 30])
def test_a_steps_interval_ends_where_its_tests_begin_to_tell(texts):
    """So that a chart's band and the line above it never say two things."""
    skewed = np.random.default_rng(texts).exponential(size=(3, texts))
    symmetric = np.linspace(-1, 1, texts)
    nats = 100 * np.cumsum([np.ones(texts), *skewed, -skewed[0], symmetric], axis=0)
    tokens = np.full(texts, 512)
    for at, step in enumerate(steps_of(nats, tokens, range(1, 7))):
        change = (nats[at + 1] - nats[at])[None]
        assert one_sided(change, tokens, step.high)[0][0] == pytest.approx(0.01, abs=1e-6)
        assert one_sided(change, tokens, step.low)[1][0] == pytest.approx(0.005, abs=1e-6)


def test_p_are_those_of_the_t_test_corrected_for_skewness():
    nats, tokens = losses((0.02, 0.0, 0.01, 0.05), 7, seed=3)
    steps = np.diff(nats, axis=0)
    steps[1] = 512 * 0.01  # symmetric: nothing to correct
    steps[1, :6] += np.array([-3, 3, -2, 2, -1, 1])
    below, above = one_sided(steps, tokens, MARGIN)
    for at, step in enumerate(steps):
        less, greater = (
            stats.ttest_1samp(step / 512, MARGIN, alternative=side).pvalue
            for side in ("less", "greater")
        )
        # Hall's transformation brings t's tail back to that of the longer tail of the texts.
        long_to_losses = stats.skew(step) > 0
        assert above[at] >= greater - 1e-12
        if at == 1:
            assert (below[at], above[at]) == pytest.approx((less, greater))
        else:
            assert (below[at] > less) == long_to_losses


def test_one_text_that_gains_much_does_not_hide_that_all_gained():
    """Gains of a small model's eight texts from 2K to 4K: the plain t has p = 0.03."""
    gains = np.array([0.014, 0.289, 0.051, 0.053, 0.012, 0.026, 0.026, 0.039])
    tokens = np.full(8, 512)
    plain = stats.ttest_1samp(-gains, MARGIN, alternative="less").pvalue
    below, _ = one_sided(-gains[None] * tokens, tokens, MARGIN)
    assert below[0] < 0.005 < 0.025 < plain
    mirrored = 2 * MARGIN + gains  # as far above the threshold as the others lie below
    _, above = one_sided(mirrored[None] * tokens, tokens, MARGIN)
    assert above[0] == pytest.approx(plain)


def test_three_texts_that_all_break_are_told():
    """Losses of a small model 4,096 tokens past what it was trained on; Hall's p is 0.06."""
    nats = 512 * np.array([[2.512, 2.152, 2.252], [3.774, 3.897, 3.931]])
    assert stats.ttest_rel(nats[1], nats[0] + 512 * MARGIN, alternative="greater").pvalue < 0.005
    assert reach_text(reach_of(nats, np.full(3, 512), (2048, 12288))) == "2K, not 12K"


@pytest.mark.parametrize(
    ("p", "low", "high", "text"),
    [
        ((0.001, 0.001, 0.001, 0.001), 12288, 12288, "at least 12K"),
        ((0.001, 0.001, 0.001, 0.9999), 8192, 8192, "8K, not 12K"),
        ((0.001, 0.001, 0.2, 0.9999), 4096, 8192, "at least 4K"),
        ((0.001, 0.001, 0.2, 0.8), 4096, 12288, "at least 4K"),
        ((0.9999, 0.001, 0.001, 0.001), 1024, 1024, "1K, not 2K"),
        ((0.2, 0.001, 0.001, 0.001), None, 12288, "cannot tell"),
        ((0.2, 0.001, 0.001, 0.9999), None, 8192, "cannot tell"),
        ((0.001, 0.98, 0.001, 0.001), 2048, 12288, "at least 2K"),  # 0.02 > 0.025 / 4
    ],
)
def test_what_is_said_of_a_reach(p, low, high, text):
    reach = reach_by(p, [1 - each for each in p], LENGTHS)
    assert (reach.low, reach.high, reach.longest) == (low, high, 12288)
    assert reach_text(reach) == text


def test_too_few_texts_tell_nothing():
    for texts in (1, 2):
        nats, tokens = losses((-0.1, -0.1, 0.0, 2.0), texts)
        assert reach_of(nats, tokens, LENGTHS) == Reach(None, 12288, 12288)
        assert all(step.low is None for step in steps_of(nats, tokens, LENGTHS))


def test_fewer_texts_do_not_lengthen_what_is_shown():
    """On the average over samples; the true reach is 8,192."""
    means = []
    for texts in (3, 6, 12, 24):
        found = [
            reach_of(*losses((-0.05, -0.02, 0.0, 0.1), texts, seed=seed), LENGTHS)
            for seed in range(200)
        ]
        assert np.mean([reach.high < 8192 for reach in found]) <= 0.05
        assert np.mean([(reach.low or 0) > 8192 for reach in found]) <= 0.05
        means.append(np.mean([reach.low or 1024 for reach in found]))
    assert all(a <= b for a, b in itertools.pairwise(means))
    assert means[-1] > 6000


@pytest.mark.parametrize("few", ["lose", "gain"])
@pytest.mark.parametrize("texts", [3, 8])
def test_a_few_texts_that_are_unlike_the_others_do_not_move_a_reach(texts, few):
    """Those that were drawn often hold none of the few, and then they seem to agree.

    Where a few lose much every step is at the margin, where a few gain much just below it.
    """
    rng, side = np.random.default_rng(5), 1 if few == "lose" else -1
    tokens = np.full(texts, 512)
    true = MARGIN if few == "lose" else MARGIN - 0.0001
    missed = 0
    for _ in range(1500):
        steps = true + side * 0.2 * (rng.exponential(size=(4, texts)) - 1)
        nats = 512 * np.cumsum(np.vstack([np.full(texts, 3.0), steps]), axis=0)
        found = reach_of(nats, tokens, LENGTHS)
        missed += found.low is not None if few == "lose" else found.high < LENGTHS[-1]
    assert missed <= 1500 * 0.06
