"""The tables of docs/reports/methods.md are made of the committed block sums."""

from pathlib import Path

import numpy as np
import pytest
from scripts import script

ROOT = Path(__file__).parents[2]
marked = script("benchmarks/generated.py").marked
REPORT = (ROOT / "docs" / "reports" / "methods.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def report():
    return script("benchmarks/methods_report.py")


def test_the_tables_are_those_of_the_blocks(report):
    made = report.tables()
    assert {"16k", "needles", "finetuned", "tuning"} <= set(made)
    for name, table in made.items():
        assert table.count("\n") >= 5
        assert marked(name, table) in REPORT


@pytest.mark.long  # another version of matplotlib may draw other paths
def test_the_figures_are_those_of_the_blocks(report, tmp_path):
    for name in report.WITH_FIGURE:
        report.save_figure(name, tmp_path)
        file = f"methods_{name}.svg"
        assert (tmp_path / file).read_bytes() == (report.FIGURES / file).read_bytes()


def test_every_method_reads_the_same_tokens(report):
    methods = report.read("16k")
    tokens = {
        method: {(each.corpus, each.name): each.tokens.sum() for each in texts}
        for method, texts in methods.items()
    }
    assert len(tokens["rope"]) >= 8
    assert all(each == tokens["rope"] for each in tokens.values())


def test_fine_tuned_checkpoints_read_the_tokens_of_their_model(report):
    methods = report.read("finetuned")
    tuned = [name for name in methods if name.endswith(report.TUNED)]
    assert len(tuned) == 3
    for name in tuned:
        before = {each.name: each for each in methods[name.removesuffix(report.TUNED)]}
        assert {each.name for each in methods[name]} == set(before)
        assert all((each.start == before[each.name].start).all() for each in methods[name])


def test_gains_agree_with_losses_where_few_tokens_are_clipped(report):
    """Within the trained length YaRN's gain minus RoPE's is RoPE's loss minus YaRN's."""
    methods = report.read("16k")
    gain, loss, count = 0.0, 0.0, 0.0
    scaled = {(each.corpus, each.name): each for each in methods["yarn"]}
    for rope in methods["rope"]:
        yarn = scaled[rope.corpus, rope.name]
        near = rope.start + rope.tokens <= report.TRAINED
        gain += (yarn.gain - rope.gain)[near].sum()
        loss += (rope.full - yarn.full)[near].sum()
        count += rope.tokens[near].sum()
    assert gain / count == pytest.approx(loss / count, abs=0.005)
    assert np.sign(gain) == np.sign(loss) == -1
