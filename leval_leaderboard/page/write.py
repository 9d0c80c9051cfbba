"""Write the page's folder."""

import shutil
from pathlib import Path

from leval_border.errors import UserError
from leval_border.files import write_text
from leval_leaderboard.figures import write_figures
from leval_leaderboard.page.data import comparisons, leaderboard, script
from leval_leaderboard.page.samples import write_samples
from leval_leaderboard.tables import Analysis, leaderboard_table
from leval_leaderboard.tables.escape import plain

TEMPLATES = Path(__file__).parent / "templates"
MARKER = "leval-harness-page.txt"
TITLE = "Long-context leaderboard"


def write_page(analysis: Analysis, out: Path, title: str = TITLE) -> Path:
    """Write a static folder that opens from disk and from any web server.

    An earlier page in `out` is replaced.

    Returns:
        Path of `index.html`, which is written last.

    Raises:
        UserError: `out` holds something that is not a page of ours.
        OSError: it cannot be written.
    """
    from jinja2 import Environment, FileSystemLoader

    _make_room(out)
    data = out / "data"
    data.mkdir()
    board = leaderboard(leaderboard_table(analysis), analysis)
    board["samples"] = write_samples(analysis.results, data)
    board["compare"] = {}
    for at, (baseline, compared) in enumerate(comparisons(analysis).items()):
        name = board["compare"][baseline] = f"c{at:03d}"
        write_text(data / f"{name}.js", script(name, compared))
    write_text(data / "leaderboard.js", script("leaderboard", board))
    figures = [
        {"src": f"figures/{name}", "title": plain(figure)}
        for name, figure in write_figures(analysis, out / "figures").items()
    ]
    for name in ("page.js", "compare.js", "page.css"):
        shutil.copyfile(TEMPLATES / name, out / name)
    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True)
    flags = ("sample", "partial", "published")
    html = environment.get_template("index.html.j2").render(
        title=plain(title),
        figures=figures,
        **{flag: any(row.get(flag) for row in board["rows"]) for flag in flags},
    )
    index = out / "index.html"
    write_text(index, html)
    return index


def _make_room(out: Path) -> None:
    """Remove an earlier page, and nothing that is not one."""
    if out.exists() and any(out.iterdir()):
        if not (out / MARKER).is_file():
            raise UserError(
                f"--out: {out} is not empty and holds no leaderboard page; give a new folder"
            )
        for name in ("data", "figures"):
            shutil.rmtree(out / name, ignore_errors=True)
        (out / "index.html").unlink(missing_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARKER).write_text("Written by leval-harness page; replaced when it is run again.\n")
