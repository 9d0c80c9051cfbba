"""Which texts count, and what is said about those that do not."""

import json
import logging
from pathlib import Path

import pytest

from leval_tasks.context import LengthLimit
from leval_tasks.errors import ContextLengthError, DataError
from leval_tasks.metadata import PerplexitySettings, read_metadata
from leval_tasks.perplexity.documents import (
    Text,
    draw,
    equal_cuts,
    language_reference,
    read_corpus,
)
from leval_tasks.perplexity.task import complete_settings
from resonance_vllm.errors import SettingError

SETTINGS = PerplexitySettings(
    context_length=(4,), mode="truncate", stride=1, min_tokens=3, bos=True
)


def words(text: str) -> tuple[list[int], list[int]]:
    """One token a character."""
    return [ord(c) for c in text], list(range(1, len(text) + 1))


def texts(*contents: str) -> list[Text]:
    return [Text(str(i), content) for i, content in enumerate(contents)]


def drawn(contents, **settings):
    return draw(texts(*contents), words, SETTINGS.changed(**settings))


def completed(metadata, has_bos=True, tokens=None, **about):
    given = read_metadata(PerplexitySettings, metadata)
    limit = LengthLimit("api", tokens, "max_length", **about)
    return complete_settings(given, limit, has_bos=has_bos)


def test_what_cannot_be_used_is_counted_and_said(caplog):
    with caplog.at_level(logging.WARNING):
        result = drawn(["abcd", "", " abcd\n", "ab", "efgh"])
    assert [d.document_id for d in result.documents] == ["0", "4"]
    assert result.left_out == {"empty": 1, "duplicate": 1, "too_short": 1}
    assert "1 shorter than 3 tokens; 2 documents remain" in caplog.text
    assert "only 2 documents can be used" in caplog.text


def test_all_too_short_is_an_error_that_names_the_longest():
    with pytest.raises(DataError, match=r"none of 2 documents has the 3 tokens.*longest has 2"):
        drawn(["a", "ab"])


def test_the_draw_depends_on_the_seed_alone_and_keeps_the_order():
    contents = [f"text {i}" for i in range(40)]
    names = [[d.document_id for d in drawn(contents, num_docs=5, seed=s).documents] for s in (1, 1)]
    assert names[0] == names[1] == sorted(names[0], key=int)
    others = [
        tuple(d.document_id for d in drawn(contents, num_docs=5, seed=s).documents)
        for s in range(300)
    ]
    counts = [sum(str(i) in other for other in others) for i in range(40)]
    assert min(counts) > 15  # 37.5 on average: no document is out of reach
    assert max(counts) < 65


def test_scored_text_is_the_text_of_the_scored_tokens():
    (document,) = drawn(["abcdefgh"], max_tokens=6).documents
    assert document.tokens == [ord(c) for c in "abcdef"]
    assert document.scored_text(0, 6) == "abcdef"
    assert document.scored_text(1, 4) == "bcd"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "a"}\n{broken\n', "line 2: not JSON"),
        ('{"body": "a"}\n', "line 1: text: missing"),
        ('["a"]\n', "line 1: a JSON object is needed, not list"),
    ],
)
def test_damaged_files(tmp_path: Path, content, message):
    (tmp_path / "pg19.jsonl").write_text(content)
    with pytest.raises(DataError, match=message):
        read_corpus("pg19", str(tmp_path))


def test_line_separators_inside_a_text_do_not_end_a_record(tmp_path: Path):
    row = json.dumps({"text": "one\u2028two"}, ensure_ascii=False)
    (tmp_path / "pg19.jsonl").write_text(row + "\n", encoding="utf-8")
    (text,), source = read_corpus("pg19", str(tmp_path))
    assert text.text == "one\u2028two"
    assert source["source"] == "data_dir"


def test_not_utf8(tmp_path: Path):
    (tmp_path / "pg19.jsonl").write_bytes(b'{"text": "\xff"}\n')
    with pytest.raises(DataError, match="not UTF-8"):
        read_corpus("pg19", str(tmp_path))


def test_a_folder_without_the_corpus_says_what_it_must_hold(tmp_path: Path):
    with pytest.raises(DataError, match=r"pg19.jsonl is neither in"):
        read_corpus("pg19", str(tmp_path))
    with pytest.raises(DataError, match="bundled sample is for closed-ended"):
        read_corpus("pg19", "sample")


def test_proofpile_has_no_hub_source(monkeypatch):
    monkeypatch.delenv("LEVAL_DATA_DIR", raising=False)
    with pytest.raises(DataError, match=r"put proofpile.jsonl"):
        read_corpus("proofpile", None)


def test_the_real_documents(real_data: Path):
    found, source = read_corpus("govreport", str(real_data))
    assert len(found) == 14
    assert source["files"]["govreport.jsonl"].startswith("4ff8ee1b91924f5f")
    result = draw(found, words, SETTINGS.changed(min_tokens=1))
    assert result.left_out["duplicate"] == 1
    assert len(result.documents) == 13


def test_the_reference_is_the_same_whatever_the_order_of_its_topics():
    topics = {"b": "one two\n\nthree", "a": "one two", "d": "four\n", "e": " "}
    text, digest = language_reference(topics)
    assert text == "one two\n\nthree\n\nfour"
    assert len(digest) == 64
    assert language_reference(dict(reversed(list(topics.items())))) == (text, digest)


def test_pieces_are_equal_and_as_many_as_fit():
    assert equal_cuts(10, 3) == [(0, 3), (3, 6), (6, 9)]
    assert equal_cuts(9, 3) == [(0, 3), (3, 6), (6, 9)]
    assert equal_cuts(2, 3) == []


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (
            {"context_length": 64, "stride": "x"},
            "stride: 'x' is not allowed; allowed: a whole",
        ),
        ({"context_length": 64, "stride": 64}, "stride: 64 is not allowed; allowed: 1 to 63"),
        (
            {"context_length": 64, "stride": 8, "num_docs": 0},
            "num_docs: 0 is not allowed; allowed: a number",
        ),
        (
            {"context_length": 64, "stride": 8, "max_tokens": 62},
            "max_tokens: 62 is not allowed; allowed: at least 63",
        ),
        (
            {"context_length": 64, "stride": 8, "bos": "yes"},
            "bos: 'yes' is not allowed",
        ),
        ({"perplexity": {"strides": 8}}, r"perplexity\.strides: unknown setting.*did you mean"),
        ({"perplexity": 8}, "perplexity: 8 is not allowed; allowed: a mapping"),
    ],
)
def test_bad_settings(metadata, message):
    with pytest.raises(SettingError, match=message):
        completed(metadata)


def test_every_document_fills_the_longest_window():
    metadata = {"context_length": [64, 128], "stride": 8, "min_tokens": 5}
    assert completed(metadata).min_tokens == 127
    without = completed({"stride": 8}, has_bos=False, tokens=33, after_window=1)
    assert without.context_length == (32,)


def test_what_decides_numbers_is_recorded_under_the_names_of_the_settings():
    recorded = completed({"context_length": [64, 128], "stride": 8}).recorded()
    assert sorted(recorded) == sorted(PerplexitySettings.decides_numbers())
    assert (recorded["context_length"], recorded["stride"], recorded["bos"]) == ([64, 128], 8, True)


@pytest.mark.parametrize("limit", [None, 2048])
def test_length_of_a_server_is_never_guessed(limit):
    with pytest.raises(ContextLengthError, match="max_length: not given, and a server does"):
        completed({}, tokens=limit, assumed=True)
    given = completed({"context_length": 1024}, tokens=limit, assumed=True)
    assert given.context_length == (1024,)
