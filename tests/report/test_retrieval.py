"""Retrieval: counts at growing lengths against exact tails, and what is said of them."""

import json
import runpy
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from block_frames import compared_of
from lm_eval_output import mean_of, sample, write
from scipy import stats

from leval_harness.report.compare import compare
from leval_harness.report.effective_context import compared_frame
from leval_harness.report.figures import planned_figures
from leval_harness.report.retrieval import effective_length_text, length_text, retrievals
from leval_harness.report.tables import build_tables
from leval_harness.report.verdict import verdicts
from leval_harness.results.columns import BLOCKS
from leval_harness.results.load import load_results
from leval_tasks.statistics.retrieval import LEVEL, RetrievalLength, Retrieved, length_above

LENGTHS = (4096, 8192, 12288)
NO_BLOCKS = pd.DataFrame(columns=list(BLOCKS))
ASKED = (1024, 2048, 4096, 8192, 12288)


def counts(*right: float, asked: int = 100) -> list[Retrieved]:
    return [Retrieved(n, each, asked) for n, each in zip(LENGTHS, right, strict=True)]


@pytest.mark.parametrize(
    ("right", "asked", "above"),
    [
        ((100, 99, 0), 100, "8K, not 12K"),
        ((100, 99, 98), 100, "at least 12K"),
        ((40, 38, 0), 400, "nowhere"),
        ((1, 1, 0), 1, "cannot tell"),
        ((20, 19, 0), 20, "cannot tell"),
    ],
)
def test_length_text_of_counts(right, asked, above):
    assert length_text(length_above(counts(*right, asked=asked))) == above


@pytest.mark.parametrize(
    ("right", "low", "high", "text"),
    [
        ((900, 900, 900, 900, 900), 12288, 12288, "at least 12K"),
        ((900, 900, 900, 900, 800), 8192, 8192, "8K, not 12K"),
        ((900, 900, 900, 866, 800), 4096, 8192, "at least 4K"),
        ((900, 900, 900, 866, 866), 4096, 12288, "at least 4K"),
        ((900, 800, 900, 900, 900), 1024, 1024, "1K, not 2K"),
        ((866, 900, 900, 900, 900), None, 12288, "cannot tell"),
        ((866, 900, 900, 900, 800), None, 8192, "cannot tell"),
        ((900, 833, 900, 900, 900), 1024, 12288, "at least 1K"),  # p is 0.023, above 0.025 / 2
    ],
)
def test_length_text_of_counts_at_growing_lengths(right, low, high, text):
    pairs = zip(ASKED, right, strict=True)
    found = length_above([Retrieved(length, each, 1000) for length, each in pairs])
    assert (found.low, found.high) == (low, high)
    assert length_text(found) == text


@pytest.mark.parametrize("right", range(80, 101))
def test_length_above_is_by_the_exact_binomial_tail(right):
    found = length_above(counts(right, 0, 0))
    p = stats.binomtest(right, 100, 0.856, alternative="greater").pvalue
    assert (found.low == 4096) == (p <= 0.025)


@pytest.fixture(scope="module")
def simulation():
    """The script of the report: true accuracies by form of threshold and curve, and error rates."""
    reports = Path(__file__).parents[2] / "reports"
    return runpy.run_path(str(reports / "statistics" / "retrieval_length.py"))


def assert_errs_rarely(simulation, form, curve, runs):
    """Each bound errs in at most 2.5% of the samples, beside what the number of runs leaves open."""
    most = LEVEL + 3 * (LEVEL * (1 - LEVEL) / runs) ** 0.5
    for asked in simulation["QUESTIONS"]:
        rates = simulation["rates"](simulation["CURVES"][form][curve], asked, form, runs)
        assert rates.too_long <= most, (asked, rates)
        assert rates.too_short <= most, (asked, rates)


@pytest.mark.parametrize("form", ["85.6%", "own score"])
@pytest.mark.parametrize("curve", ["just reached everywhere", "just missed at 4K"])
def test_length_above_errs_rarely_at_the_threshold(simulation, form, curve):
    assert_errs_rarely(simulation, form, curve, runs=600)


@pytest.mark.slow(long=True)
@pytest.mark.parametrize("form", ["85.6%", "own score"])
def test_length_above_errs_rarely_for_every_curve(simulation, form):
    for curve in simulation["CURVES"][form]:
        assert_errs_rarely(simulation, form, curve, runs=10_000)


