"""One source for a whole run; missing, broken and altered files are named."""

import dataclasses
import json
import os
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from leval_harness.cli import documents as cli
from leval_tasks import data
from leval_tasks.closed.catalog import task_named
from leval_tasks.closed.definition import PublishedFile
from leval_tasks.errors import DataError

NOBODY = 65534
ROW = {"instructions": ["Q?"], "outputs": ["A"], "input": "A text.", "evaluation": "exam"}

TOEFL, CODEU, QUALITY = (task_named(name) for name in ("toefl", "codeu", "quality"))


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    monkeypatch.delenv("LEVAL_DATA_DIR", raising=False)


def write(folder: Path, name: str, *lines: object) -> data.Source:
    text = "".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines)
    (folder / name).write_text(text, encoding="utf-8")
    return data.Source("data_dir", str(folder), own=True)


def test_order_of_sources(tmp_path, monkeypatch):
    assert data.resolve_source({}) == data.Source("hub", "L4NLP/LEval")
    monkeypatch.setenv("LEVAL_DATA_DIR", str(tmp_path))
    assert data.resolve_source({}).path == str(tmp_path)
    assert data.resolve_source({"data_dir": "sample"}).kind == "sample"


def test_sample_is_never_chosen_by_itself(tmp_path):
    source = data.resolve_source({"data_dir": str(tmp_path)})
    with pytest.raises(DataError, match=r"has no tpo\.jsonl"):
        data.load(source, TOEFL)


def test_folder_that_does_not_exist():
    with pytest.raises(DataError, match=r"data_dir '/nowhere' does not exist.*data fetch"):
        data.resolve_source({"data_dir": "/nowhere"})


def test_folder_that_is_a_file(tmp_path):
    (tmp_path / "f").write_text("")
    with pytest.raises(DataError, match="is a file, not a folder"):
        data.resolve_source({"data_dir": str(tmp_path / "f")})


@pytest.fixture
def without_rights():
    """Root may read everything; nobody may not."""
    root = os.geteuid() == 0
    if root:
        os.setresuid(NOBODY, NOBODY, 0)
    yield
    if root:
        os.setresuid(0, 0, 0)


def test_folder_without_permission(without_rights):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0)
        with pytest.raises(DataError, match="cannot be read"):
            data.resolve_source({"data_dir": folder})
        Path(folder).chmod(0o700)


def test_unreadable_file(tmp_path):
    (tmp_path / "tpo.jsonl").mkdir()
    with pytest.raises(DataError, match=r"has no tpo\.jsonl"):
        data.load(data.Source("data_dir", str(tmp_path)), TOEFL)
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        data.read_bytes(tmp_path / "tpo.jsonl")


def test_missing_file_names_the_tasks_that_can_run(tmp_path):
    write(tmp_path, "tpo.jsonl", ROW)
    write(tmp_path, "gsm100.jsonl", ROW)
    with pytest.raises(DataError) as error:
        data.load(data.Source("data_dir", str(tmp_path)), CODEU)
    assert "has no codeU.jsonl, which leval_closed_codeu reads" in str(error.value)
    assert "can run on this data: leval_closed_gsm, leval_closed_toefl." in str(error.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{'instructions': 1}", "line 2: not JSON"),
        ("[]", "line 2: a JSON object is needed, not list"),
        *(
            (
                {k: v for k, v in ROW.items() if k != field},
                f"line 2: {field}: missing",
            )
            for field in ROW
        ),
        (
            {**ROW, "instructions": "Q?"},
            "line 2: instructions: 'Q\\?' is not allowed; allowed: a list",
        ),
        ({**ROW, "outputs": [1]}, "line 2: outputs.0: 1 is not allowed; allowed: text"),
        ({**ROW, "outputs": ["A", "B"]}, "line 2: 1 instructions and 2 outputs"),
        (
            {**ROW, "instructions": [], "outputs": []},
            r"line 2: instructions: \[\] is not allowed; allowed: at least 1",
        ),
        ({**ROW, "input": " \n"}, "line 2: the document .*is empty"),
        ({**ROW, "input": None}, "line 2: input: None is not allowed; allowed: text"),
    ],
)
def test_bad_line(tmp_path, line, message):
    source = write(tmp_path, "tpo.jsonl", ROW, line)
    with pytest.raises(DataError, match=rf"tpo\.jsonl, {message}"):
        data.load(source, TOEFL)


def test_empty_file_and_other_encoding(tmp_path):
    source = write(tmp_path, "tpo.jsonl")
    with pytest.raises(DataError, match=r"tpo\.jsonl is empty"):
        data.load(source, TOEFL)
    (tmp_path / "tpo.jsonl").write_bytes(json.dumps(ROW).encode() + b"\n\xff\n")
    with pytest.raises(DataError, match=r"tpo\.jsonl, line 2: not UTF-8"):
        data.load(source, TOEFL)


def test_line_separators_inside_strings_do_not_end_a_record(tmp_path):
    text = json.dumps({**ROW, "input": "one\u2028two\x85three"}, ensure_ascii=False)
    file = data.load(write(tmp_path, "tpo.jsonl", text), TOEFL)
    assert [record.document for record in file.records] == ["one\u2028two\x85three"]


