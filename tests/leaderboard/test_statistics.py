"""Statistics against independent references: brute force, matrices, scipy, and simulation."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import linalg, stats
from scripts import script

from leval_tasks.statistics.clustered import (
    clopper_pearson,
    estimate_mean,
    estimate_ratio,
    linearised_ratio,
    sums_by_cluster,
)
from leval_tasks.statistics.paired import (
    FLIPS,
    compare_perplexities,
    compare_scores,
    holm,
    mcnemar_exact,
    sign_flip_p,
    smallest_p,
)


def bell_mccaffrey(values, clusters):
    """CR2 and its degrees of freedom by the textbook's matrices (Bell and McCaffrey 2002)."""
    n = len(values)
    residuals = values - values.mean()
    hat = np.full((n, n), 1 / n)
    vectors, meat = [], 0.0
    for cluster in np.unique(clusters):
        member = clusters == cluster
        adjust = linalg.sqrtm(np.linalg.inv(np.eye(member.sum()) - hat[np.ix_(member, member)]))
        adjust = np.real(adjust)
        meat += (adjust @ residuals[member]).sum() ** 2
        selection = (np.eye(n) - hat)[member]
        vectors.append(selection.T @ adjust @ np.ones(member.sum()) / n)
    gram = np.array([[a @ b for b in vectors] for a in vectors])
    return math.sqrt(meat) / n, np.trace(gram) ** 2 / np.trace(gram @ gram)


@pytest.mark.parametrize("sizes", [(5, 5, 5), (2, 9, 4, 7), (1, 3, 12, 2, 6, 6, 5)])
def test_clustered_error_is_bell_and_mccaffreys(sizes):
    rng = np.random.default_rng(len(sizes))
    clusters = np.repeat(np.arange(len(sizes)), sizes)
    values = rng.random(clusters.size)
    found = estimate_mean(values, clusters)
    stderr, df = bell_mccaffrey(values, clusters)
    assert found.stderr == pytest.approx(stderr)
    totals = sums_by_cluster(clusters, values, np.ones(values.size))[1:]
    assert linearised_ratio(*totals)[2] == pytest.approx(df)
    # on the logit scale, by the delta method
    logit = np.log(found.value / (1 - found.value))
    half = stats.t.ppf(0.975, df) * stderr / (found.value * (1 - found.value))
    ends = [1 / (1 + np.exp(-end)) for end in (logit - half, logit + half)]
    assert (found.low, found.high) == pytest.approx(tuple(ends))
    wide = estimate_mean(10 * values, clusters)  # no shares: symmetric
    expected = stats.t.ppf(0.975, df) * 10 * stderr
    assert (wide.high - wide.value, wide.value - wide.low) == pytest.approx((expected, expected))


def test_equal_clusters_give_the_standard_error_of_their_means_and_g_minus_1():
    values = np.array([1.0, 0, 1, 1, 0, 0, 1, 0, 0, 1, 1, 1])
    found = estimate_mean(values, np.repeat(np.arange(4), 3))
    means = values.reshape(4, 3).mean(axis=1)
    assert found.stderr == pytest.approx(means.std(ddof=1) / 2)
    assert linearised_ratio(3 * means, np.full(4, 3.0))[2] == pytest.approx(3)


def test_single_questions_get_the_exact_interval():
    values = np.array([1.0] * 3 + [0.0] * 87)
    found = estimate_mean(values, np.arange(90))
    exact = stats.binomtest(3, 90).proportion_ci(0.95, method="exact")
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high))
    assert found.method == "exact"


def test_all_wrong_is_not_certainty():
    found = estimate_mean(np.zeros(64), np.repeat(np.arange(8), 8))
    assert found.low == 0
    assert found.high == pytest.approx(1 - 0.025 ** (1 / 8))


ALIKE = {
    "two questions": ([0.2] * 2, [0, 1]),
    "twenty questions, which rounding tells apart": ([0.1] * 20, range(20)),
    "one right of four in each document": ([1, 0, 0, 0] * 3, np.repeat(range(3), 4)),
    "marks beyond 1": ([7.3] * 6, [0, 0, 1, 1, 2, 2]),
}


