"""The Python blocks of the how-to page run one after the other, on the results of a real sweep."""

import contextlib
import io
import re
import shutil
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from docs_shell_blocks import BLOCK, MARK, ROOT

PAGE = ROOT / "docs" / "how-to" / "python.md"
SWEEP = ROOT / "tests" / "report" / "effective"
SCORES = ROOT / "tests" / "golden" / "results" / "sweep"


@pytest.mark.slow(long=True)
def test_the_page_runs(tmp_path: Path, monkeypatch) -> None:
    content = PAGE.read_text("utf-8")
    found = [b for b in BLOCK.finditer(content) if b["kind"] == "python"]
    run = [block["text"] for block in found if not MARK.search(content[: block.start()])]
    assert len(run) >= 5
    shutil.copytree(SWEEP, tmp_path / "results" / "quickstart")
    shutil.copytree(SCORES, tmp_path / "results" / "all-methods")
    monkeypatch.chdir(tmp_path)
    mpl.use("Agg")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        names: dict[str, Any] = {"__name__": "docs"}
        exec("\n".join(run), names)
    quality = names["rows"].query("task == 'leval_closed_quality'").set_index("label")
    assert names["table"].loc["yarn", "leval_closed_quality"] == 100 * quality.loc["yarn", "value"]
    gap = names["means"]["yarn"].mean() - names["means"]["rope"].mean()
    assert np.isclose(gap, quality.loc["yarn", "value"] - quality.loc["rope", "value"])
    asked = names["loaded"].samples.query("metric == 'exact_match'")
    assert names["by_cut"].size().sum() == len(asked)
    assert "against rope" in printed.getvalue()
    assert re.search(r"\| rope \|", printed.getvalue())
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    assert (tmp_path / "public" / "index.html").is_file()
