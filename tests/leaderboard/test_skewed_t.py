"""One-sided t tests of a mean over few, skewed units: against scipy, and on samples."""

import numpy as np
import pytest
from scipy import stats

from leval_tasks.statistics.skewed_t import (
    MARGIN,
    REFUSED_AT,
    SHOWN_AT,
    SkewedMean,
)


def test_of_symmetric_units_the_thresholds_are_students():
    half = np.random.default_rng(0).normal(0.02, 0.02, 6)
    means = np.concatenate([half, 2 * half.mean() - half])
    low, high = SkewedMean.of(512 * means, np.full(12, 512)).deciding_thresholds()
    test = stats.ttest_1samp(means, 0)
    expected = test.confidence_interval(0.99).low, test.confidence_interval(0.98).high
    assert (low, high) == pytest.approx(expected)


@pytest.mark.parametrize("texts", [3, 5, 8, 30])
def test_the_thresholds_are_where_the_tests_begin_to_decide(texts):
    """So that a chart's band and the line above it never say two things."""
    skewed = np.random.default_rng(texts).exponential(size=(3, texts))
    tokens = np.full(texts, 512)
    for means in (*skewed, -skewed[0], np.linspace(-1, 1, texts)):
        mean = SkewedMean.of(100 * means, tokens)
        low, high = mean.deciding_thresholds()
        assert mean.one_sided(high)[0] == pytest.approx(SHOWN_AT, abs=1e-6)
        assert mean.one_sided(low)[1] == pytest.approx(REFUSED_AT, abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_p_are_those_of_the_t_test_corrected_for_skewness(seed):
    means = np.random.default_rng(seed).normal(0.02, 0.02, 7)
    below, above = SkewedMean.of(512 * means, np.full(7, 512)).one_sided(MARGIN)
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
    below, _ = SkewedMean.of(-gains * tokens, tokens).one_sided(MARGIN)
    assert below < 0.005 < 0.025 < plain
    mirrored = 2 * MARGIN + gains  # as far above the threshold as the others lie below
    _, above = SkewedMean.of(mirrored * tokens, tokens).one_sided(MARGIN)
    assert above == pytest.approx(plain)


def test_three_texts_that_all_break_are_told():
    """Losses of a small model 4,096 tokens past what it was trained on; Hall's p is 0.06."""
    lost = 512 * (np.array([3.774, 3.897, 3.931]) - np.array([2.512, 2.152, 2.252]))
    assert stats.ttest_1samp(lost, 512 * MARGIN, alternative="greater").pvalue < REFUSED_AT
    assert SkewedMean.of(lost, np.full(3, 512)).one_sided(MARGIN)[1] < REFUSED_AT


@pytest.mark.parametrize("texts", [1, 2])
def test_too_few_units_decide_nothing(texts):
    lost, tokens = np.full(texts, 512.0), np.full(texts, 512)
    assert SkewedMean.of(lost, tokens).one_sided(MARGIN) == (0.5, 0.5)
    assert SkewedMean.of(lost, tokens).deciding_thresholds() == (None, None)


@pytest.mark.parametrize("few", ["lose", "gain"])
@pytest.mark.parametrize("texts", [3, 8])
def test_a_few_units_that_are_unlike_the_others_seldom_decide_wrongly(texts, few):
    """Those that were drawn often hold none of the few, and then they seem to agree."""
    side = 1 if few == "lose" else -1
    unlike = 0.2 * (np.random.default_rng(5).exponential(size=(6000, texts)) - 1)
    sums = 512 * (MARGIN + side * unlike)
    below, above = SkewedMean.of(sums, np.full(texts, 512)).one_sided(MARGIN)
    wrong = below <= SHOWN_AT if few == "lose" else above <= REFUSED_AT
    assert wrong.mean() <= 0.06
