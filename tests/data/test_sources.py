"""One source for a whole run; missing, broken and altered files are named."""

import json
import logging
from pathlib import Path

import pytest
from click.testing import CliRunner

from leval_harness.cli import data as cli
from leval_tasks.closed.catalog import ENTRIES, task_named
from leval_tasks.closed.task import LEvalClosedTask
from leval_tasks.common import data
from leval_tasks.common.errors import DataError

ROW = {"instructions": ["Q?"], "outputs": ["A"], "input": "A text.", "evaluation": "exam"}
TOEFL, CODEU, QUALITY = (task_named(name) for name in ("toefl", "codeu", "quality"))


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    monkeypatch.delenv("LEVAL_DATA_DIR", raising=False)


def write(folder: Path, name: str, *lines: object) -> data.Source:
    text = "".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines)
    (folder / name).write_text(text, encoding="utf-8")
    return data.Source("data_dir", str(folder))


def test_order_of_sources(tmp_path, monkeypatch):
    assert data.resolve_source(None) == data.Source("hub", "L4NLP/LEval")
    monkeypatch.setenv("LEVAL_DATA_DIR", str(tmp_path))
    assert data.resolve_source(None).path == str(tmp_path)
    assert data.resolve_source("sample").kind == "sample"


def test_folders_that_cannot_be_used(tmp_path):
    with pytest.raises(DataError, match=r"data_dir '/nowhere' does not exist.*data fetch"):
        data.resolve_source("/nowhere")
    (tmp_path / "f").write_text("")
    with pytest.raises(DataError, match="is not a folder"):
        data.resolve_source(str(tmp_path / "f"))


def test_missing_file_names_tasks_that_can_run(tmp_path):
    write(tmp_path, "tpo.jsonl", ROW)
    write(tmp_path, "gsm100.jsonl", ROW)
    with pytest.raises(DataError) as error:
        data.load(data.Source("data_dir", str(tmp_path)), CODEU)
    assert "has no codeU.jsonl, which leval_closed_codeu reads" in str(error.value)
    assert "can run on this data: leval_closed_gsm, leval_closed_toefl." in str(error.value)


@pytest.mark.parametrize("task", ENTRIES, ids=lambda task: task.key)
def test_title_names_a_file_that_is_not_published(task, tmp_path):
    own = data.load(write(tmp_path, task.file, ROW), task)
    marked = data.title_of(task.title, own.described())
    assert marked == f"{task.title} [{task.file}, SHA-256 {own.sha256[:12]}…]"
    config = {"task": task.name, "metadata": {"data_dir": str(tmp_path)}}
    assert LEvalClosedTask(config).config.task_alias == marked
    for known in ({"verified": True}, {"sample": True}):
        assert data.title_of(task.title, {**own.described(), **known}) == task.title
    from_hub = {**own.described(), "source": "hub"}
    assert data.title_of(task.title, from_hub) == marked


def test_title_of_a_corpus_names_its_file(tmp_path):
    """Whatever file has a corpus' name: no digest of a published one is known."""
    described = {"source": "data_dir", "sample": False, "files": {"pg19.jsonl": "0" * 64}}
    assert data.title_of("ppl_pg19", described) == "ppl_pg19 [pg19.jsonl, SHA-256 000000000000…]"
    described |= {"source": "pydoc_data.topics"}
    assert data.title_of("ppl_pydocs", described) == "ppl_pydocs"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{'instructions': 1}", "line 2: not JSON"),
        ("[]", "line 2: a JSON object is needed, not list"),
        *(
            ({k: v for k, v in ROW.items() if k != name}, f"line 2: {name}: missing")
            for name in ("instructions", "outputs", "input")
        ),
        (
            {**ROW, "instructions": "Q?"},
            r"line 2: instructions: Input should be a valid .* \('Q\?' given",
        ),
        ({**ROW, "outputs": [1]}, "line 2: outputs.0: Input should be a valid string"),
        ({**ROW, "outputs": ["A", "B"]}, "line 2: 1 instructions and 2 outputs"),
        ({**ROW, "instructions": [], "outputs": []}, "line 2: instructions: .*at least 1"),
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


@pytest.mark.parametrize("task", [each for each in ENTRIES if each.sha256])
def test_published_files_are_verified(real_data, task, caplog):
    file = data.load(data.resolve_source(str(real_data / "leval/closed")), task)
    assert file.verified
    assert not caplog.records


def test_another_content_is_one_warning(tmp_path, caplog):
    source = write(tmp_path, "quality.jsonl", ROW)
    write(tmp_path, "codeU.jsonl", ROW)  # no copy of it was available, so nothing is known of it
    with caplog.at_level(logging.WARNING):
        assert not any(data.load(source, task).verified for task in (QUALITY, CODEU))
    (said,) = [each.getMessage() for each in caplog.records]
    assert "quality.jsonl is not the published file" in said


def test_verify_takes_a_folder(tmp_path):
    write(tmp_path, "tpo.jsonl", ROW)
    write(tmp_path, "codeU.jsonl", ROW)
    done = CliRunner().invoke(cli.data, ["verify", str(tmp_path), "--json"])
    rows = {row["file"]: row for row in json.loads(done.stdout)}
    assert done.exit_code == 1
    assert {name for name, row in rows.items() if row["ok"]} == {"codeU.jsonl"}
    assert rows["quality.jsonl"]["state"].startswith("MISSING")
    assert rows["tpo.jsonl"]["state"] == "FAILED: not the published file"


def test_the_sample_is_marked():
    file = data.load(data.resolve_source("sample"), TOEFL)
    assert file.described()["sample"]
    assert list(file.described()["files"].values()) == [file.sha256]


@pytest.mark.parametrize("below", ["LEval/Exam", "LEval-data/Closed-ended-tasks", "inner"])
def test_missing_file_names_the_folder_below(tmp_path, below):
    """As of `hf download --local-dir`, of a clone, and of an unpacked archive."""
    folder = tmp_path / below
    folder.mkdir(parents=True)
    write(folder, "tpo.jsonl", ROW)
    with pytest.raises(DataError) as error:
        data.load(data.resolve_source(str(tmp_path)), TOEFL)
    assert f"but the folder {folder} has it: give that folder" in str(error.value)
    assert data.load(data.resolve_source(str(folder)), TOEFL).records
