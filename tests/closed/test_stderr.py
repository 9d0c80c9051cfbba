"""The clustered standard error against closed forms."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leval_tasks.closed.stderr import clustered_stderr

scores = st.lists(st.floats(0, 1), min_size=2, max_size=30)


@given(scores)
def test_one_question_a_cluster_is_the_usual_standard_error(values):
    expected = np.std(values, ddof=1) / math.sqrt(len(values))
    assert clustered_stderr(enumerate(values)) == pytest.approx(expected, abs=1e-12)


@given(scores, st.integers(1, 7))
def test_repeated_questions_add_no_information(values, copies):
    items = [(index, value) for index, value in enumerate(values) for _ in range(copies)]
    expected = np.std(values, ddof=1) / math.sqrt(len(values))
    assert clustered_stderr(items) == pytest.approx(expected, abs=1e-12)


def test_two_clusters_by_hand():
    # mean 0.5; cluster sums of residuals: a: 0.5+0.5 = 1, b: -0.5-0.5 = -1; G/(G-1) = 2
    items = [("a", 1.0), ("a", 1.0), ("b", 0.0), ("b", 0.0)]
    assert clustered_stderr(items) == pytest.approx(math.sqrt(2 * 2) / 4)


def test_unequal_clusters_by_hand():
    # mean 0.6; residual sums a: 0.4*3 = 1.2, b: -0.6, c: -0.6; 3/2 * (1.44+0.36+0.36) / 25
    items = [("a", 1), ("a", 1), ("a", 1), ("b", 0), ("c", 0)]
    assert clustered_stderr(items) == pytest.approx(math.sqrt(1.5 * 2.16) / 5)


def test_order_does_not_matter():
    items = [(i % 5, (i * 7 % 11) / 10) for i in range(40)]
    shuffled = random.Random(3).sample(items, len(items))
    assert clustered_stderr(items) == pytest.approx(clustered_stderr(shuffled))


@pytest.mark.parametrize("items", [[], [("a", 1.0)], [("a", 1.0), ("a", 0.0)]])
def test_fewer_than_two_clusters_tell_nothing(items):
    assert clustered_stderr(items) is None
