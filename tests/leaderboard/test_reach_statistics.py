"""The reach and its interval: against a reckoning by hand, and on samples with a known reach."""

import itertools

import numpy as np
import pytest
from scipy import stats

from leval_leaderboard.statistics.reach import (
    MARGIN,
    Reach,
    one_sided,
    reach_by,
    reach_of,
    steps_of,
)

LENGTHS = (1024, 2048, 4096, 8192, 12288)


def losses(steps, texts, spread=0.02, seed=0, tokens=512):
    """Nats `[K + 1, G]` of texts whose steps have these true means."""
    rng = np.random.default_rng(seed)
    start = rng.normal(2.5, 0.5, texts)
    change = rng.normal(steps, spread, (texts, len(steps))).T
    return tokens * np.vstack([start, start + np.cumsum(change, axis=0)]), np.full(texts, tokens)


def test_steps_are_paired_by_text():
    nats, tokens = losses((-0.1, 0.2, 0.0, 1.0), 6)
    for at, step in enumerate(steps_of(nats, tokens, LENGTHS)):
        test = stats.ttest_rel(nats[at + 1] / 512, nats[at] / 512)
        low, high = test.confidence_interval()
        assert (step.shorter, step.longer) == LENGTHS[at : at + 2]
        assert step.difference == pytest.approx((nats[at + 1] - nats[at]).mean() / 512)
        assert (step.low, step.high) == pytest.approx((low, high))


def test_p_are_those_of_the_t_test_and_larger_where_texts_are_skewed():
    nats, tokens = losses((0.02, 0.0, 0.01, 0.05), 7, seed=3)
    steps = np.diff(nats, axis=0)
    steps[1] = 512 * 0.01  # symmetric: nothing to correct
    steps[1, :6] += np.array([-3, 3, -2, 2, -1, 1])
    below, above = one_sided(steps, tokens, MARGIN)
    for at, step in enumerate(steps):
        for p, side in ((below[at], "less"), (above[at], "greater")):
            plain = stats.ttest_1samp(step / 512, MARGIN, alternative=side).pvalue
            assert p >= plain - 1e-12
            if at == 1:
                assert p == pytest.approx(plain)
    assert (
        below > stats.ttest_1samp(steps.T / 512, MARGIN, alternative="less").pvalue + 1e-6
    ).any()


@pytest.mark.parametrize(
    ("p", "low", "high", "text"),
    [
        ((0.001, 0.001, 0.001, 0.001), 12288, 12288, "at least 12288"),
        ((0.001, 0.001, 0.001, 0.9999), 8192, 8192, "8192, not 12288"),
        ((0.001, 0.001, 0.2, 0.9999), 4096, 8192, "at least 4096"),
        ((0.001, 0.001, 0.2, 0.8), 4096, 12288, "at least 4096"),
        ((0.9999, 0.001, 0.001, 0.001), 1024, 1024, "1024, not 2048"),
        ((0.2, 0.001, 0.001, 0.001), None, 12288, "cannot tell"),
        ((0.2, 0.001, 0.001, 0.9999), None, 8192, "cannot tell"),
        ((0.001, 0.98, 0.001, 0.001), 2048, 12288, "at least 2048"),  # 0.02 > 0.025 / 4
    ],
)
def test_what_is_said_of_a_reach(p, low, high, text):
    reach = reach_by(p, [1 - each for each in p], LENGTHS)
    assert (reach.low, reach.high, reach.longest) == (low, high, 12288)
    assert reach.text == text


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
