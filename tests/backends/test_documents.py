"""The order in which texts are read, against really keeping one path."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from leval_harness.backends.documents import batches, common_prefix

TEXTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=12)


def read(texts, most):
    """Tokens read and texts asked."""
    path, tokens, asked = [], 0, []
    for shared, rows in batches(texts, most):
        kept = common_prefix(path, shared)
        tokens, path = tokens + len(shared) - kept, shared
        for row in rows:
            assert texts[row][: len(shared)] == shared
            assert len(shared) <= most[row]
            tokens += len(texts[row]) - len(shared)
            asked.append(row)
    return tokens, asked


def unique_tokens(texts):
    """Tokens that have to be read if each beginning is read once."""
    ordered = sorted(texts)
    return sum(map(len, texts)) - sum(common_prefix(a, b) for a, b in pairwise(ordered))


@given(TEXTS, st.integers(0, 1))
def test_every_text_is_asked_once_after_its_own_prefix(texts, reserve):
    tokens, asked = read(texts, [len(text) - reserve for text in texts])
    assert sorted(asked) == list(range(len(texts)))
    if not reserve:
        assert tokens <= 1.01 * unique_tokens(texts)


@given(TEXTS)
def test_a_prefix_grows_by_several_tokens_where_one_is_not_read_as_several_are(texts):
    kept = [[]]  # the places to which a path that cannot be cut goes back
    for shared, _ in batches(texts, [len(text) for text in texts], 2):
        while kept[-1] != shared[: len(kept[-1])]:
            kept.pop()
        assert len(shared) - len(kept[-1]) != 1
        kept.append(shared)


def test_questions_of_a_document_form_one_batch_though_they_begin_alike():
    document = list(range(1000, 2000))
    texts = [[*document, 7, 8, n] for n in range(4)] + [[*document, 9, n] for n in range(4)]
    assert [len(rows) for _, rows in batches(texts, [1000] * 8)] == [8]


def test_deeply_nested_texts_need_no_recursion():
    texts = [[1] * n for n in range(1, 1200)]
    assert read(texts, [len(text) for text in texts])[0] <= 1.01 * 1199
