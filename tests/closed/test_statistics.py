"""The clustered standard error against closed forms and another library's estimator."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leval_tasks.statistics.by_document import clustered_stderr


def known(error):
    """Zero where no spread is seen, so that it compares with the textbook."""
    return 0.0 if math.isnan(error) else error


scores = st.lists(st.floats(0, 1), min_size=2, max_size=30)


@given(scores, st.integers(1, 7))
def test_repeated_questions_add_no_information(values, copies):
    items = [(index, value) for index, value in enumerate(values) for _ in range(copies)]
    expected = np.std(values, ddof=1) / math.sqrt(len(values))
    assert known(clustered_stderr(items)) == pytest.approx(expected, abs=1e-8)


def test_unequal_clusters_by_hand():
    # mean 0.6; residual sums a: 1.2, b: -0.6, c: -0.6; leverages 3/5, 1/5, 1/5
    items = [("a", 1), ("a", 1), ("a", 1), ("b", 0), ("c", 0)]
    expected = math.sqrt((1.44 / 0.4 + 0.36 / 0.8 + 0.36 / 0.8) / 25)
    assert clustered_stderr(items) == pytest.approx(expected)


@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=6), min_size=2, max_size=8))
def test_bell_and_mccaffreys_matrices(documents):
    """CR2 as it is defined: residuals of each cluster times `(I - H_gg)^(-1/2)`."""
    sizes = [len(scores) for scores in documents]
    n, mean = sum(sizes), np.concatenate([np.array(d) for d in documents]).mean()
    total = 0.0
    for values in documents:
        m = len(values)
        eigenvalues, vectors = np.linalg.eigh(np.eye(m) - np.full((m, m), 1 / n))
        root = vectors @ np.diag(eigenvalues**-0.5) @ vectors.T
        total += float((root @ (np.array(values) - mean)).sum()) ** 2
    items = [(at, value) for at, values in enumerate(documents) for value in values]
    assert known(clustered_stderr(items)) == pytest.approx(math.sqrt(total) / n, abs=1e-8)


def test_order_does_not_matter():
    items = [(i % 5, (i * 7 % 11) / 10) for i in range(40)]
    shuffled = random.Random(3).sample(items, len(items))
    assert clustered_stderr(items) == pytest.approx(clustered_stderr(shuffled))


@pytest.mark.parametrize("items", [[], [("a", 1.0)], [("a", 1.0), ("a", 0.0)]])
def test_fewer_than_two_clusters_tell_nothing(items):
    assert math.isnan(clustered_stderr(items))


@pytest.mark.parametrize("score", [0.0, 1 / 3, 1.0])
@pytest.mark.parametrize("documents", [1, 2, 15])
def test_documents_that_score_alike_have_no_known_error(score, documents):
    items = [(document, score) for document in range(documents) for _ in range(3)]
    assert math.isnan(clustered_stderr(items))
