"""Models beside each other: bits per byte of one text, and lengths relative to the native one."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from lm_eval_output import sample, write

from leval_harness.cli.results import table
from leval_harness.report.effective_context import compared_frame
from leval_harness.report.page import write_page
from leval_harness.report.tables import build_tables
from leval_harness.report.verdict import verdicts
from leval_harness.results.load import load_results

TWO_MODELS = Path(__file__).parent / "two_models"
BITS = "Bits per byte ↓, Python source, 1K"
RELATIVE = ["≥ 0.12×", "undecided", "≥ 0.03×", "≥ 0.02×"]


@pytest.fixture(scope="module")
def results():
    """A real sweep, `leval-harness sweep two_models`: SmolLM2-135M and Gemma 3 270M."""
    return load_results(TWO_MODELS)


@pytest.fixture(scope="module")
def compared(results):
    return compared_frame(results, across="models")


def test_models_table_is_first_and_ranks_bits_per_byte(compared):
    first, *others = build_tables(compared)
    assert first.title == "Models"
    assert first.cells.index.tolist() == [
        (model, method) for model in ("SmolLM2-135M", "Gemma-3-270M") for method in ("rope", "yarn")
    ]
    rows = compared[compared["metric"] == "bits_per_byte"].set_index("label")
    assert sorted(rows["rank"]) == [1, 2, 3, 4]
    best = rows["rank"].idxmin().split(", ")
    assert "bold" in first.css.loc[tuple(best), BITS]
    for (model, method), text in first.cells[BITS].items():
        assert text.startswith(f"{rows.loc[f'{model}, {method}', 'value']:.3f} ± ")
    assert first.cells["Native context length"].tolist() == ["8,192"] * 2 + ["32,768"] * 2
    assert first.cells["Relative to native"].tolist() == RELATIVE
    titles = [other.title for other in others]
    assert "Python source: bits per byte by length, lower is better" in titles
    assert not any(title.startswith("Best setting") for title in titles)


def test_models_score_the_same_bytes_and_other_tokens(results):
    sums = results.samples.groupby(["run", "metric"])["den"].sum().unstack("metric")
    sums = sums.dropna(subset=["bits_per_byte@1024"]).join(results.runs.set_index("run")["model"])
    assert sums["bits_per_byte@1024"].nunique() == 1
    tokens = sums.groupby("model")["token_perplexity@1024"].unique()
    assert all(len(of_model) == 1 for of_model in tokens)
    assert tokens["SmolLM2-135M"][0] != tokens["Gemma-3-270M"][0]


def test_effective_context_across_models_is_compared_within_each(compared):
    (verdict,) = verdicts(compared)
    assert verdict.heading == "Several models; 3 documents of 1,024 tokens"
    assert verdict.table()["relative to native"].tolist() == RELATIVE
    assert verdict.recommendation == ""
    lengths = next(t for t in build_tables(compared) if t.title == "Effective context length")
    assert not any("Loss within" in head or "Against" in head for head in lengths.cells)
    pairs = compared[compared["baseline"].fillna("").str.contains("-")]
    assert all(
        label.split(", ")[0] == baseline.split(", ")[0]
        for label, baseline in zip(pairs["label"], pairs["baseline"], strict=True)
        if baseline != "reference"
    )


@pytest.mark.slow
def test_page_begins_with_the_models(results, tmp_path):
    text = write_page(results, compared_frame(results), tmp_path / "p", "T").read_text("utf-8")
    places = [text.index(part) for part in (">Across models</h2>", ">Models</h3>", BITS,
              "All tables across models", '<section id="model-0"')]  # fmt: skip
    assert places == sorted(places)


def losses(folder, model, nats, **more):
    """A run with one loss per document, as bits per byte and as token perplexity."""
    rows = [
        sample(at, [nats * 100, 100], "bits_per_byte@1024", asked=f"document {at}",
               doc={"document_id": at, "cluster": at}) for at in range(4)
    ]  # fmt: skip
    values = {"bits_per_byte@1024,none": nats / np.log(2)}
    write(folder, values, "ppl_pysource", rows, model_name=model, **more)


@pytest.mark.parametrize("settings", [{}, {"config": {"limit": 4}}])
def test_bits_per_byte_is_shown_whatever_the_title_says(tmp_path, settings):
    """A title of settings that only some runs have must not hide what models are compared by."""
    counts = {"n-samples": {"ppl_pysource": {"original": 9, "effective": 4}}} if settings else {}
    for at, model in enumerate(("org/a", "org/b")):
        losses(tmp_path / f"{at}", model, 1.0 + at, **settings, **counts)
    text = CliRunner().invoke(table, [str(tmp_path), "--across", "models"]).stdout
    assert "Python source: bits per byte by length, lower is better" in text
    assert "| org/a" in text
    assert "| **1.443" in text
