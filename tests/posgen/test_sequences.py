import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leval_tasks.common.metadata import SUBTASKS, PosGenSettings
from leval_tasks.posgen.sequences import cycled_seeds, extend, random_seeds, splits
from resonance_vllm.common.errors import SettingError

# The paper's Figure 2 (modulus 7), and two seeds worked out by hand from the rules (modulus 17).
VECTORS = [
    (7, "recursive", "2 0 3 1 6 3 6 2 3 0 4 2"),
    (7, "cot", "2 0 3 1 6 5 0 6 6 0 0 1"),
    (7, "semi_recursive", "2 0 3 1 6 5 5 2 1 4 1 0"),
    (17, "recursive", "0 1 2 3 6 12 6 10 0 11 10 14 1 2 10 10 6 11 3 13"),
    (17, "cot", "0 1 2 3 6 11 3 3 0 6 9 15 13 3 14 13 13 6 15 0"),
    (17, "semi_recursive", "0 1 2 3 6 11 4 5 5 16 12 2 2 5 3 4 16 10 1 15"),
    (17, "recursive", "13 14 15 16 7 1 5 12 8 9 0 12 12 16 6 12 12 12 8 10"),
    (17, "cot", "13 14 15 16 7 0 2 5 3 6 10 15 10 14 1 4 15 16 14 7"),
    (17, "semi_recursive", "13 14 15 16 7 0 3 7 8 16 13 2 4 9 15 11 4 16 4 14"),
]


@pytest.mark.parametrize(("modulus", "subtask", "text"), VECTORS)
def test_published_vectors(modulus, subtask, text):
    expected = [int(n) for n in text.split()]
    rule = PosGenSettings(subtask=subtask, modulus=modulus, train_length=5, length=len(expected))
    got = extend(np.array([expected[:4]]), rule)
    assert got[0].tolist() == expected


def _by_the_rule(seed, subtask, length, modulus, j, k):
    """The definition, one token at a time on a plain list."""
    x = list(seed)
    while len(x) < length:
        n = len(x)
        if subtask == "recursive":
            far = x[n - j - k : n - k]
        elif subtask == "cot":
            far = x[:j]
        else:
            pointer = (n - (j + k)) // 2
            far = [x[pointer + i] for i in range(j)]
        x.append((sum(far) + sum(x[-k:])) % modulus)
    return x


@given(
    subtask=st.sampled_from(SUBTASKS),
    modulus=st.integers(2, 30),
    j=st.integers(1, 4),
    k=st.integers(1, 4),
    extra=st.integers(1, 40),
    data=st.data(),
)
def test_any_setting_follows_the_definition(subtask, modulus, j, k, extra, data):
    number = st.integers(0, modulus - 1)
    row = st.lists(number, min_size=j + k, max_size=j + k)
    seeds = data.draw(st.lists(row, min_size=1, max_size=4))
    sizes = {"train_length": j + k + 1, "length": j + k + extra}
    rule = PosGenSettings(subtask=subtask, modulus=modulus, far=j, near=k, **sizes)
    got = extend(np.array(seeds), rule)
    assert got.tolist() == [_by_the_rule(s, subtask, j + k + extra, modulus, j, k) for s in seeds]


def test_draws_are_distinct_and_follow_the_seed():
    every = random_seeds(17**2, 2, 17, seed=3)
    assert len({tuple(row) for row in every.tolist()}) == 17**2
    assert (random_seeds(50, 4, 17, seed=1) == random_seeds(90, 4, 17, seed=1)[:50]).all()
    assert not (random_seeds(50, 4, 17, seed=1) == random_seeds(50, 4, 17, seed=2)).all()


def test_too_few_tuples():
    with pytest.raises(SettingError, match="give only 2401"):
        splits(PosGenSettings(subtask="cot", modulus=7))
    with pytest.raises(SettingError, match="modulus: 3 is not allowed; allowed: at least 4"):
        cycled_seeds(4, 4, 3)