@pytest.mark.parametrize("what", ALIKE)
def test_documents_that_score_alike_are_not_certainty(what):
    values, clusters = (np.array(each) for each in ALIKE[what])
    scores = values.astype(float)
    found = estimate_mean(scores, clusters)
    assert (found.value, found.method) == (pytest.approx(scores.mean()), "none")
    assert found.stderr is found.low is found.high is None
    for shift in (0.0, 0.4):
        told = compare_scores(scores + shift, scores, clusters)
        assert told.difference == pytest.approx(shift)
        assert told.low is told.high is told.detectable is None
        assert not told.beside_zero
    sizes = np.arange(5.0, 11.0)
    ratio = estimate_ratio(0.3 * sizes, sizes)
    assert ratio.value == pytest.approx(np.exp(0.3))
    assert ratio.stderr is ratio.low is ratio.high is None
    nats = compare_perplexities(2.3 * sizes, 2.0 * sizes, sizes)
    assert nats.low is nats.high is nats.detectable is None


def test_one_document_gives_no_interval():
    found = estimate_mean(np.array([1.0, 0, 1]), np.zeros(3, dtype=int))
    assert found.value == pytest.approx(2 / 3)
    assert (found.stderr, found.low, found.high) == (None, None, None)


def test_two_documents_that_differ_have_a_wide_interval():
    found = estimate_mean(np.array([1.0, 0, 0, 1, 1, 0.5]), np.array([0, 0, 0, 1, 1, 1]))
    assert (found.clusters, found.method) == (2, "clustered")
    assert found.high - found.low > 0.9


@pytest.mark.parametrize("values", [[], [0.5, math.nan], [math.inf]])
def test_values_that_are_no_scores_are_refused(values):
    with pytest.raises(ValueError, match="values"):
        estimate_mean(np.array(values), np.arange(len(values)))


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_clopper_pearson_is_scipys(counts):
    k, n = counts
    exact = stats.binomtest(k, n).proportion_ci(0.95, method="exact")
    assert clopper_pearson(k, n) == pytest.approx((exact.low, exact.high))


@given(st.integers(0, 40), st.integers(0, 40))
def test_mcnemar_is_a_binomial_test(wins, losses):
    expected = stats.binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
    assert float(mcnemar_exact(wins, losses)) == pytest.approx(expected)


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=9))
def test_sign_flip_counts_every_pattern(differences):
    d = np.array(differences, dtype=float)
    sums = [abs(np.dot(s, d)) for s in itertools.product((1, -1), repeat=len(d))]
    expected = np.mean([s >= abs(d.sum()) - 1e-9 for s in sums])
    assert float(sign_flip_p(d)) == pytest.approx(expected)


def test_sign_flip_is_vectorised_and_repeats_from_its_seed():
    d = np.random.default_rng(0).normal(size=(4, 3, 25))
    whole = sign_flip_p(d)
    assert whole.shape == (4, 3)
    assert whole[2, 1] == sign_flip_p(d[2, 1])
    assert (whole > 0).all()


def test_random_flips_agree_with_all_flips():
    d = np.random.default_rng(3).normal(0.3, 1, 19)
    padded = np.concatenate([d, [0.0]])  # a document without a difference changes nothing
    assert float(sign_flip_p(padded)) == pytest.approx(float(sign_flip_p(d)), abs=0.02)


def test_no_document_is_no_evidence():
    assert sign_flip_p(np.empty((3, 0))).tolist() == [1.0, 1.0, 1.0]
    assert float(sign_flip_p(np.empty(0))) == 1.0


def test_random_flips_count_the_observed_signs_among_them():
    assert float(sign_flip_p(np.ones(60))) == 1 / (1 + FLIPS)


@pytest.mark.parametrize(("groups", "expected"), [(1, 1.0), (5, 1 / 16), (7, 1 / 64), (15, 2**-14)])
def test_smallest_p_is_reached_by_unanimous_documents(groups, expected):
    assert smallest_p(groups) == expected
    assert float(sign_flip_p(np.ones(groups))) == expected


def test_holm_example():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    with_gap = holm([0.04, math.nan, 0.02])
    assert with_gap[[0, 2]] == pytest.approx([0.04, 0.04])
    assert math.isnan(with_gap[1])


