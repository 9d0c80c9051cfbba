"""Tables of the frozen results."""

from functools import cache

import pytest
from golden_access import RESULTS, cell, fine, inside, run

# name -> folder and flags
TABLES = {
    "sweep": ("sweep",),
    "pairs": ("perplexity", "--pair", "resonance:rope", "--pair", "resonance_yarn:yarn"),
    "lm_eval": ("lm_eval",),
    "posgen": ("posgen",),
}
SHOWN = [
    ("sweep", "md"),
    ("pairs", "md"),
    *(("lm_eval", each) for each in ("md", "csv", "tex", "html")),
]


@cache
def table(name, *flags):
    with inside(RESULTS):
        ran = run("table", *TABLES[name], *flags)
    assert ran.code == 0, ran.err
    return ran


@pytest.mark.parametrize(("name", "output"), SHOWN)
def test_table(golden, name, output):
    golden(f"table-{name}.{output}", table(name, "--format", output).out)


def test_a_file_holds_what_is_printed(tmp_path):
    table("posgen", "--out", tmp_path / "table.md")
    written = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert table("posgen", "--format", "md").out == written
    assert table("posgen").out.startswith(written)  # the verdict follows


def test_recomputed_from_the_samples(golden):
    with inside(RESULTS):
        ran = run("table", "sweep", "--verify")
        assert ran.code == 1
        assert run("table", cell("sweep", "yarn", 512), "posgen", "--verify").code == 0
    golden("table-verify.txt", ran.out)


def test_posgen_runs(golden):
    with inside(RESULTS):
        golden("table-posgen_train.md", fine("posgen", "table", "posgen_train", "--format", "md"))
