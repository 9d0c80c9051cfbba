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
from leval_harness.report.formats import markdown, verdicts_text
from leval_harness.report.tables import effective_tables

RUN = Path(__file__).with_name("quickstart.csv")
"""Effective context of `leval-harness sweep quickstart`, two cores, bfloat16."""
FLOAT32 = pd.read_csv(Path(__file__).with_name("quickstart_float32.csv"))
"""Clipped differences from the reference, sums over 64 tokens in nats, of a float32 run (AVX2)."""

LOSS, PLACE = 0.005, 256
"""Tolerances that the pages state: nats/token, and tokens for the onset."""

NUMBER = re.compile(r"[−+-]?\d+(?:,\d{3})*(?:\.\d+)?")


def page(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def verdict_on(text: str) -> str:
    """The block with a verdict on a page."""
    (block,) = re.findall(r"```text\n(SmolLM2.*?)```", text, re.DOTALL)
    return block


def rows_on(text: str) -> list[str]:
    """Rows of a table of two methods, without Markdown's escapes."""
    rows = [line for line in text.splitlines() if line.startswith("| yarn against rope |")]
    return [row.replace("\\", "") for row in rows]


def rows_of(frame: pd.DataFrame) -> list[str]:
    """Rows of the table of differences between methods."""
    tables = [markdown(table) for table in effective_tables(frame)]
    (table,) = [text for text in tables if "### Differences between methods" in text]
    return rows_on(table)


def without(frame: pd.DataFrame, method: str) -> pd.DataFrame:
    """Rows that have nothing to do with a method."""
    return frame[(frame["label"] != method) & (frame["baseline"] != method)]


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return pd.read_csv(RUN).assign(
        name=None, sample=False, group=False, length=11264, model=lambda f: f["block"],
        method=lambda f: f["label"],
        status="done", num_docs=3, created=None, seconds=None, command="",
    )  # fmt: skip


def test_readme_prints_the_verdict(frame):
    assert verdict_on(page("README.md")).strip() == verdicts_text(frame).strip()


def test_tutorial_prints_the_verdict_and_differences(frame):
    two_methods = without(frame, "resonance_yarn")
    text = page("docs/tutorial.md")
    assert verdict_on(text).strip() == verdicts_text(two_methods).strip()
    assert rows_on(text) == rows_of(two_methods)
    assert len(rows_on(text)) == 1


def test_notebook_prints_the_verdict(frame):
    cells = json.loads(page("docs/notebooks/quickstart.ipynb"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    printed = "".join("".join(output.get("text", "")) for output in outputs)
    assert verdicts_text(frame).strip() in printed


def tolerance(number: str, text_before: str) -> float:
    """What the pages state: 0.005 nats/token, and 256 tokens for the onset."""
    if "." in number:
        return LOSS
    return PLACE if text_before.endswith("degrades from ~") else 0


def assert_alike(line: str, other: str) -> None:
    """The same words, and numbers within what the pages state."""
    assert NUMBER.sub("#", line).split() == NUMBER.sub("#", other).split()
    for match, match_of_other in zip(NUMBER.finditer(line), NUMBER.finditer(other), strict=True):
        here, there = (
            float(m[0].replace(",", "").replace("−", "-")) for m in (match, match_of_other)
        )
        allowed = tolerance(match[0], line[: match.start()])
        assert abs(here - there) <= allowed + 1e-9, (line, other)


METHODS = ("rope", "yarn", "resonance_yarn")


def float32_frame(methods):
    return compared_of({name: name for name in methods}, blocks=FLOAT32)


@pytest.mark.parametrize(
    ("name", "methods"), [("README.md", METHODS), ("docs/tutorial.md", METHODS[:2])]
)
def test_float32_gives_the_same_verdict(name, methods):
    of_float32 = verdicts_text(float32_frame(methods)).strip().splitlines()
    of_page = verdict_on(page(name)).strip().splitlines()
    for line, other in zip(of_page, of_float32, strict=True):
        assert_alike(line, other)


def test_float32_gives_the_same_differences():
    of_float32 = rows_of(float32_frame(METHODS[:2]))
    for line, other in zip(rows_on(page("docs/tutorial.md")), of_float32, strict=True):
        assert_alike(line, other)


@pytest.mark.slow(long=True)
@pytest.mark.timeout(3600)
def test_tutorial_on_one_thread_reads_the_same(tmp_path, smollm2):
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
    distance = (here[there.columns] - there).groupby(np.arange(144) // 24).mean().abs() / 64
    assert distance.to_numpy().max() < LOSS / 5


@pytest.mark.slow(long=True)
def test_notebook_runs(tmp_path, monkeypatch):
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
