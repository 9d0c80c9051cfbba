import itertools
import json

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leval_harness.training import text
from leval_harness.training.finetune_settings import preset
from leval_tasks.perplexity.documents import Text
from resonance_vllm.errors import UserError

tokens = st.lists(st.integers(0, 2), max_size=40)


def _runs(ids, length):
    return {tuple(ids[i : i + length]) for i in range(len(ids) - length + 1)}


@given(train=tokens, held=tokens, length=st.integers(1, 6))
def test_nothing_shared_is_left_and_nothing_else_is_lost(train, held, length):
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


def test_split_is_by_document_and_follows_from_the_text():
    documents = [Text("a", f"text {i}") for i in range(9)]
    train, held = text.split_documents(documents, 3, seed=1)
    assert (len(train), len(held)) == (6, 3)
    assert not set(train) & set(held)
    again = text.split_documents(documents[::-1], 3, seed=1)[1]
    assert set(again) == set(held)
    assert {text.split_documents(documents, 3, seed=s)[1][0] for s in range(9)} != {held[0]}
    with pytest.raises(UserError, match="held_out: 9 is not allowed; allowed: 0 to 8"):
        text.split_documents(documents, 9, seed=1)


def test_reading_and_its_errors(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n{"text": "one"}\n')
    (tmp_path / "b.txt").write_text("three")
    found = text.read_documents([str(tmp_path)])
    assert [(d.name, d.text) for d in found] == [("a", "one"), ("a", "two"), ("b", "three")]
    (tmp_path / "c.jsonl").write_text(json.dumps({"text": "x"}) + "\n{oops\n")
    with pytest.raises(UserError, match=r"c\.jsonl, line 2"):
        text.read_documents([str(tmp_path / "c.jsonl")])
    with pytest.raises(UserError, match=r"^data: 'nowhere' is not allowed; allowed: a \.jsonl"):
        text.read_documents(["nowhere"])
    (tmp_path / "empty.txt").write_text(" ")
    with pytest.raises(UserError, match="no text"):
        text.read_documents([str(tmp_path / "empty.txt")])


def test_a_record_ends_with_a_newline_and_nothing_else(tmp_path):
    words = ["one\u2028two\x85three", "four\x0cfive\u2029six"]
    lines = [json.dumps({"text": each}, ensure_ascii=False) for each in words]
    (tmp_path / "a.jsonl").write_text("\r\n".join(lines), encoding="utf-8")
    assert [d.text for d in text.read_documents([str(tmp_path / "a.jsonl")])] == words


def test_a_hub_data_set_is_read_no_further_than_asked(monkeypatch):
    import datasets

    def endless(*args, **kwargs):
        assert kwargs["streaming"]
        return ({"text": f"{i:05}" + "x" * 95} for i in itertools.count())

    monkeypatch.setattr(datasets, "load_dataset", endless)
    found = text.read_documents(["pg19"], characters=250)
    assert [d.text[:5] for d in found] == ["00000", "00001", "00002"]
    assert {d.name for d in found} == {"pg19"}


@pytest.mark.parametrize(("name", "content"), [
    ("a.jsonl", b'{"text": null}'), ("a.jsonl", b'{"text": ["x"]}'), ("a.jsonl", b'{"text": 3}'),
    ("a.jsonl", b'{"text": "\\ud800"}'), ("a.jsonl", b"[1]"), ("a.txt", b"\xff\xfe\x00x"),
])  # fmt: skip
def test_what_is_no_text_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"data: .*{name}"):
        text.read_documents([str(tmp_path / name)])


@pytest.mark.parametrize("source", ["", "\x00", "~nobody-of-this-name/x"])
def test_no_source_is_named(source, tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("of the folder that one is in")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="data: "):
        text.read_documents([source])


def test_a_file_that_memory_cannot_hold_is_refused_before_it_is_read(tmp_path):
    for name in ("big.txt", "big.jsonl"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(1 << 40)  # no block of it is written
        with pytest.raises(UserError, match=r"reading .* takes about 2048.0 GiB of memory, and"):
            text.read_documents([str(tmp_path / name)])


@pytest.mark.parametrize(("documents", "refused"), [(1, True), (1000, False)])
def test_text_that_memory_cannot_hold_is_refused_before_it_is_tokenised(
    monkeypatch, tmp_path, documents, refused
):
    """2 million characters: 300 MB as one document, 16 MB as a thousand."""
    lines = [json.dumps({"text": f"{i:04} " * (400_000 // documents)}) for i in range(documents)]
    (tmp_path / "d.jsonl").write_text("\n".join(lines))
    memory = type(psutil.virtual_memory())(*psutil.virtual_memory())._replace(available=100 << 20)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    calls = []

    def tokenizer(content, **_):
        calls.append(len(content))
        raise InterruptedError

    settings = preset("cpu").changed(sequence_length=64, held_out=0)
    error = UserError if refused else InterruptedError
    with pytest.raises(error) as caught:
        text.prepare_text([str(tmp_path / "d.jsonl")], tokenizer, settings, 1)
    assert bool(calls) is not refused
    if refused:
        said = "tokenizing 2,000,000 characters, 2,000,000 of them in the longest document (d)"
        assert said in str(caught.value)
        assert "0.1 GiB are available" in str(caught.value)
