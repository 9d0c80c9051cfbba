"""Files are there whole or not at all; a record ends with a newline and nothing else."""

import json
import os
import platform
import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resonance_vllm.common.errors import SettingError
from resonance_vllm.common.files import (
    expand_user,
    iter_json_lines,
    parse_json,
    read_json_object,
    write_json,
    write_text,
)


@pytest.mark.parametrize("where", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, where):
    file = tmp_path / "a.json"
    write_text(file, "old")

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        owner = os if where == "fsync" else type(file)
        patch.setattr(owner, where, full)
        with pytest.raises(OSError, match="No space"):
            write_text(file, "new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]
    write_text(file, "new\r\n")
    assert file.read_bytes() == b"new\r\n", "line ends stay as they are"


def test_temporary_names_are_unique_on_every_machine(tmp_path, monkeypatch):
    """Of two writers of one file, the second must not move the half-written file of the first."""
    names = []
    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setattr(Path, "replace", lambda temporary, path: names.append(temporary.name))
    for _ in range(10):
        write_text(tmp_path / "a.json", "whole")
    assert len(set(names)) == 10
    assert all(platform.node() in name for name in names)


def test_no_number_is_no_json(tmp_path):
    file = tmp_path / "a.json"
    with pytest.raises(ValueError, match="JSON"):
        write_json(file, {"loss": float("nan")})
    assert not list(tmp_path.iterdir())
    write_json(file, {"text": "ü"})
    assert read_json_object(file) == {"text": "ü"}


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff"])
def test_what_is_no_object_is_none(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    assert read_json_object(tmp_path / "a.json") is None
    assert read_json_object(tmp_path / "b.json") is None


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])) | st.just("a\u2028b\x85c\x0bd")))
def test_every_record_of_a_json_lines_file_comes_back(documents):
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in documents]
    for end in ("\n", "\r\n", "\n\n"):
        records = list(iter_json_lines(end.join(lines)))
        assert [json.loads(line)["text"] for _, line in records] == documents
    assert [number for number, _ in iter_json_lines("1\n\n \n2\n")] == [1, 4]


def test_a_disk_that_takes_no_more_is_named_with_the_file(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(OSError, match=r"too large: .*table\.md"):
            write_text(tmp_path / "table.md", "x" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


def test_files_invalid_json_and_unknown_user():
    with pytest.raises(SettingError, match=r"^x\.json: not JSON \(Expecting"):
        parse_json("{a: 1}", "x.json")
    assert str(expand_user("~no-such-user/x")) == "~no-such-user/x"
