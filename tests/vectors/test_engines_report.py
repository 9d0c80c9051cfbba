"""What the report on engines says follows from its raw results."""

import json
from collections import defaultdict
from pathlib import Path

REPORTS = Path(__file__).parents[2] / "docs/reports"
WORDS = {7: "seven", 8: "eight", 9: "nine", 10: "ten", 11: "eleven", 12: "twelve"}


def recorded(name):
    return [json.loads(line) for line in (REPORTS / name).read_text().splitlines()]


def test_versions_of_one_library_count_as_one_engine():
    runs = recorded("rope-engines.jsonl")
    engines = {run["engine"] for run in runs}
    assert len(engines) >= 7
    assert len(runs) == len({(run["engine"], run["version"]) for run in runs})
    title = (REPORTS / "rope-engines.md").read_text().splitlines()[0]
    assert title == f"# RoPE in {WORDS[len(engines)]} engines"


def test_a_fault_is_seen_before_it_was_mended_and_not_after():
    found = defaultdict(list)
    for run in recorded("rope-faults.jsonl"):
        found[run["fault"]].append(run)
    assert len(found) >= 5
    for runs in found.values():
        before, after = sorted(runs, key=lambda r: [int(p) for p in r["version"].split(".")])
        assert {o["status"] for o in before["outcomes"]} <= {"wrong", "ignored"}
        assert {o["status"] for o in after["outcomes"]} == {"right"}