def test_comparison_counts_and_picks_mcnemar_for_single_questions():
    method = np.array([1.0, 1, 1, 1, 1, 1, 0, 0])
    baseline = np.array([0.0, 0, 0, 0, 0, 0, 0, 1])
    found = compare_scores(method, baseline, np.arange(8))
    assert (found.wins, found.ties, found.losses) == (6, 1, 1)
    assert found.p == pytest.approx(stats.binomtest(1, 7).pvalue)
    assert found.difference == pytest.approx(5 / 8)
    grouped = compare_scores(method, baseline, np.repeat([0, 1], 4))
    assert (grouped.p, grouped.smallest_p) == (0.5, 0.5)
    many = compare_scores(np.tile(method, 4), np.tile(baseline, 4), np.arange(32))
    assert many.p == pytest.approx(stats.binomtest(4, 28).pvalue)  # by formula, not by flips
    assert many.smallest_p == 2.0**-31


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.1, 0.2, True),
        (-0.2, -0.1, True),
        (-0.1, 0.2, False),
        (0.0, 0.2, False),
        (None, None, False),
    ],
)
def test_an_interval_beside_zero_lies_on_one_side_of_it(low, high, expected):
    scores = np.array([1.0, 0, 1, 0])
    found = compare_scores(scores, 1 - scores, np.arange(4))
    assert replace(found, low=low, high=high).beside_zero == expected


def test_the_detectable_difference_is_that_of_a_t_test_of_80_percent_power():
    d = np.array([1.0, 1, 1, 1, 1, 0, 0, -1])
    error = d.std(ddof=1) / math.sqrt(8)
    expected = (stats.t.ppf(0.975, 7) + stats.t.ppf(0.8, 7)) * error
    found = compare_scores(d, np.zeros(8), np.arange(8))
    assert found.detectable == pytest.approx(expected)
    one_document = compare_scores(d, np.zeros(8), np.zeros(8, dtype=int))
    assert one_document.detectable is None


def test_detectable_difference_is_found_with_80_percent():
    rng = np.random.default_rng(0)
    clusters = np.repeat(np.arange(15), 12)
    effects = rng.normal(0, 0.2, (4000, 15))
    noise = effects[:, clusters] + rng.normal(0, 0.3, (4000, clusters.size))
    true_error = math.sqrt((0.2**2 + 0.3**2 / 12) / 15)
    detectable = (stats.t.ppf(0.975, 14) + stats.t.ppf(0.8, 14)) * true_error
    totals = (noise + detectable) @ (clusters[:, None] == np.arange(15))
    mean, stderr, df = linearised_ratio(totals, np.full(15, 12.0))
    found = (np.abs(mean) > stats.t.ppf(0.975, df) * stderr).mean()
    assert found == pytest.approx(0.8, abs=0.03)


def test_perplexity_is_a_ratio_with_the_delta_method():
    nats, tokens = np.array([260.0, 500, 270, 640]), np.array([100.0, 200, 100, 250])
    found = estimate_ratio(nats, tokens)
    assert found.value == pytest.approx(math.exp(nats.sum() / tokens.sum()))
    moved = [math.exp(np.delete(nats, at).sum() / np.delete(tokens, at).sum()) for at in range(4)]
    jackknife = math.sqrt(3 / 4 * sum((m - np.mean(moved)) ** 2 for m in moved))
    assert found.stderr == pytest.approx(jackknife, rel=0.15)
    assert found.low < found.value < found.high


def test_two_documents_give_no_interval_and_no_standard_error():
    found = estimate_ratio(np.array([260.0, 500]), np.array([100.0, 200]))
    assert (found.low, found.stderr) == (None, None)
    assert found.method == "none"


@pytest.mark.parametrize(
    ("nats", "tokens"), [([], []), ([math.nan], [1]), ([1.0], [0]), ([1.0], [-1]), ([5000.0], [1])]
)
def test_perplexities_that_cannot_be_are_refused(nats, tokens):
    with pytest.raises(ValueError, match=r"totals|sizes"):
        estimate_ratio(np.array(nats), np.array(tokens))


def test_lower_perplexity_wins():
    sizes = np.full(8, 100.0)
    found = compare_perplexities(np.arange(8) + 250.0, np.arange(8) + 260.0, sizes)
    assert (found.wins, found.losses) == (8, 0)
    assert found.difference == pytest.approx(-0.1)
    assert found.p == 2 / 2**8


def test_coverage_and_false_positives_by_simulation():
    """A small version of `benchmarks/statistics_simulation.py`, whose table is in the docs."""
    simulation = script("benchmarks/statistics_simulation.py")
    clustered, single = simulation.simulate(1500, groups=(7, 15), correlations=(0.0, 0.2))
    for row in clustered:
        assert 0.925 < row["coverage"] < 0.975, row
        assert row["false_positives"] < 0.065, row
        assert row["false_positives_family"] < 0.065, row
    assert all(row["coverage_unclustered"] < 0.8 for row in clustered if row["correlation"])
    assert all(row["coverage"] > 0.935 and row["false_positives"] < 0.06 for row in single)