@pytest.mark.parametrize(
    ("form", "curve", "asked", "reached", "decided"),
    [
        ("85.6%", "100% everywhere", 24, 1.0, 1.0),
        ("own score", "100% everywhere", 60, 1.0, 1.0),
        ("85.6%", "falls from 100% to 50% at 8K", 24, 1.0, 0.7),
        ("own score", "falls from 100% to 50% at 8K", 60, 1.0, 0.7),
        ("own score", "falls from 80% to 40% at 8K", 400, 0.6, 0.6),
    ],
)
def test_length_above_decides_what_is_clear(simulation, form, curve, asked, reached, decided):
    rates = simulation["rates"](simulation["CURVES"][form][curve], asked, form, 300)
    assert rates.lower_reached >= reached
    assert rates.decided >= decided


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two tasks; at 12K half of the questions are answered, and one task was not asked."""
    folder = tmp_path_factory.mktemp("ruler")
    for length in LENGTHS:
        for task in ("niah_single_1", "ruler_vt")[: 1 + (length < 12288)]:
            rows = [
                sample(at, float(length < 12288 or at % 10 >= 5), str(length)) for at in range(100)
            ]
            write(folder / task, mean_of(rows, str(length)), task, rows, max_length=length,
                  stamp=f"2026-01-01T00-00-00.{length}")  # fmt: skip
    return folder


def test_retrievals_are_over_tasks_that_all_lengths_have(folder):
    compared = compare(load_results(folder))
    (found,) = retrievals(compared).to_dict("records")
    assert found["tasks"] == ("niah_single_1",)
    assert found["lengths"] == LENGTHS
    assert found["questions"] == (100, 100, 100)
    assert found["above"] == "8K, not 12K"


def test_retrieval_table_is_before_the_scores(folder):
    tables = build_tables(compare(load_results(folder)))
    titles = [table.title for table in tables]
    assert titles[0] == "Retrieval length, org/model"
    assert tables[0].cells.to_numpy().tolist() == [["8K, not 12K", "100 questions per length"]]


def test_retrievals_of_few_questions_are_undecided(real_runs):
    found = retrievals(compare(load_results(real_runs)))
    assert found["label"].tolist() == ["rope", "yarn"]
    assert set(found["above"]) == {"cannot tell"}


DEPTHS = (0, 50, 100)


def needle_run(
    folder, found, samples=24, task="retrieval_niah_single", rope=None, lengths=LENGTHS, **top
):
    """A results file of a needle grid; `found` of length and depth is the share that is found."""
    rows = []
    for length in lengths:
        for depth in DEPTHS:
            for at in range(samples):
                score = float(at < round(samples * found(length, depth)))
                name = f"{length}-{depth}"
                doc = {"document_id": name, "question_id": at, "cluster": f"{name}-{at}"}
                metrics = [f"accuracy@{length}", f"depth_{depth}@{length}"]
                row = sample(len(rows), score, metrics[0], asked=f"{name}-{at}", doc=doc)
                rows.append({**row, "metrics": metrics, metrics[1]: score})
    values = {}
    for name in dict.fromkeys(name for row in rows for name in row["metrics"]):
        values |= mean_of([row for row in rows if name in row], name)
    arguments = {"pretrained": "m", **({"rope_parameters": rope} if rope else {})}
    fields = {"metadata": {"settings": {"num_samples": samples}}}
    return write(folder, values, task, rows, config={"model_args": arguments}, fields=fields, **top)


def grid_of_two_runs(folder, samples):
    """Retrieval of one method measured at 4K and at 8K in runs of so many samples per place."""
    for run_length, of_run in zip((4096, 8192), samples, strict=True):
        where = {"lengths": (run_length,), "max_length": run_length}
        needle_run(folder / f"{run_length}", second_half_lost, of_run, **where)
    return compared_frame(load_results(folder))


def test_longer_prompts_may_have_fewer_samples(tmp_path):
    (row,) = retrievals(grid_of_two_runs(tmp_path, (24, 8))).to_dict("records")
    assert row["block"] == "org/model"
    assert (row["lengths"], row["questions"]) == ((4096, 8192), (72, 24))


def test_different_samples_at_one_length_are_not_compared(tmp_path):
    needle_run(tmp_path / "more", second_half_lost, 24)
    needle_run(tmp_path / "fewer", second_half_lost, 8)
    blocks = set(compared_frame(load_results(tmp_path))["block"])
    assert blocks == {"org/model · num samples 24", "org/model · num samples 8"}


def second_half_lost(length, depth):
    return 0.0 if length == 12288 and depth >= 50 else 1.0


@pytest.fixture(scope="module")
def needles(tmp_path_factory):
    """The unmodified model loses the second half of 12K; YaRN finds everything."""
    folder = tmp_path_factory.mktemp("needles")
    needle_run(folder / "a", second_half_lost)
    yarn = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e5}
    yarn["original_max_position_embeddings"] = 8192
    needle_run(folder / "b", lambda length, depth: 1.0, rope=yarn)
    return compared_frame(load_results(folder))


def test_retrieval_length_of_a_needle_grid(needles):
    rows = retrievals(needles).set_index("label")
    assert rows["length"].to_dict() == {
        "unmodified": "8,192 (not 12,288)",
        "yarn x2": "≥ 12,288 (longest measured)",
    }
    assert set(rows["threshold"]) == {"85.6% of its own score at 4K"}
    assert rows["questions"].tolist() == [(72, 72, 72)] * 2


def test_the_shortest_length_alone_decides_nothing(tmp_path):
    """Its score is a share of itself: the statement would hold for a model that finds nothing."""
    needle_run(tmp_path, lambda length, depth: 0.5, samples=2)
    compared = compared_frame(load_results(tmp_path))
    (row,) = retrievals(compared).to_dict("records")
    assert (row["above"], row["length"]) == ("cannot tell", "undecided beyond 4,096")
    (verdict,) = verdicts(compared)
    assert any("is undecided in retrieval above 85.6%" in text for text in verdict.sentences)


@pytest.mark.parametrize(
    ("low", "high", "refused", "text"),
    [
        (None, 12288, None, "undecided"),
        (0, 0, 4096, "< 4,096"),
        (4096, 4096, 8192, "4,096 (not 8,192)"),
        (4096, 12288, None, "≥ 4,096, undecided at 8,192 and 12,288"),
        (4096, 8192, 12288, "≥ 4,096, undecided at 8,192"),
        (12288, 12288, None, "≥ 12,288 (longest measured)"),
    ],
)
def test_effective_length_text_names_what_is_undecided(low, high, refused, text):
    assert effective_length_text(RetrievalLength(low, high, refused), LENGTHS) == text


def test_verdict_has_the_length_by_retrieval(needles):
    (verdict,) = verdicts(needles)
    table = verdict.table()
    assert table["by retrieval"].tolist() == ["8,192 (not 12,288)", "≥ 12,288 (longest measured)"]
    sentence = "unmodified retrieves above 85.6% of its own score at 4K up to 8K, not 12K"
    assert any(text.startswith(sentence) for text in verdict.sentences)


def test_verdict_has_both_lengths_side_by_side(needles):
    both = compared_of({"rope": "rope", "yarn": "yarn"}, block="org/model")
    named = needles.assign(
        label=needles["label"].replace({"unmodified": "rope", "yarn x2": "yarn"})
    )
    (verdict,) = verdicts(pd.concat([both, named], ignore_index=True))
    table = verdict.table().set_index("method")
    assert table.loc["rope", "effective context length"] == "9,728 (degrades from ~9,920)"
    assert table.loc["rope", "by retrieval"] == "8,192 (not 12,288)"


def test_tables_of_a_needle_grid(needles):
    tables = {table.title: table for table in build_tables(needles)}
    grid = tables["Needle, single by depth and length, %, org/model"].cells
    assert grid.columns.tolist() == ["4K", "8K", "12K"]
    assert grid.loc[("unmodified", "50"), "12K"].startswith("0.00")
    assert grid.loc[("yarn x2", "50"), "12K"].startswith("100.00")
    by_length = tables["Needle, single by length, %, org/model"].cells
    assert by_length.columns.tolist() == ["4K", "8K", "12K"]
    assert not any("depth" in column for table in tables.values() for column in table.cells)


def test_needle_tables_have_exact_intervals_of_all_shares(tmp_path):
    needle_run(tmp_path, lambda length, depth: 0.5 if length == 8192 else 1.0, samples=8)
    tables = {table.title: table for table in build_tables(compared_frame(load_results(tmp_path)))}
    by_depth = tables["Needle, single by depth and length, %, org/model"].cells
    low, high = stats.binomtest(4, 8).proportion_ci(method="exact")
    assert (
        by_depth.loc[("unmodified", "50"), "8K"] == f"50.00 ({100 * low:.2f} to {100 * high:.2f})"
    )
    by_length = tables["Needle, single by length, %, org/model"]
    low, high = stats.binomtest(12, 24).proportion_ci(method="exact")
    assert by_length.cells.loc["unmodified", "8K"] == f"50.00 ({100 * low:.2f} to {100 * high:.2f})"
    assert by_length.notes == ("In brackets: the exact 95% interval.",)


def test_heat_map_has_the_numbers_in_its_cells(needles):
    (figure,) = [f for f in planned_figures(needles, NO_BLOCKS) if f.kind == "depth"]
    drawn = figure.draw()
    texts = [[text.get_text() for text in axes.texts] for axes in drawn.axes]
    assert texts == [["100", "100", "100"] + ["100", "100", "0"] * 2, ["100"] * 9]
    assert "unmodified finds 78% on average, at least 0% (depth 50% of 12K)" in figure.alt_text


def test_best_setting_by_length_has_a_command(needles):
    (table,) = [t for t in build_tables(needles) if t.title.startswith("Best setting by length")]
    cells = table.cells
    assert cells.index.tolist() == ["4,096", "8,192", "12,288"]
    assert "By loss" not in cells
    assert cells.loc["8,192", "By retrieval"] == "unmodified or yarn x2: 100.0 (95.0 to 100.0)"
    assert cells.loc["8,192", "vLLM"] == "vllm serve m --max-model-len 8192"
    assert cells.loc["12,288", "By retrieval"] == "yarn x2: 100.0 (95.0 to 100.0)"
    *words, overrides = shlex.split(cells.loc["12,288", "vLLM"])
    assert words == ["vllm", "serve", "m", "--max-model-len", "12288", "--hf-overrides"]
    # as `check` prints them: without the new limit vLLM refuses the length
    assert json.loads(overrides) == {
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1e5, "factor": 2.0,
            "original_max_position_embeddings": 8192,
            "beta_fast": 32.0, "beta_slow": 1.0, "truncate": True,
        },
        "max_position_embeddings": 16384,
        "rope_compared": True,
    }  # fmt: skip


def test_best_setting_by_length_follows_the_verdict():
    compared = compared_of({"rope": "rope", "yarn": "yarn"}, checkpoint="m")
    (table,) = [t for t in build_tables(compared_with_texts(compared)) if "Best" in t.title]
    cells = table.cells
    assert cells.index.tolist() == ["9,728", "11,264"]
    assert cells["By loss"].tolist()[0] == "rope"
    assert cells["By loss"].tolist()[1].startswith("yarn: −0.1")
    assert '"rope_type": "yarn"' in cells.loc["11,264", "vLLM"]


def compared_with_texts(compared):
    """The frame with the columns that tables of scores read."""
    return compared.assign(
        mark="", stderr=np.nan, interval="none", unparsed=np.nan, filter="none", value=np.nan,
        n=3, context_length=11264, higher_is_better=False, chance=np.nan, rank=pd.NA,
    )  # fmt: skip


def test_tables_keep_a_mean_over_lengths_from_the_lengths(tmp_path):
    """`mrcr` over all prompts of a run of 8K must not take the place of those up to 8K."""
    values = {"mrcr@4096,none": 0.5, "mrcr@8192,none": 0.25, "mrcr,none": 0.4}
    write(tmp_path, values, "mrcr_2needle")
    tables = {table.title: table.cells for table in build_tables(compare(load_results(tmp_path)))}
    by_length = next(cells for title, cells in tables.items() if "by length" in title)
    assert by_length.loc["unmodified"].tolist() == ["50.00", "25.00"]
    others = next(cells for title, cells in tables.items() if title.startswith("Other tasks"))
    assert others.loc[("unmodified", "8K")].tolist() == ["40.00"]
