"""Texts, and references that are saved."""

import numpy as np
import pytest

from leval_harness.parity.reading import Reading
from leval_harness.parity.saved import SavedReader
from leval_harness.parity.texts import read_texts
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
    """Two texts at two lengths."""
    rng = np.random.default_rng(0)
    rows = [list(range(at, at + size)) for size in (20, 40) for at in (0, 100)]
    readings = [
        Reading(
            rng.normal(size=len(row) - 1).astype(np.float32),
            rng.integers(0, 99, (len(row) - 1, 20)).astype(np.int32),
            rng.normal(size=(len(row) - 1, 20)).astype(np.float32),
        )
        for row in rows
    ]
    texts = [Text("one", "A text."), Text("two", "Another.")]
    return SavedReader({"text": "m"}, texts, [1, 2], rows, readings)


def test_a_reference_comes_back_to_the_bit(reference, tmp_path):
    reference.save(tmp_path / "base.npz")
    assert [each.name for each in tmp_path.iterdir()] == ["base.npz"]
    reader = SavedReader.load(tmp_path / "base.npz")
    for row, found in zip(reference.rows, reader.read(reference.rows), strict=True):
        for name in ("logprob", "top_ids", "top"):
            written = getattr(reference.readings[tuple(row)], name)
            assert np.array_equal(getattr(found, name), written)
    assert reader.encode("Another.") == list(range(100, 140))
    assert reader.encode("A third.") is None
    assert (reader.limit, reader.lengths, reader.template([])) == (40, (20, 40), [1, 2])


def test_the_beginning_of_a_saved_text_can_be_compared(reference):
    (found,) = reference.read([list(range(10))])
    assert found.logprob.shape == (9,)
    with pytest.raises(UserError, match="no reading of these 3 tokens"):
        list(reference.read([[1, 2, 3]]))


@pytest.mark.parametrize("content", [b"", b"{}", b"PK\x03\x04half"])
def test_what_is_no_reference_is_refused(tmp_path, content):
    path = tmp_path / "base.npz"
    path.write_bytes(content)
    with pytest.raises(UserError, match="is no reference saved by"):
        SavedReader.load(path)
