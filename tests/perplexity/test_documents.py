"""Which documents count, and what is said about those that do not."""

import json
import logging
import platform
import re
import sysconfig
from pathlib import Path

import pytest

from leval_tasks.common.errors import DataError
from leval_tasks.common.metadata import PerplexitySettings, read_metadata
from leval_tasks.common.model import LengthLimit
from leval_tasks.perplexity.corpora import (
    consecutive_from_pysource,
    draw_from_pydocs,
    language_reference,
    library_files,
    read_corpus,
    read_same_text,
)
from leval_tasks.perplexity.documents import Document, draw, without_repeats
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


def test_draw_excludes_unusable_documents(caplog):
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


def read(folder, corpus="pg19", **settings):
    asked = SETTINGS.with_changes(data_dir=str(folder), **settings)
    return read_corpus(corpus, asked, characters, least=1, longest=None, size=4)


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
        read(tmp_path)


def test_the_real_documents(real_data: Path):
    documents, data = read(real_data, "govreport")
    assert len(documents) == 13  # of 14, one is a copy
    assert data["files"]["govreport.jsonl"].startswith("4ff8ee1b91924f5f")


def test_language_reference_ignores_order_of_topics():
    topics = {"b": "one two\n\nthree", "a": "one two", "d": "four\n", "e": " "}
    text, digest = language_reference(topics)
    assert text == "one two\n\nthree\n\nfour"
    assert language_reference(dict(reversed(topics.items()))) == (text, digest)


def test_without_repeats_excludes_seen_paragraphs():
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
    documents, _ = draw_from_pydocs(characters, settings, 999)
    assert "".join(each.text for each in documents) == whole[: 999 * len(documents)]
    assert len(whole) - 999 * len(documents) < 999
    with pytest.raises(DataError, match="fewer than one document of"):
        draw_from_pydocs(characters, settings, 10**7)


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


def test_default_length_leaves_room_for_generation():
    without = completed({"stride": 8}, bos=False, tokens=33, after_window=1)
    assert without.context_length == (32,)


LIBRARY = {
    "zlib_tools.py": "z = 1\n",
    "abc.py": "a = 1\n",
    "json/__init__.py": "j = 1\n",
    "json/tests/test_json.py": "excluded",
    "test/support.py": "excluded",
    "idlelib/idle_test/test_idle.py": "excluded",
    "idlelib/run.py": "i = 1\n",
    "encodings/cp1250.py": "excluded",
    "pydoc_data/topics.py": "excluded",
    "site-packages/numpy.py": "excluded",
    "config-3.11-x86_64-linux-gnu/python-config.py": "excluded",
    "_sysconfigdata__linux_x86_64-linux-gnu.py": "excluded",
    "lib-dynload/readme.txt": "excluded",
}


def test_library_files_order_and_exclusions(tmp_path):
    for name, source in LIBRARY.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)
    files = list(library_files(tmp_path))
    # what Linux distributions install separately comes last
    names = ["abc.py", "json/__init__.py", "zlib_tools.py", "idlelib/run.py"]
    assert [file.name for file in files] == names
    assert [file.text for file in files] == [f"# {name}\n\n{LIBRARY[name]}\n\n" for name in names]


def test_pysource_is_long_enough():
    """Eight documents of 131,072 tokens at four characters per token."""
    library = Path(sysconfig.get_path("stdlib"))
    characters_in_all = sum(len(file.text) for file in library_files(library))
    assert characters_in_all > 8 * 131_072 * 4 * 1.5


def test_pysource_documents_are_disjoint_and_of_equal_length():
    first, data = consecutive_from_pysource(characters, SETTINGS.with_changes(num_docs=3), 5000)
    further, again = consecutive_from_pysource(
        characters, SETTINGS.with_changes(num_docs=3, seed=1), 5000
    )
    assert [len(document.tokens) for document in first + further] == [5000] * 6
    assert [document.document_id for document in first + further] == [
        f"pysource-{number * 5000}" for number in range(6)
    ]
    text = "".join(document.text for document in first + further)
    library = Path(sysconfig.get_path("stdlib"))
    assert "".join(file.text for file in library_files(library)).startswith(text)
    assert data == again
    assert data["python_version"] == platform.python_version()
    assert len(data["files"]["Python standard library"]) == 64


def test_pysource_too_short_is_an_error():
    with pytest.raises(DataError, match=r"pysource has \d+ tokens, 0 documents of 1000000000"):
        consecutive_from_pysource(characters, SETTINGS, 10**9)


