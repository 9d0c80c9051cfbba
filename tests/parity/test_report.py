"""The tables of docs/reports/diff.md are made of the recorded results."""

import csv
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scripts import script

ROOT = Path(__file__).parents[2]
marked = script("benchmarks/generated.py").marked
REPORT = (ROOT / "docs" / "reports" / "diff.md").read_text(encoding="utf-8")
DATA = ROOT / "docs" / "reports" / "data" / "diff"


@pytest.fixture(scope="module")
def cases():
    return script("benchmarks/diff_cases.py")


def test_the_table_of_cases_is_that_of_their_results(cases):
    found = cases.cases()
    assert len(found) >= 12
    for name, made in (("cases", cases.table(found)), ("prices", cases.prices(found))):
        assert made.count("\n") >= 5
        assert marked(name, made) in REPORT


def test_the_sentences_of_a_case_are_those_of_its_command(cases):
    for each in cases.cases():
        assert each["command"].startswith("leval-harness diff ")
        assert each["result"]["b"]["text"] in each["command"].replace("'", "")


@pytest.mark.parametrize("name", ["fp8_kv_error_rates", "fp8_kv_error_rates_seed_2026"])
def test_error_rates_are_those_of_the_simulation(name):
    rates = json.loads((ROOT / f"benchmarks/data/{name}.json").read_text(encoding="utf-8"))
    assert len(rates) >= 13
    for row in rates:
        assert row["runs"] >= 2000
        shares = [f"{100 * row[name]:.1f} %" for name in ("same", "worse", "better", "undecided")]
        cells = [row["scenario"], str(row["texts"]), *shares, f"{row['read']:.1f}"]
        assert f"| {' | '.join(cells)} |\n" in REPORT
        if row["scenario"].startswith("none"):
            assert row["worse"] <= 0.05
            assert row["better"] <= 0.05
        if row["scenario"].startswith("0.02"):
            assert row["same"] == 0
            assert row["better" if "better" in row["scenario"] else "worse"] >= 0.95


def test_what_pairing_removes_is_that_of_the_losses():
    with (DATA / "fp8_kv_losses.csv").open(encoding="utf-8") as file:
        rows = [(float(row["default"]), float(row["fp8_e4m3"])) for row in csv.DictReader(file)]
    losses = np.array(rows)
    errors = losses.std(axis=0, ddof=1) / np.sqrt(len(losses))
    paired = (losses[:, 1] - losses[:, 0]).std(ddof=1) / np.sqrt(len(losses))
    page = (ROOT / "docs" / "reference" / "diff.md").read_text(encoding="utf-8")
    for number in (paired, np.hypot(*errors)):
        assert f"{number:.4f}" in page
        assert f"{number:.4f}" in REPORT


def test_setups_that_must_read_alike_never_fail():
    with (DATA / "null_pairs.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert Counter(row["kind"] for row in rows) == {"null pair": 40, "gate": 10}
    counts = Counter((row["kind"], row["verdict"]) for row in rows)
    assert {verdict for kind, verdict in counts} <= {"same", "undecided"}
    assert counts["gate", "same"] == 10
    assert f"{counts['null pair', 'same']} of 40 null pairs are the same" in REPORT
