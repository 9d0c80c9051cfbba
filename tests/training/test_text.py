import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leval_harness.training import text
from leval_tasks.perplexity.documents import Document
from resonance_vllm.common.errors import UserError

tokens = st.lists(st.integers(0, 2), max_size=40)


def _runs(ids, length):
    return {tuple(ids[i : i + length]) for i in range(len(ids) - length + 1)}


@given(train=tokens, held=tokens, length=st.integers(1, 6))
def test_text_without_shared_runs_loses_nothing_else(train, held, length):
    known = np.unique(text.run_hashes(np.array(held, dtype=np.int64), length))
    pieces = text.without_shared(np.array(train, dtype=np.int64), known, length)
    forbidden = _runs(held, length)
    assert all(not _runs(piece.tolist(), length) & forbidden for piece in pieces)
    covered = {
        i + j
        for i in range(len(train) - length + 1)
        if tuple(train[i : i + length]) in forbidden
        for j in range(length)
    }
    kept = [x for piece in pieces for x in piece.tolist()]
    assert kept == [x for i, x in enumerate(train) if i not in covered]


def test_pack_keeps_every_token_in_order_within_a_document():
    documents = [np.arange(10 * i, 10 * i + 7) for i in range(5)]
    rows = text.pack(documents, 4, separator=-1, seed=3)
    assert rows.shape == (10, 4)
    assert (np.sort(rows[rows >= 0]) == np.sort(np.concatenate(documents))).all()
    assert (text.pack(documents, 4, -1, 3) == rows).all()
    assert not (text.pack(documents, 4, -1, 4) == rows).all()
    with pytest.raises(UserError, match="sequence_length: 99 is longer"):
        text.pack(documents, 99, -1, 3)


def test_text_split_is_by_document_and_reproducible():
    documents = [Document("a", f"text {i}") for i in range(9)]
    train, held = text.split_documents(documents, 3, seed=1)
    assert (len(train), len(held)) == (6, 3)
    assert not set(train) & set(held)
    again = text.split_documents(documents[::-1], 3, seed=1)[1]
    assert set(again) == set(held)
    assert {text.split_documents(documents, 3, seed=s)[1][0] for s in range(9)} != {held[0]}
    with pytest.raises(UserError, match="held_out: 9 is not allowed; allowed: 0 to 8"):
        text.split_documents(documents, 9, seed=1)


def test_text_reads_files_and_refuses_missing_ones(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n{"text": "one"}\n')
    (tmp_path / "b.txt").write_text("three")
    found = text.read_documents([str(tmp_path)])
    assert [(d.name, d.text) for d in found] == [("a", "one"), ("a", "two"), ("b", "three")]
    with pytest.raises(
        UserError, match=r"^--data: 'nowhere' is not allowed; allowed: an existing \.jsonl"
    ):
        text.read_documents(["nowhere"])
    (tmp_path / "empty.txt").write_text(" ")
    with pytest.raises(UserError, match="no text"):
        text.read_documents([str(tmp_path / "empty.txt")])
