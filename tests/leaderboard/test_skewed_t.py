"""One-sided t tests of a mean over few, skewed units: against scipy, and on samples."""

import numpy as np
import pytest
from scipy import stats

from leval_tasks.statistics.skewed_t import (
    MARGIN,
    REFUSED_AT,
    SHOWN_AT,
    deciding_thresholds,
    one_sided,
)


def test_of_symmetric_units_the_thresholds_are_students():
    half = np.random.default_rng(0).normal(0.02, 0.02, 6)
    means = np.concatenate([half, 2 * half.mean() - half])
    low, high = deciding_thresholds(512 * means, np.full(12, 512))
    test = stats.ttest_1samp(means, 0)
    expected = test.confidence_interval(0.99).low, test.confidence_interval(0.98).high
    assert (low, high) == pytest.approx(expected)


@pytest.mark.parametrize("texts", [3, 5, 8, 30])
def test_the_thresholds_are_where_the_tests_begin_to_decide(texts):
    """So that a chart's band and the line above it never say two things."""
    skewed = np.random.default_rng(texts).exponential(size=(3, texts))
    tokens = np.full(texts, 512)
    for means in (*skewed, -skewed[0], np.linspace(-1, 1, texts)):
        low, high = deciding_thresholds(100 * means, tokens)
        assert one_sided(100 * means, tokens, high)[0] == pytest.approx(SHOWN_AT, abs=1e-6)
        assert one_sided(100 * means, tokens, low)[1] == pytest.approx(REFUSED_AT, abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_p_are_those_of_the_t_test_corrected_for_skewness(seed):
    means = np.random.default_rng(seed).normal(0.02, 0.02, 7)
    below, above = one_sided(512 * means, np.full(7, 512), MARGIN)
    less, greater = (
        stats.ttest_1samp(means, MARGIN, alternative=side).pvalue for side in ("less", "greater")
    )
    # Hall's transformation brings t's tail back to that of the longer tail of the units.
    assert above >= greater - 1e-12
    assert (below > less) == (stats.skew(means) > 0)


def test_one_text_that_gains_much_does_not_hide_that_all_gained():
    """Gains of a small model's eight texts from 2K to 4K: the plain t has p = 0.03."""
    gains = np.array([0.014, 0.289, 0.051, 0.053, 0.012, 0.026, 0.026, 0.039])
    tokens = np.full(8, 512)
    plain = stats.ttest_1samp(-gains, MARGIN, alternative="less").pvalue
    below, _ = one_sided(-gains * tokens, tokens, MARGIN)
    assert below < 0.005 < 0.025 < plain
    mirrored = 2 * MARGIN + gains  # as far above the threshold as the others lie below
    _, above = one_sided(mirrored * tokens, tokens, MARGIN)
    assert above == pytest.approx(plain)


def test_three_texts_that_all_break_are_told():
    """Losses of a small model 4,096 tokens past what it was trained on; Hall's p is 0.06."""
    lost = 512 * (np.array([3.774, 3.897, 3.931]) - np.array([2.512, 2.152, 2.252]))
    assert stats.ttest_1samp(lost, 512 * MARGIN, alternative="greater").pvalue < REFUSED_AT
    assert one_sided(lost, np.full(3, 512), MARGIN)[1] < REFUSED_AT


@pytest.mark.parametrize("texts", [1, 2])
def test_too_few_units_decide_nothing(texts):
    lost, tokens = np.full(texts, 512.0), np.full(texts, 512)
    assert one_sided(lost, tokens, MARGIN) == (0.5, 0.5)
    assert deciding_thresholds(lost, tokens) == (None, None)


@pytest.mark.parametrize("few", ["lose", "gain"])
@pytest.mark.parametrize("texts", [3, 8])
def test_a_few_units_that_are_unlike_the_others_seldom_decide_wrongly(texts, few):
    """Those that were drawn often hold none of the few, and then they seem to agree."""
    side = 1 if few == "lose" else -1
    unlike = 0.2 * (np.random.default_rng(5).exponential(size=(6000, texts)) - 1)
    sums = 512 * (MARGIN + side * unlike)
    below, above = one_sided(sums, np.full(texts, 512), MARGIN)
    wrong = below <= SHOWN_AT if few == "lose" else above <= REFUSED_AT
    assert wrong.mean() <= 0.06