def words(text: str) -> tuple[list[int], list[int]]:
    """A token a word with the white space before it."""
    ends = [match.end() for match in re.finditer(r"\s*\S+\s*\Z|\s*\S+", text)]
    return list(range(len(ends))), ends


@pytest.mark.parametrize("corpus", ["pysource", "pydocs", "jsonl"])
def test_documents_of_characters_are_one_text_for_all_tokenizers(tmp_path, corpus):
    settings = {"num_docs": 3, "seed": 1}
    if corpus == "jsonl":
        file = tmp_path / "novels.jsonl"
        rows = [json.dumps({"text": f"{at} is a number. " * 100}) for at in range(5)]
        file.write_text("\n".join(rows))
        settings["file"] = str(file)
    asked = SETTINGS.with_changes(**settings)
    texts = {}
    for encode in (characters, words):
        documents, _ = read_same_text(corpus, asked, encode, least=4, characters=1000)
        scored = [document.scored_text(0, len(document.tokens)) for document in documents]
        texts[encode] = [(d.document_id, text) for d, text in zip(documents, scored, strict=True)]
        assert [len(text) for text in scored] == [1000] * 3
    assert texts[characters] == texts[words]


def test_no_tokenizer_decides_which_documents_are_read(tmp_path):
    file = tmp_path / "novels.jsonl"
    texts = ["one two " * 20, "a" * 160, "short", "three four " * 20]
    file.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    asked = SETTINGS.with_changes(file=str(file), num_docs=3)
    documents, _ = read_same_text("jsonl", asked, characters, least=4, characters=100)
    assert [document.document_id for document in documents] == ["novels-0", "novels-1", "novels-3"]
    with pytest.raises(DataError, match="document novels-1 has 1 of this model's tokens"):
        read_same_text("jsonl", asked, words, least=4, characters=100)
    with pytest.raises(DataError, match="max_characters=999: jsonl has no document"):
        read_same_text("jsonl", asked, words, least=4, characters=999)


def test_pysource_of_characters_is_consecutive():
    asked = SETTINGS.with_changes(num_docs=2)
    first, _ = read_same_text("pysource", asked, characters, least=4, characters=1000)
    third, _ = read_same_text(
        "pysource", asked.with_changes(seed=1), characters, least=4, characters=1000
    )
    names = [document.document_id for document in (*first, *third)]
    assert names == [f"pysource-{start}" for start in range(0, 4000, 1000)]
    assert first[0].text.startswith("# ")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "max_characters=100: mode truncate scores the first window alone"),
        ({"mode": "sliding", "max_tokens": 9}, "max_characters=100 and max_tokens=9: give one of"),
    ],
)
def test_characters_that_other_settings_contradict(settings, message):
    requested = SETTINGS.with_changes(max_characters=100, **settings)
    with pytest.raises(SettingError, match=message):
        complete_settings(requested, LengthLimit("HFLM", 64), bos=True)


def test_own_file_is_read_under_its_name(tmp_path):
    (tmp_path / "novels.jsonl").write_text('{"text": "abcdef"}\n{"text": "ghijkl"}\n')
    documents, data = read(tmp_path, "jsonl", file=str(tmp_path / "novels.jsonl"))
    assert [document.document_id for document in documents] == ["novels-0", "novels-1"]
    assert data["source"] == "file"
    assert len(data["files"]["novels.jsonl"]) == 64


@pytest.mark.parametrize(
    ("corpus", "file", "message"),
    [
        ("jsonl", None, "file: missing; name your documents"),
        ("jsonl", "nowhere.jsonl", "file: nowhere.jsonl does not exist"),
        ("pg19", "own.jsonl", "file: this task reads the corpus 'pg19'; use ppl_jsonl"),
        ("pydocs", "own.jsonl", "file: this task reads the corpus 'pydocs'"),
        ("pysource", "own.jsonl", "file: this task reads the corpus 'pysource'"),
    ],
)
def test_own_file_of_another_task_is_refused(tmp_path, corpus, file, message):
    with pytest.raises(SettingError, match=message):
        read(tmp_path, corpus, file=file)


def test_missing_corpus_names_the_folder_below(tmp_path):
    (tmp_path / "data" / "texts").mkdir(parents=True)
    (tmp_path / "data" / "texts" / "pg19.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(DataError, match=r"but the folder .*data/texts has it"):
        read(tmp_path)
