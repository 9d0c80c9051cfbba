"""The Python blocks of the how-to page run one after the other, on the results of a real sweep."""

import contextlib
import io
import re
import shutil
from pathlib import Path

import matplotlib as mpl
from docs_shell_blocks import BLOCK, MARK, ROOT

PAGE = ROOT / "docs" / "how-to" / "python.md"
SWEEP = ROOT / "tests" / "leaderboard" / "effective"


def test_the_page_runs(tmp_path: Path, monkeypatch) -> None:
    content = PAGE.read_text("utf-8")
    found = [b for b in BLOCK.finditer(content) if b["kind"] == "python"]
    run = [block["text"] for block in found if not MARK.search(content[: block.start()])]
    assert len(run) >= 5
    shutil.copytree(SWEEP, tmp_path / "results" / "quickstart")
    monkeypatch.chdir(tmp_path)
    mpl.use("Agg")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec("\n".join(run), {"__name__": "docs"})
    assert "against RoPE" in printed.getvalue()
    assert re.search(r"\| rope \|", printed.getvalue())
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    assert (tmp_path / "public" / "index.html").is_file()
