"""Statistics against independent references: brute force, matrices, scipy, and simulation."""

import itertools
import math
import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import linalg, stats

from leval_tasks.statistics.by_document import (
    FLIPS,
    clopper_pearson,
    holm,
    known_error,
    logit_interval,
    ratio_of_sums,
    ratios,
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


def one_ratio(totals, sizes):
    """Ratio, standard error, degrees of freedom and number of documents."""
    return tuple(float(each[0]) for each in ratio_of_sums(totals, sizes, np.zeros(len(sizes), int)))


@pytest.mark.parametrize("sizes", [(5, 5, 5), (2, 9, 4, 7), (1, 3, 12, 2, 6, 6, 5)])
def test_clustered_error_is_bell_and_mccaffreys(sizes):
    rng = np.random.default_rng(len(sizes))
    clusters = np.repeat(np.arange(len(sizes)), sizes)
    values = rng.random(clusters.size)
    stderr, df = bell_mccaffrey(values, clusters)
    found = one_ratio(np.bincount(clusters, values), np.bincount(clusters))
    assert found == pytest.approx((values.mean(), stderr, df, len(sizes)))
    # on the logit scale, by the delta method
    mean, half = values.mean(), stats.t.ppf(0.975, df) * stderr
    logit, width = np.log(mean / (1 - mean)), half / (mean * (1 - mean))
    ends = [1 / (1 + np.exp(-end)) for end in (logit - width, logit + width)]
    assert logit_interval(mean, half) == pytest.approx(tuple(ends))


def test_ratios_equal_single_ratios_in_any_order():
    rng = np.random.default_rng(4)
    rows = [
        {"run": run, "name": name, "num": rng.random(), "den": float(rng.integers(1, 9))}
        for run in range(5) for name in ("x", "y") for _ in range(1 + 2 * run)
    ]  # fmt: skip
    found = ratios(pd.DataFrame(rows).sample(frac=1, random_state=2), ["run", "name"])
    for (run, name), row in found.iterrows():
        own = [(r["num"], r["den"]) for r in rows if (r["run"], r["name"]) == (run, name)]
        assert row.tolist() == pytest.approx(one_ratio(*np.array(own).T), nan_ok=True)


def test_documents_that_score_alike_are_not_certainty():
    for values in ([0.2] * 2, [0.1] * 20, [7.3] * 6, [0.4]):  # which rounding tells apart, too
        sizes = np.arange(1.0, 1 + len(values))
        assert math.isnan(known_error(np.array(values) * sizes, sizes))
        assert known_error([0.2, 0.4], [1.0, 1.0]) == pytest.approx(0.1)
        frame = pd.DataFrame({"at": 0, "num": np.array(values) * sizes, "den": sizes})
        assert ratios(frame, ["at"])["error"].isna().all()


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_clopper_pearson_is_scipys(counts):
    k, n = counts
    exact = stats.binomtest(k, n).proportion_ci(0.95, method="exact")
    assert clopper_pearson(k, n) == pytest.approx((exact.low, exact.high))


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


def test_sign_flip_random_agrees_with_exact():
    d = np.random.default_rng(3).normal(0.3, 1, 19)
    padded = np.concatenate([d, [0.0]])  # a document without a difference changes nothing
    assert float(sign_flip_p(padded)) == pytest.approx(float(sign_flip_p(d)), abs=0.02)
    assert float(sign_flip_p(np.ones(60))) == 1 / (1 + FLIPS)
    assert sign_flip_p(np.empty((3, 0))).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(("groups", "expected"), [(1, 1.0), (5, 1 / 16), (7, 1 / 64), (15, 2**-14)])
def test_smallest_p_is_reached_by_unanimous_documents(groups, expected):
    assert smallest_p(groups) == expected
    assert smallest_p(60) == 1 / (1 + FLIPS)
    assert float(sign_flip_p(np.ones(groups))) == expected


def test_holm_example():
    found = holm(pd.Series([0.01, 0.04, 0.03, 0.005]))
    assert found.tolist() == pytest.approx([0.03, 0.06, 0.06, 0.02])
    with_gap = holm(pd.Series([0.04, math.nan, 0.02]))
    assert with_gap[[0, 2]].tolist() == pytest.approx([0.04, 0.04])
    assert math.isnan(with_gap[1])
    p = pd.Series([0.01, 0.2, 0.04, 0.03, 0.005, 0.3])
    families = pd.Series([0, 1, 0, 0, 0, 1])
    of_two = holm(p, families)
    for family in (0, 1):
        alone = holm(p[families == family])
        assert of_two[families == family].tolist() == pytest.approx(alone.tolist())


@pytest.mark.slow
def test_coverage_and_false_positives_by_simulation():
    """A small version of `reports/statistics/simulation.py`, whose table is in the docs."""
    script = Path(__file__).parents[2] / "reports" / "statistics" / "simulation.py"
    simulate = runpy.run_path(str(script))["simulate"]
    clustered, single = simulate(1500, groups=(7, 15), correlations=(0.0, 0.2))
    for row in clustered:
        assert 0.925 < row["coverage"] < 0.975, row
        assert row["false_positives"] < 0.065, row
        assert row["false_positives_family"] < 0.065, row
    assert all(row["coverage_unclustered"] < 0.8 for row in clustered if row["correlation"])
    assert all(row["coverage"] > 0.935 and row["false_positives"] < 0.06 for row in single)
