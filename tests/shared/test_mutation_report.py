"""The table of docs/reports/mutation.md is made of the committed rows."""

import csv
from pathlib import Path

import pytest

REPORTS = Path(__file__).parents[2] / "docs" / "reports"
REPORT = (REPORTS / "mutation.md").read_text(encoding="utf-8")


def rows(name):
    with (REPORTS / "data" / "mutation" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


OLD, NEW, SURVIVORS = rows("old.csv"), rows("new.csv"), rows("survivors.csv")
AREAS = list(dict.fromkeys(row["area"] for row in OLD))


KEY = ("module", "function", "line", "column", "operator", "variant")
PLACE = ("area", "function", "operator", "column", "variant", "before")


def named(some, names):
    """The rows' fields that name a mutant."""
    return [tuple(row[name] for name in names) for row in some]


def killed_now():
    """Mutants of the new list that its suite killed, or a test that was written since."""
    since = {*named((row for row in SURVIVORS if row["verdict"] == "killed since"), KEY)}
    return [row for row in NEW if row["outcome"] == "killed" or named([row], KEY)[0] in since]


@pytest.mark.parametrize("area", AREAS)
def test_the_table_counts_the_rows(area):
    old, new, now = ([r for r in some if r["area"] == area] for some in (OLD, NEW, killed_now()))
    programs = [row for row in new if row["outcome"] != "no program"]
    killed = [row for row in new if row["outcome"] == "killed"]
    same = sum(r["area"] == area and r["verdict"] == "equivalent" for r in SURVIVORS)
    share = 100 * len(now) / (len(programs) - same)
    both = {*named(old, PLACE)} & {*named(programs, PLACE)}
    before = {*named((row for row in old if row["outcome"] == "killed"), PLACE)} & both
    common = [len({*named(some, PLACE)} & both) for some in (killed, now)]
    cells = (area, len(programs), same, len(killed), len(now), f"{share:.0f} %",
             len(both), len(before), *common)  # fmt: skip
    assert f"| {' | '.join(map(str, cells))} |" in REPORT
    assert common[1] >= len(before)
    assert share >= 90


def test_each_survivor_is_listed_once_with_a_reason():
    survived = named((row for row in NEW if row["outcome"] == "survived"), KEY)
    assert sorted(survived) == sorted(named(SURVIVORS, KEY))
    assert len(survived) == len({*survived})
    for row in SURVIVORS:
        assert row["verdict"] in ("equivalent", "killed since", "open")
        assert len(row["reason"]) > 10
        if row["verdict"] != "killed since":
            assert f"`{row['after']}`" in REPORT
            assert row["reason"] in REPORT
