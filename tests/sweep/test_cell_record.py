"""Records of a cell's files: what is written is what is read, in order; what is damaged is None."""

import json
from pathlib import Path
from typing import Any

import pytest

from leval_harness.cell_record import CellRecord, DoneRecord, FailedRecord, Record, read_record

CELLS = Path(__file__).parents[1] / "golden" / "results" / "sweep"
SMALLEST: dict[str, Any] = {
    "schema_version": 1,
    "cell_id": "x",
    "model": {"name": "m"},
    "method": {"name": "r"},
    "tasks": ["t"],
}


@pytest.mark.parametrize(("name", "kind"), [("cell.json", CellRecord), ("done.json", DoneRecord)])
def test_files_of_cells_are_written_again_as_they_were(name: str, kind: type[Record]) -> None:
    paths = sorted(CELLS.rglob(name))
    assert paths
    for path in paths:
        record = read_record(kind, path)
        assert record is not None
        written = json.loads(json.dumps(record.written()))
        assert written == json.loads(path.read_text())
        assert list(written) == [field for field in kind.model_fields if field in written]


def test_missing_null_and_unknown_fields_are_borne() -> None:
    record = CellRecord.model_validate({**SMALLEST, "later": 1, "metadata": None, "limit": None})
    assert record.metadata == {}
    assert record.limit is None
    assert record.written() == {**SMALLEST, "tasks": ("t",), "limit": None}
    assert record.title == "m | r | t"


@pytest.mark.parametrize(
    "change",
    [
        {"cell_id": ""},
        {"cell_id": None},
        {"model": {}},
        {"model": "m"},
        {"tasks": []},
        {"tasks": "t"},
        {"seed": True},
        {"seed": 10**400},
        {"limit": -1},
        {"context_length": 1.5},
        {"schema_version": "1"},
        {"task_gen_kwargs": {"t": 3}},
    ],
)
def test_what_is_something_else_is_no_record(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "cell.json"
    path.write_text(json.dumps(SMALLEST))
    assert read_record(CellRecord, path) is not None
    path.write_text(json.dumps({**SMALLEST, **change}))
    assert read_record(CellRecord, path) is None


def test_a_failure_without_a_reason_is_still_one(tmp_path: Path) -> None:
    (tmp_path / "failed.json").write_text("{}")
    record = read_record(FailedRecord, tmp_path / "failed.json")
    assert record is not None
    assert (record.kind, record.attempts) == ("error", 1)
    assert read_record(FailedRecord, tmp_path / "nowhere.json") is None
