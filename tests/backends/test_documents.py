"""The order in which documents are read, against really keeping one path."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_backends import asked, build, words

from leval_harness.backends.documents import batches, common_prefix
from leval_harness.backends.hf_long import HFLong

TEXTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=12)


def read(documents, most, **options):
    """Tokens read and documents asked."""
    path, tokens, asked = [], 0, []
    for shared, rows in batches(documents, most, **options):
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


@given(TEXTS, st.integers(1, 9))
def test_batches_of_their_own_save_what_they_are_worth(documents, worth):
    lengths = [len(text) for text in documents]
    tokens, asked = read(documents, lengths, worth_a_batch=worth)
    assert sorted(asked) == list(range(len(documents)))
    counts = []
    for least_saved in (0, worth):
        groups = batches(documents, lengths, worth_a_batch=least_saved)
        counts.append(sum(bool(rows) for _, rows in groups))
    assert counts[1] <= counts[0]
    assert tokens <= 1.01 * unique_tokens(documents) + worth * len(documents)


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


RNG = random.Random(5)
COUNTS = {
    "equal": [6] * 12,
    "one_by_one": range(1, 15),
    "two_kinds": [2] * 6 + [20] * 6,
    "one_long": [3] * 9 + [60],
    "doubling": [1, 2, 4, 8, 16, 32, 64],
    "one": [7],
    "drawn": [RNG.randrange(1, 30) for _ in range(20)],
}
"""Words of the questions about one document."""
STARTS = {
    "": lambda _: "",
    "few_first_words": lambda n: f"w{n % 3} ",
    "what_is_the": lambda n: ("w1 w2 w3 ", "w1 w2 w4 ", "w5 ")[n % 3],
    "nested": lambda n: " ".join(f"w{i}" for i in range(n % 5)) + " ",
}
"""Words with which questions begin, by their number."""
NEW = 4


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("count", COUNTS)
def test_questions_of_any_length_are_answered_in_full_batches(tokenizer, count, start):
    """One pass for each document, and one for each new token of all its questions."""
    texts = []
    for first_word in ("w1", "w2"):
        document = f"{first_word} {words(RNG, 100)}"
        questions = [STARTS[start](n) + words(RNG, k) for n, k in enumerate(COUNTS[count])]
        texts += [f"{document} {question}" for question in questions]
    RNG.shuffle(texts)
    model = build("llama", max_position_embeddings=512)
    lm = HFLong(model, tokenizer=tokenizer, device="cpu")
    _ = lm.reuse
    passes = []
    model.get_decoder().register_forward_hook(lambda *_: passes.append(1))
    requests = asked(texts, until=[], max_gen_toks=NEW, min_new_tokens=NEW)
    lm.generate_until(requests, disable_tqdm=True)
    if len(COUNTS[count]) == 1:  # nothing is shared, and both questions are one batch
        assert len(passes) == NEW
    else:
        assert len(passes) == 2 + 2 * NEW
