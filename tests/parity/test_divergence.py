"""A lower bound of the KL divergence from the most probable tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from leval_tasks.statistics.difference import kl_lower_bound

VOCABULARY = 50


def distributions(seed, rows=6, spread=2.0):
    logits = spread * np.random.default_rng(seed).normal(size=(rows, VOCABULARY))
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def top(logprob, k):
    ids = np.argsort(-logprob, axis=1)[:, :k]
    return ids, np.take_along_axis(logprob, ids, 1)


@given(st.integers(0, 1000), st.sampled_from([1, 5, 20, VOCABULARY]))
def test_the_bound_is_never_above_the_divergence_and_grows_with_k(seed, k):
    a, b = distributions(seed), distributions(seed + 1)
    bounds = [kl_lower_bound(*top(a, size), *top(b, size)) for size in (k, VOCABULARY)]
    assert (bounds[0] >= 0).all()
    assert (bounds[0] <= bounds[1] + 1e-9).all()
    whole = stats.entropy(np.exp(a), np.exp(b), axis=1)
    assert bounds[1] == pytest.approx(whole, abs=1e-9)


def test_tokens_that_only_one_top_has_are_one_event():
    ids_a, ids_b = np.array([[1, 2]]), np.array([[1, 3]])
    found = kl_lower_bound(ids_a, np.log([[0.6, 0.3]]), ids_b, np.log([[0.5, 0.4]]))
    assert found == pytest.approx([stats.entropy([0.6, 0.4], [0.5, 0.5])])