@pytest.mark.parametrize(
    "key", ["coursera", "gsm", "quality", "toefl", "sfiction", "topic_retrieval"]
)
def test_published_files_are_verified(real_data, key):
    task = task_named(key)
    source = data.resolve_source({"data_dir": str(real_data / "leval" / "closed")})
    file = data.load(source, task)
    assert file.verified
    assert (len(file.records), file.questions) == (task.file.documents, task.file.questions)


def test_file_without_a_known_hash_is_known_by_its_counts(tmp_path):
    source = dataclasses.replace(write(tmp_path, "new.jsonl", ROW), own=False)
    file = PublishedFile(name="new.jsonl", documents=1, questions=1)
    assert not data.load(source, dataclasses.replace(TOEFL, file=file)).verified
    other = dataclasses.replace(TOEFL, file=dataclasses.replace(file, questions=2))
    with pytest.raises(DataError, match="published: 1 and 2"):
        data.load(source, other)


def test_git_blob_identifies_the_file_without_a_sha256():
    # `printf 'hello\n' | git hash-object --stdin`
    blob = "ce013625030ba8dba906f756967f9e9ca394464a"
    file = PublishedFile(name="f", documents=1, questions=1, git_blob=blob)
    assert file.is_same(b"hello\n")
    assert not file.is_same(b"hello")


@pytest.mark.parametrize("damage", ["truncated", "altered"])
def test_damaged_file_is_named_and_other_files_go_on(real_data, tmp_path, damage):
    folder = real_data / "leval" / "closed"
    content = (folder / "quality.jsonl").read_bytes()
    lines = content.split(b"\n")
    damaged = b"\n".join(lines[:7]) if damage == "truncated" else content.replace(b"the", b"teh", 1)
    (tmp_path / "quality.jsonl").write_bytes(damaged)
    (tmp_path / "tpo.jsonl").write_bytes((folder / "tpo.jsonl").read_bytes())
    with pytest.raises(DataError, match=r"quality\.jsonl is not the published file"):
        data.load(data.resolve_source({"data_dir": str(tmp_path)}), QUALITY)
    own = data.resolve_source({"data_dir": str(tmp_path), "own_data": True})
    assert not data.load(own, QUALITY).verified
    result = CliRunner().invoke(cli.data, ["verify", "--data-dir", str(tmp_path), "--json"])
    rows = {row["file"]: row for row in json.loads(result.stdout)}
    assert result.exit_code == 1
    assert rows["tpo.jsonl"]["ok"]
    assert "truncated or altered" in rows["quality.jsonl"]["problem"]


def test_sample_file_is_identified_and_marked():
    source = data.resolve_source({"data_dir": "sample"})
    first, second = data.load(source, TOEFL), data.load(source, TOEFL)
    assert first.sha256 == second.sha256
    assert first.described()["sample"]
    other = PublishedFile(name="other.jsonl", documents=1, questions=1)
    with pytest.raises(
        DataError, match=r"sample.* has no other\.jsonl, which leval_closed_toefl reads"
    ):
        data.load(source, dataclasses.replace(TOEFL, file=other))


def test_list_says_what_is_missing(tmp_path):
    write(tmp_path, "tpo.jsonl", ROW)
    result = CliRunner().invoke(cli.data, ["list", "--data-dir", str(tmp_path), "--json"])
    present = {row["file"]: row["present"] for row in json.loads(result.stdout)["files"]}
    assert present["tpo.jsonl"]
    assert not present["codeU.jsonl"]


def test_verify_says_how_much_texts_repeat(tmp_path):
    words = " ".join(f"w{at}" for at in range(3000))
    texts = [f"{words} {' '.join(words.split()[:1000])}", words]
    rows = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (tmp_path / "pg19.jsonl").write_text(rows)
    (tmp_path / "corpora").mkdir()
    (tmp_path / "corpora" / "govreport.jsonl").write_text(json.dumps({"text": words}) + "\n")
    found = CliRunner().invoke(cli.data, ["verify", "--data-dir", str(tmp_path), "--json"])
    assert found.exit_code == 0
    rows = {row["file"]: row for row in json.loads(found.stdout)}
    repeated = (1000 - 31) / (4000 - 31) * 4000
    assert rows["pg19.jsonl"]["repeated_share"] == pytest.approx(repeated / 7000, abs=1e-6)
    assert rows["govreport.jsonl"]["repeated_share"] == 0
    assert "pg19.jsonl: 14.0% of the words" in found.stderr
    assert "govreport" not in found.stderr
    plain = CliRunner().invoke(cli.data, ["verify", "--data-dir", str(tmp_path)])
    assert "2 texts, 14.0% repeated" in plain.stdout
    (tmp_path / "pg19.jsonl").write_text("{")
    damaged = CliRunner().invoke(cli.data, ["verify", "--data-dir", str(tmp_path)])
    assert damaged.exit_code == 1
