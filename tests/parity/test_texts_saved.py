"""Texts, and references that are saved."""

import json

import numpy as np
import pytest

from leval_harness.parity.reading import Reading
from leval_harness.parity.saved import Reference, SavedReader
from leval_harness.parity.texts import ids_sha256, read_texts
from leval_tasks.perplexity.documents import Text
from resonance_vllm.errors import SettingError, UserError


def test_the_language_reference_is_cut_into_pieces_from_beginnings_of_lines():
    texts = read_texts("pydocs", 1024)
    assert len(texts) > 50
    assert all(len(each.text) == 6144 for each in texts)
    assert len({each.sha256 for each in texts}) == len(texts)


def test_texts_of_files(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n{"text": "one "}\n')
    assert [each.text for each in read_texts(str(tmp_path / "a.jsonl"), 8)] == ["one ", "two"]
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "b.txt").write_text("b")
    (folder / "c.md").write_text("c")
    assert [each.name for each in read_texts(str(folder), 8)] == ["b.txt", "c.md"]
    (tmp_path / "long.txt").write_text("word\n" * 100)
    assert [len(each.text) for each in read_texts(str(tmp_path / "long.txt"), 16)] == [96] * 5


@pytest.mark.parametrize(
    ("content", "said"),
    [('{"txt": "one"}', "text: "), ('["one"]', "a JSON object is needed"), ("{oops", "JSON")],
)
def test_a_line_without_text_is_named(tmp_path, content, said):
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(SettingError, match=f"--texts: .*a.jsonl, line 1: .*{said}"):
        read_texts(str(tmp_path / "a.jsonl"), 8)


def test_an_unknown_source_is_refused():
    with pytest.raises(SettingError, match="--texts: 'nowhere' is not allowed; allowed: pydocs, "):
        read_texts("nowhere", 8)


@pytest.fixture
def reference():
    rng = np.random.default_rng(0)
    text, ids = Text("one", "A text."), list(range(40))
    reading = Reading(
        rng.normal(size=39).astype(np.float32),
        rng.integers(0, 99, (39, 20)).astype(np.int32),
        rng.normal(size=(39, 20)).astype(np.float32),
    )
    key = ids_sha256(ids)
    return Reference({"text": "m"}, [text], {text.sha256: ids}, [1, 2], {key: reading}, {key: ids})


def test_a_reference_comes_back_to_the_bit(reference, tmp_path):
    reference.write(tmp_path / "base.json")
    reader = SavedReader(tmp_path / "base.json")
    ((key, written),) = reference.readings.items()
    (read,) = reader.read([reference.ids[key]])
    for name in ("logprob", "top_ids", "top"):
        assert np.array_equal(getattr(read, name), getattr(written, name))
    assert reader.encode("A text.") == list(range(40))
    assert reader.encode("Another.") is None
    assert reader.limit == 40


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda c: c["texts"][0].update(text="B text."), "text one does not have the SHA-256"),
        (lambda c: c["readings"][0].update(ids_sha256="0"), "token ids do not have the SHA-256"),
        (lambda c: c["readings"][0].update(logprob=c["readings"][0]["top"]), "damaged"),
        (lambda c: c.update(schema=2), "schema 2; allowed: 1"),
        (lambda c: c.update(kind="other"), "is no reference saved by"),
    ],
)
def test_a_reference_that_was_changed_is_refused(reference, tmp_path, edit, said):
    path = tmp_path / "base.json"
    reference.write(path)
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=said):
        Reference.load(path)


def test_tokens_that_were_not_saved_are_refused(reference, tmp_path):
    reference.write(tmp_path / "base.json")
    with pytest.raises(UserError, match="no reading of these 3 tokens"):
        list(SavedReader(tmp_path / "base.json").read([[1, 2, 3]]))
