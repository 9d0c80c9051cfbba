"""A cell's folder is believed only as a whole: marker, identity, and every hash."""

import io
import json
import os
import re
from pathlib import Path

import pytest

from leval_harness.cell_record import CellRecord, DoneRecord, cell_id
from leval_harness.sweep.cell_files import clear_attempt, log_tail, publish, relabel, why_not_done
from leval_harness.sweep.launch import judge
from resonance_vllm.files import file_sha256, read_object, write_json

IDENTITY = {"model": {"files": {"config.json": "00"}}, "seed": 0}
ID = cell_id(IDENTITY)
LATE: io.TextIOBase = io.StringIO()


@pytest.fixture
def cell(tmp_path: Path) -> Path:
    """A finished cell with one results file and one samples file."""
    folder = tmp_path / ID
    partial = folder / "partial-1"
    partial.mkdir(parents=True)
    write_json(folder / "cell.json", {"cell_id": ID, "identity": IDENTITY})
    global LATE
    LATE = (folder / "log.txt").open("w")
    LATE.write("begun\n")
    LATE.flush()
    (partial / "results_2026.json").write_text('{"results": {}}')
    (partial / "samples_t_2026.jsonl").write_text('{"doc_id": 0}\n')
    publish(folder, partial, DoneRecord(schema_version=1, cell_id=ID, seconds=1.0))
    return folder


def test_a_published_cell_is_done(cell: Path) -> None:
    assert why_not_done(cell, ID) is None
    assert sorted(path.name for path in cell.iterdir()) == [
        "cell.json",
        "done.json",
        "log.txt",
        "results_2026.json",
        "samples_t_2026.jsonl",
    ]


def test_every_single_byte_of_a_result_counts(cell: Path) -> None:
    path = cell / "samples_t_2026.jsonl"
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        assert why_not_done(cell, ID) == "samples_t_2026.jsonl was altered after it was written"
        path.write_bytes(whole[:position])
        assert why_not_done(cell, ID) is not None


def test_a_marker_cut_anywhere_is_no_marker(cell: Path) -> None:
    whole = (cell / "done.json").read_bytes().rstrip()
    for length in range(len(whole)):
        (cell / "done.json").write_bytes(whole[:length])
        assert why_not_done(cell, ID) == "done.json is not valid"


def test_the_marker_has_the_hash_of_everything_else(cell: Path) -> None:
    named = json.loads((cell / "done.json").read_text())["files"]
    assert named == {
        path.name: file_sha256(path) for path in cell.iterdir() if path.name != "done.json"
    }
    assert set(named) == {"cell.json", "log.txt", "results_2026.json", "samples_t_2026.jsonl"}


def test_what_engines_say_later_is_no_part_of_a_finished_cell(cell: Path) -> None:
    """A process that still has the log open writes into a file that is no more."""
    assert why_not_done(cell, ID) is None
    LATE.write("shutting down\n")
    LATE.flush()
    assert why_not_done(cell, ID) is None


def test_new_labels_are_written_with_their_hash(cell: Path) -> None:
    record = read_object(cell / "cell.json") or {}
    asked = {"schema_version": 1, "model": {"name": "m"}, "method": {"name": "new"}, "tasks": ["t"]}
    relabel(cell, CellRecord.model_validate({**record, **asked}))
    named = json.loads((cell / "done.json").read_text())["files"]
    assert named["cell.json"] == file_sha256(cell / "cell.json")
    assert (read_object(cell / "cell.json") or {})["method"] == {"name": "new"}
    before = (cell / "done.json").read_bytes()
    relabel(cell, CellRecord.model_validate({**record, **asked}))
    assert (cell / "done.json").read_bytes() == before


def test_a_changed_identity_is_another_cell(cell: Path) -> None:
    write_json(cell / "cell.json", {"cell_id": ID, "identity": {**IDENTITY, "seed": 1}})
    assert why_not_done(cell, ID) == "cell.json does not hash to the cell's id"
    assert why_not_done(cell, "another") == "done.json belongs to another cell or schema"


@pytest.mark.parametrize(
    "files", [{}, [], None, {"../../etc/passwd": "0"}, {"missing.json": "0"}, {"": "0"}]
)
def test_a_marker_that_names_nothing_or_something_elsewhere(cell: Path, files: object) -> None:
    marker = read_object(cell / "done.json") or {}
    write_json(cell / "done.json", {**marker, "files": files})
    assert re.search("names no files|is missing|is not valid|altered", str(why_not_done(cell, ID)))


@pytest.mark.parametrize("content", [b"", b"[]", b"nul", b"\xff", b"[" * 100_000, b'{"a": 1'])
def test_what_is_no_json_object_reads_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.json").write_bytes(content)
    assert read_object(tmp_path / "x.json") is None


def test_a_failing_write_leaves_the_old_file_and_no_rubbish(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"a": float("nan")})
    assert read_object(path) == {"a": 1}
    assert os.listdir(tmp_path) == ["x.json"]  # noqa: PTH208


def test_clearing_removes_an_attempt_and_nothing_else(cell: Path) -> None:
    outside = cell.parent / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    (cell / "partial-link").symlink_to(outside)
    (cell / "partial-9").mkdir()
    (cell / "partial-9" / "half").write_text("x")
    (cell / "log.txt").write_text("log")
    (cell / ".done.json.77").write_text("{")
    clear_attempt(cell)
    left = {path.name for path in cell.iterdir()}
    assert left == {"cell.json", "log.txt", "partial-link"}
    assert (outside / "precious").exists()


def test_a_cell_without_a_marker_failed_or_was_not_run(cell: Path) -> None:
    (cell / "done.json").unlink()
    clear_attempt(cell)  # there is no marker to remove
    assert why_not_done(cell, ID) == "not run yet"
    (cell / "failed.json").write_text("{}")
    assert why_not_done(cell, ID) == "failed"


def test_the_tail_of_a_log_takes_a_progress_bar_at_its_last_state(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_bytes(b"one\n\n 0%\r 50%\r100%\nlast \xff\n")
    assert log_tail(tmp_path, 2) == ["100%", "last \ufffd"]
    assert log_tail(tmp_path / "nowhere") == []


def test_a_log_does_not_steer_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("\x1b]0;title\x07\x1b[2J\tfree\u202e\n")
    assert log_tail(tmp_path) == [r"\x1b]0;title\x07\x1b[2J\tfree\u202e"]


def test_a_failure_then_success_leaves_no_failure_note(tmp_path: Path) -> None:
    folder = tmp_path / ID
    (folder / "partial-1").mkdir(parents=True)
    (folder / "partial-1" / "results_1.json").write_text("{}")
    write_json(folder / "failed.json", {"kind": "oom"})
    write_json(folder / "cell.json", {"identity": IDENTITY})
    publish(folder, folder / "partial-1", DoneRecord(schema_version=1, cell_id=ID))
    assert not (folder / "failed.json").exists()
    assert json.loads((folder / "done.json").read_text())["files"].keys() == {
        "results_1.json",
        "cell.json",
    }


@pytest.mark.parametrize(
    ("code", "name"), [(-15, "SIGTERM"), (-40, "signal 40"), (-64, "SIGRTMAX")]
)
def test_a_cell_that_any_signal_ended_has_a_reason(code: int, name: str) -> None:
    kind, reason = judge(code, None, False, ["hm"], "no results")
    assert (kind, reason) == ("killed", f"its process was ended by {name}; last output: hm")
