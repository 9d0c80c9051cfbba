"""Write the page's folder."""

import shutil
from pathlib import Path

from leval_leaderboard.figures import write_figures
from leval_leaderboard.page.data import comparisons, leaderboard, script, shown_rows
from leval_leaderboard.page.samples import write_samples
from leval_leaderboard.tables.analysis import Analysis
from leval_leaderboard.tables.escape import plain

TEMPLATES = Path(__file__).parent / "templates"
MARKER = "leval-harness-page.txt"
TITLE = "Long-context leaderboard"


def write_page(analysis: Analysis, out: Path, title: str = TITLE) -> Path:
    """Write a static folder that opens from disk and from any web server.

    Args:
        analysis: from `analyse`.
        out: folder; an earlier page in it is replaced, anything else is an error.
        title: heading of the page.

    Returns:
        Path of `index.html`.

    Raises:
        ValueError: `out` holds something that is not a page of ours.
        OSError: it cannot be written.
    """
    from jinja2 import Environment, FileSystemLoader

    _make_room(out)
    data = out / "data"
    data.mkdir()
    shown = shown_rows(analysis)
    board = leaderboard(analysis, shown)
    board["samples"] = write_samples(analysis.results, data)
    board["compare"] = {}
    for at, (baseline, found) in enumerate(comparisons(analysis, shown).items()):
        board["compare"][baseline] = f"c{at:03d}"
        (data / f"c{at:03d}.js").write_text(script(f"c{at:03d}", found), encoding="utf-8")
    figures = [
        {"src": f"figures/{drawn.name}", "title": plain(drawn.title)}
        for drawn in write_figures(analysis, out / "figures")
    ]
    (data / "leaderboard.js").write_text(script("leaderboard", board), encoding="utf-8")
    for name in ("page.js", "compare.js", "page.css"):
        shutil.copyfile(TEMPLATES / name, out / name)
    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True)
    html = environment.get_template("index.html.j2").render(
        title=plain(title),
        figures=figures,
        sample=any(row.get("sample") for row in board["rows"]),
        partial=any(row.get("partial") for row in board["rows"]),
        published=any(row.get("published") for row in board["rows"]),
    )
    index = out / "index.html"
    index.write_text(html, encoding="utf-8")
    return index


def _make_room(out: Path) -> None:
    """Remove an earlier page, and nothing that is not one."""
    if out.exists() and any(out.iterdir()):
        if not (out / MARKER).is_file():
            raise ValueError(
                f"--out: {out} is not empty and holds no leaderboard page; give a new folder"
            )
        for name in ("data", "figures"):
            shutil.rmtree(out / name, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARKER).write_text("Written by leval-harness page; replaced when it is run again.\n")
