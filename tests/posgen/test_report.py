"""The tables of docs/reports/posgen.md are those of the committed rows of models."""

from pathlib import Path

import pytest
from scripts import script

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "docs" / "reports" / "posgen.md"

report = script("benchmarks/posgen_report.py")
controls = script("benchmarks/posgen_controls.py")
marked = script("benchmarks/generated.py").marked


@pytest.mark.parametrize("name", report.TABLES)
def test_each_table_is_made_from_the_rows(name: str) -> None:
    made = report.TABLES[name]()
    assert made.count("\n") >= 4
    assert marked(name, made) in REPORT.read_text(encoding="utf-8")


def test_the_table_of_the_paper_is_made_from_the_rows() -> None:
    text = report.PAPER.read_text(encoding="utf-8")
    assert marked("integers", report.integers()) in text


@pytest.mark.long  # another version of matplotlib may draw other paths
@pytest.mark.parametrize("name", ["posgen_crossed.svg", "posgen_small_position.svg"])
def test_each_figure_is_drawn_from_the_rows(name: str, tmp_path: Path) -> None:
    report.draw(tmp_path)
    assert (tmp_path / name).read_bytes() == (report.FIGURES / name).read_bytes()


@pytest.mark.parametrize(
    ("name", "fields"),
    [("models", report.FIELDS), ("controls", controls.FIELDS), ("positions", report.FIELDS[7:])],
)
def test_every_row_is_a_model_and_a_test_once(name: str, fields: tuple[str, ...]) -> None:
    rows = report.read(name)
    assert len({tuple(row[key] for key in fields[:-2]) for row in rows}) == len(rows) > 10
    assert all(0 <= float(row[key]) <= 100 for row in rows for key in ("within", "past"))


def test_accuracies_by_position_are_of_the_models_in_the_table() -> None:
    """Their means are the accuracies within and past the trained length, 60 and 192 numbers."""
    known = {
        tuple(row[key] for key in ("subtask", "seed", "trained", "tested")): row
        for row in report.read("models")
        if row["setting"] == "small"
    }
    for row in report.read("positions"):
        shares = [float(share) for share in row["by_position"].split()]
        same = known[tuple(row[key] for key in ("subtask", "seed", "trained", "tested"))]
        for name, part in (("within", shares[:60]), ("past", shares[60:])):
            assert row[name] == same[name]
            assert sum(part) / len(part) == pytest.approx(float(row[name]), abs=0.01)
