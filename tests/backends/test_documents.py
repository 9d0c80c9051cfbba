"""The order in which documents are read, against really keeping one path."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from leval_harness.backends.documents import batches, common_prefix

TEXTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=12)


def read(documents, most):
    """Tokens read and documents asked."""
    path, tokens, asked = [], 0, []
    for shared, rows in batches(documents, most):
        kept = common_prefix(path, shared)
        tokens, path = tokens + len(shared) - kept, shared
        for row in rows:
            assert documents[row][: len(shared)] == shared
            assert len(shared) <= most[row]
            tokens += len(documents[row]) - len(shared)
            asked.append(row)
    return tokens, asked


def unique_tokens(documents):
    """Tokens that have to be read if each beginning is read once."""
    ordered = sorted(documents)
    return sum(map(len, documents)) - sum(common_prefix(a, b) for a, b in pairwise(ordered))


@given(TEXTS, st.integers(0, 1))
def test_every_text_is_asked_once_after_its_own_prefix(documents, reserve):
    tokens, asked = read(documents, [len(text) - reserve for text in documents])
    assert sorted(asked) == list(range(len(documents)))
    if not reserve:
        assert tokens <= 1.01 * unique_tokens(documents)


@given(TEXTS)
def test_prefix_grows_by_as_many_tokens_as_are_read_alike(documents):
    kept = [[]]  # the places to which a path that cannot be cut goes back
    for shared, _ in batches(documents, [len(text) for text in documents], 2):
        while kept[-1] != shared[: len(kept[-1])]:
            kept.pop()
        assert len(shared) - len(kept[-1]) != 1
        kept.append(shared)


def test_batches_hold_the_questions_of_one_document():
    document = list(range(1000, 2000))
    documents = [[*document, 7, 8, n] for n in range(4)] + [[*document, 9, n] for n in range(4)]
    assert [len(rows) for _, rows in batches(documents, [1000] * 8)] == [8]


def test_deeply_nested_texts_need_no_recursion():
    documents = [[1] * n for n in range(1, 1200)]
    assert read(documents, [len(text) for text in documents])[0] <= 1.01 * 1199
