"""The numbers of README, tutorial and notebook: those of one run, which another run gives again."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from block_frames import compared_of
from docs_shell_blocks import ROOT

import leval_harness as lh
from leval_harness.report.formats import markdown
from leval_harness.report.tables import _effective_tables
from leval_harness.report.verdict import lines, verdict

RUN = Path(__file__).with_name("quickstart.csv")
"""Effective context of `leval-harness sweep quickstart`, two cores, bfloat16."""
FLOAT32 = pd.read_csv(Path(__file__).with_name("quickstart_float32.csv"))
"""Clipped differences to the reference, sums over 64 tokens in nats, of the same command in float32 on a CPU with AVX2."""

LOSS, PLACE = 0.005, 256
"""Tolerances that the pages state: nats/token, and tokens for the place where a method breaks."""

NUMBER = re.compile(r"[−+-]?\d+(?:,\d{3})*(?:\.\d+)?")


def page(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def said(text: str) -> str:
    """The block with a verdict on a page."""
    (block,) = [each for each in re.findall(r"```text\n(.*?)```", text, re.S) if each[:2] == "- "]
    return block


def rows_in(text: str) -> list[str]:
    """Rows of a table by position, without Markdown's escapes."""
    return [line.replace("\\", "") for line in text.splitlines() if re.match(r"\| \d", line)]


def same_tokens(frame: pd.DataFrame) -> list[str]:
    """Rows of the table of two methods on the same tokens."""
    (table,) = [t for t in map(markdown, _effective_tables(frame)) if "### Same tokens" in t]
    rows = rows_in(table)
    assert len(rows) == 6
    return rows


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return pd.read_csv(RUN).assign(
        name=None, sample=False, group=False, length=11264, method=lambda f: f["label"],
        status="done", num_docs=3, created=None, seconds=None, command="",
    )  # fmt: skip


def test_the_readme_prints_the_verdict_whole(frame):
    assert said(page("README.md")) == lines(verdict(frame))


def test_the_tutorial_prints_that_of_two_methods_and_a_column_of_the_table(frame):
    two = frame[~frame["label"].str.startswith("resonance")]
    text = page("docs/tutorial.md")
    assert said(text) == lines(verdict(two))
    assert rows_in(text) == same_tokens(two)


def test_the_notebook_prints_the_same(frame):
    cells = json.loads(page("docs/notebooks/quickstart.ipynb"))["cells"]
    printed = ["".join(out.get("text", "")) for cell in cells for out in cell.get("outputs", ())]
    assert lines(verdict(frame)) in "".join(printed)


def tolerance(text: str, before: str) -> float:
    if "." in text:
        return LOSS
    return PLACE if before.endswith("breaks near ") else 0


def assert_alike(here: str, there: str) -> None:
    """The same words, and numbers within what the pages state."""
    assert NUMBER.sub("#", here) == NUMBER.sub("#", there)
    for one, other in zip(NUMBER.finditer(here), NUMBER.finditer(there), strict=True):
        values = [float(m[0].replace(",", "").replace("−", "-")) for m in (one, other)]
        allowed = tolerance(one[0], here[: one.start()])
        assert abs(values[0] - values[1]) <= allowed + 1e-9, (here, there)


METHODS = ("rope", "yarn", "resonance_yarn")


def of_float32(methods):
    return compared_of({name: name for name in methods}, blocks=FLOAT32)


@pytest.mark.parametrize(
    ("name", "methods"), [("README.md", METHODS), ("docs/tutorial.md", METHODS[:2])]
)
def test_a_run_in_float32_says_the_same(name, methods):
    there = lines(verdict(of_float32(methods))).splitlines()
    for line, other in zip(said(page(name)).splitlines(), there, strict=True):
        assert_alike(line, other)


def test_a_run_in_float32_has_the_numbers_of_the_tutorials_table():
    there = same_tokens(of_float32(METHODS[:2]))
    for line, other in zip(rows_in(page("docs/tutorial.md")), there, strict=True):
        assert_alike(line.replace("*", ""), other.replace("*", ""))


@pytest.mark.long
@pytest.mark.hf
@pytest.mark.timeout(3600)
def test_the_tutorial_on_one_thread_reads_its_first_text_the_same(tmp_path, smollm2):
    """A third of its sweep, in float32; the pages' numbers follow from what is read."""
    config = re.search(r"<<'YAML'\n(.*?)YAML\n", page("docs/tutorial.md"), re.S)[1]
    (tmp_path / "yarn.yaml").write_text(config)
    command = ["-m", "leval_harness", "sweep", "yarn.yaml", "--set", "metadata.num_docs=1"]
    done = subprocess.run(
        [sys.executable, *command, "--set", "models.SmolLM2-135M.dtype=float32"], cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    loaded = lh.load(tmp_path / "results" / "yarn")
    runs = loaded.blocks.merge(loaded.runs[["run", "method"]], on="run")
    here = runs.pivot(index=["document", "start"], columns="method", values="difference")
    there = FLOAT32.set_index(["document", "start"]).loc[here.index, list(METHODS[:2])]
    assert len(here) == 144
    apart = (here[there.columns] - there).groupby(np.arange(144) // 24).mean().abs() / 64
    assert apart.to_numpy().max() < LOSS / 5


@pytest.mark.long
@pytest.mark.hf
def test_the_notebook_runs(tmp_path, monkeypatch):
    """On a small real sweep in the place of the quickstart's."""
    mpl.use("agg")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "quickstart").symlink_to(ROOT / "tests" / "report" / "effective")
    monkeypatch.chdir(tmp_path)
    cells = json.loads(page("docs/notebooks/quickstart.ipynb"))["cells"]
    names: dict[str, object] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(line for line in cell["source"] if line[0] != "%"), names)
    assert len(names["rows"]) >= 4
