"""The tables of the report on controls are those of the raw results beside it."""

from pathlib import Path

import pytest
from scripts import script

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "docs" / "reports" / "posgen-controls.md"
CSV = REPORT.with_name("posgen_controls.csv")

controls = script("benchmarks/posgen_controls.py")

SETTINGS = list(controls.by_setting(controls.read_rows(CSV)))


@pytest.mark.parametrize("rows", SETTINGS, ids=lambda rows: f"{rows[0]['trained']}-{len(rows)}")
def test_each_table_is_made_from_the_raw_results(rows: list[dict[str, str]]) -> None:
    assert controls.table(rows) in REPORT.read_text(encoding="utf-8")


def test_every_row_is_a_model_under_a_table_once() -> None:
    rows = controls.read_rows(CSV)
    keys = {tuple(row[name] for name in controls.FIELDS[:-2]) for row in rows}
    assert len(keys) == len(rows)
    assert all(0 <= float(row[name]) <= 100 for row in rows for name in ("within", "past"))
