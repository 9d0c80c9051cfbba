"""Retrieval: counts at growing lengths against exact tails, and needles in prompts."""

import json
from pathlib import Path

import fixture_results as make
import numpy as np
import pytest
from scipy import stats

from leval_harness.analysis import analyse
from leval_harness.analysis.retrieval import retrieval_text, retrievals
from leval_harness.old_results import load_results
from leval_harness.old_results.sample_lines import of_first_filter
from leval_harness.old_tables import build_tables
from leval_harness.old_tables.formats import render
from leval_tasks.statistics.retrieval import Retrieved, length_above, length_by, length_kept

LENGTHS = (4096, 8192, 12288)
ASKED = (1024, 2048, 4096, 8192, 12288)


def counts(*right: float, asked: int = 100) -> list[Retrieved]:
    return [Retrieved(n, each, asked) for n, each in zip(LENGTHS, right, strict=True)]


@pytest.mark.parametrize(
    ("right", "asked", "above", "kept"),
    [
        ((100, 99, 0), 100, "8K, not 12K", "8K, not 12K"),
        ((100, 99, 98), 100, "at least 12K", "at least 8K"),
        ((40, 38, 0), 400, "nowhere", "8K, not 12K"),
        ((1, 1, 0), 1, "cannot tell", "cannot tell"),
        ((20, 19, 0), 20, "cannot tell", "cannot tell"),
    ],
)
def test_what_is_said_of_counts(right, asked, above, kept):
    found = counts(*right, asked=asked)
    assert retrieval_text(length_above(found)) == above
    assert retrieval_text(length_kept(found)) == kept


@pytest.mark.parametrize(
    ("p", "low", "high", "text"),
    [
        ((0.001, 0.001, 0.001, 0.001), 12288, 12288, "at least 12K"),
        ((0.001, 0.001, 0.001, 0.9999), 8192, 8192, "8K, not 12K"),
        ((0.001, 0.001, 0.2, 0.9999), 4096, 8192, "at least 4K"),
        ((0.001, 0.001, 0.2, 0.8), 4096, 12288, "at least 4K"),
        ((0.9999, 0.001, 0.001, 0.001), 1024, 1024, "1K, not 2K"),
        ((0.2, 0.001, 0.001, 0.001), None, 12288, "cannot tell"),
        ((0.2, 0.001, 0.001, 0.9999), None, 8192, "cannot tell"),
        ((0.001, 0.98, 0.001, 0.001), 2048, 12288, "at least 2K"),  # 0.02 > 0.025 / 4
    ],
)
def test_what_is_said_of_p_at_growing_lengths(p, low, high, text):
    found = length_by(p, [1 - each for each in p], ASKED)
    assert (found.low, found.high, found.longest) == (low, high, 12288)
    assert retrieval_text(found) == text


@pytest.mark.parametrize("right", range(80, 101))
def test_a_length_is_shown_by_the_exact_binomial_tail(right):
    found = length_above(counts(right, 0, 0))
    p = stats.binomtest(right, 100, 0.856, alternative="greater").pvalue
    assert (found.low == 4096) == (p <= 0.025)


@pytest.mark.parametrize("rates", [(0.9, 0.856, 0.5), (0.9, 0.85, 0.85), (0.6, 0.56, 0.54)])
@pytest.mark.parametrize("asked", [20, 200])
def test_the_interval_holds_the_true_length_in_nineteen_of_twenty_samples(rates, asked):
    lengths = (0, *LENGTHS)
    above = next((at for at, rate in enumerate(rates) if rate < 0.856), 3)
    kept = next((at for at, rate in enumerate(rates) if rate <= rates[0] - 0.05), 3)
    right = np.random.default_rng(1).binomial(asked, rates, (2000, 3))
    missed = np.zeros(2)
    for each in right:
        found = counts(*map(float, each), asked=asked)
        for at, (length, true) in enumerate(
            ((length_above(found), lengths[above]), (length_kept(found), lengths[kept]))
        ):
            missed[at] += not (length.low or 0) <= true <= length.high
    assert (missed / 2000 <= 0.06).all()


def probe(at: int, length: int, depth: float, right: bool) -> dict:
    needle = str(1000 + at)
    filler = "The grass is green. " * 50
    cut = int(depth * len(filler))
    prompt = f"{filler[:cut]}{needle}{filler[cut:]}"
    answer = f": {needle}" if right else ": none"
    return {
        "doc_id": at,
        "doc": {"index": at, "input": prompt, "outputs": [needle], "max_length": length},
        "target": needle,
        "arguments": {},
        "resps": [[answer]],
        "filtered_resps": [answer],
        "filter": "none",
        "metrics": [str(length)],
        "prompt_hash": f"{at}-{length}",
        "target_hash": needle,
        str(length): float(right),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """At 12K only the last half of each prompt is read."""
    folder = tmp_path_factory.mktemp("ruler")
    for length in LENGTHS:
        rows = [
            probe(at, length, at % 10 / 10 + 0.05, length < 12288 or at % 10 >= 5)
            for at in range(100)
        ]
        tasks = {"niah_single_1": rows}
        make.write_cell(
            folder, f"c{length}", tasks, method="none", context_length=length, limit=100
        )
    return folder


def test_needles_are_found_in_prompts(folder):
    path = next((folder / "c12288").glob("samples_*"))
    needles = [needle for sample in of_first_filter(path) for needle in sample.needles]
    assert len(needles) == 100
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for (part, is_found), row in zip(needles, rows, strict=True):
        assert part == row["doc"]["index"] % 10
        assert is_found == row["12288"]


def test_retrieval_stands_on_top_with_depth_against_length(folder):
    analysis = analyse(load_results(folder))
    (found,) = retrievals(analysis)
    assert found.probes == 300
    assert (retrieval_text(found.above), retrieval_text(found.kept)) == (
        "8K, not 12K",
        "8K, not 12K",
    )
    cells = {(length, part): right / asked for length, part, right, asked in found.depths}
    assert len(cells) == 30
    assert all(share == (length < 12288 or part >= 5) for (length, part), share in cells.items())
    assert "| none | 8K, not 12K | 8K, not 12K | 300 |" in render(build_tables(analysis), "md")
