"""Which documents count, and what is said about those that do not."""

import logging
import re
from pathlib import Path

import pytest

from leval_tasks.common.errors import DataError
from leval_tasks.common.metadata import PerplexitySettings, read_metadata
from leval_tasks.common.model import LengthLimit
from leval_tasks.perplexity.documents import (
    Document,
    draw,
    draw_pydocs,
    language_reference,
    read_corpus,
    without_repeats,
)
from leval_tasks.perplexity.task import complete_settings
from resonance_vllm.common.errors import SettingError

SETTINGS = PerplexitySettings(context_length=(4,), mode="truncate", stride=1)


def characters(text: str) -> tuple[list[int], list[int]]:
    """One token a character."""
    return [ord(c) for c in text], list(range(1, len(text) + 1))


def drawn(contents, **settings):
    documents = [Document(str(at), content) for at, content in enumerate(contents)]
    asked = SETTINGS.with_changes(**settings)
    return draw(documents, characters, asked, 3, asked.max_tokens)


def test_what_cannot_be_used_is_left_out_and_said(caplog):
    with caplog.at_level(logging.WARNING):
        documents = drawn(["abcd", "", " abcd\n", "ab", "efgh"])
    assert [document.document_id for document in documents] == ["0", "4"]
    assert "2 of num_docs=50 documents are read" in caplog.text
    with pytest.raises(DataError, match=r"none of 2 documents has the 3 tokens.*longest has 2"):
        drawn(["a", "ab"])


def test_the_draw_depends_on_the_seed_alone_and_keeps_the_order():
    contents = [f"text {i}" for i in range(40)]

    def names(seed: int) -> list[str]:
        return [each.document_id for each in drawn(contents, num_docs=5, seed=seed)]

    assert names(1) == names(1) == sorted(names(1), key=int)
    counts = [sum(str(at) in names(seed) for seed in range(100)) for at in range(0, 40, 5)]
    assert min(counts) > 2  # 12.5 on average: no document is out of reach
    assert max(counts) < 30


def test_scored_text_is_the_text_of_the_scored_tokens():
    (document,) = drawn(["abcdefgh"], max_tokens=6)
    assert document.tokens == [ord(c) for c in "abcdef"]
    assert document.scored_text(0, 6) == "abcdef"
    assert document.scored_text(1, 4) == "bcd"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text": "a"}\n{broken\n', "line 2: not JSON"),
        (b'{"body": "a"}\n', "line 1: text: missing"),
        (None, r"has no pg19.jsonl, one JSON object"),
    ],
)
def test_damaged_and_missing_files(tmp_path: Path, content, message):
    if content is not None:
        (tmp_path / "pg19.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_corpus("pg19", str(tmp_path))


def test_the_real_documents(real_data: Path):
    found, about = read_corpus("govreport", str(real_data))
    assert len(found) == 14
    assert about["files"]["govreport.jsonl"].startswith("4ff8ee1b91924f5f")
    assert len(draw(found, characters, SETTINGS, 1, None)) == 13  # one is a copy


def test_the_reference_is_the_same_whatever_the_order_of_its_topics():
    topics = {"b": "one two\n\nthree", "a": "one two", "d": "four\n", "e": " "}
    text, digest = language_reference(topics)
    assert text == "one two\n\nthree\n\nfour"
    assert language_reference(dict(reversed(topics.items()))) == (text, digest)


def test_paragraphs_that_were_mostly_seen_are_left_out():
    first = "the quick brown fox jumps over the lazy dog in the old garden"
    new = "a text that shares no sequence of eight words with any other paragraph"
    longer = f"{first} and then sleeps there until the late evening of that very long day"
    assert without_repeats([first, new, first, "short", "short", " "]) == [first, new, "short"]
    assert without_repeats([first, longer]) == [first, longer]
    assert without_repeats([longer, first]) == [longer]


def test_the_language_reference_repeats_no_passage():
    """A model would predict it from its first copy, more than a thousand words before."""
    words = re.compile(r"\w+|[^\w\s]+").findall(language_reference()[0])
    first, repeated = {}, 0
    for at in range(len(words) - 31):
        repeated += at - first.setdefault(tuple(words[at : at + 32]), at) > 1000
    assert repeated < 0.01 * len(words)
    assert len(words) > 50_000


def test_pieces_of_the_reference_are_equal_and_do_not_overlap():
    whole = language_reference()[0]
    settings = SETTINGS.with_changes(num_docs=10**6)
    documents, _ = draw_pydocs(characters, settings, 999)
    assert "".join(each.text for each in documents) == whole[: 999 * len(documents)]
    assert len(whole) - 999 * len(documents) < 999
    with pytest.raises(DataError, match="fewer than one document of"):
        draw_pydocs(characters, settings, 10**7)


def completed(metadata, bos=True, tokens=None, **about):
    given = read_metadata(PerplexitySettings, metadata)
    return complete_settings(given, LengthLimit("api", tokens, **about), bos=bos)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"stride": 64}, "stride: 64 is not allowed; allowed: 1 to 63"),
        ({"max_tokens": 62}, "max_tokens: 62 is not allowed; allowed: at least 63"),
        (
            {"context_length": 1},
            "context_length: Input should be greater than or equal to 2",
        ),
    ],
)
def test_bad_settings(metadata, message):
    with pytest.raises(SettingError, match=message):
        completed({"context_length": 64, "stride": 8} | metadata)


def test_the_length_is_what_the_model_reads_less_what_it_generates():
    without = completed({"stride": 8}, bos=False, tokens=33, after_window=1)
    assert without.context_length == (32,)
