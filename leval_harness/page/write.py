"""Write the page's folder."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from leval_harness.analysis import Analysis
from leval_harness.analysis.effective_context import effective_lines
from leval_harness.analysis.retrieval import retrievals
from leval_harness.analysis.verdict import verdicts
from leval_harness.figures import write_figures
from leval_harness.figures.parity import parity_figure
from leval_harness.figures.style import write_figure
from leval_harness.layout import DIFF_KIND, DIFF_SCHEMA
from leval_harness.page.data import about, comparisons, leaderboard, reads, script, verdict
from leval_harness.page.samples import write_samples
from leval_harness.secrets import redact
from leval_harness.tables import details_table, leaderboard_table
from leval_harness.tables.formats.csv import csv_text
from resonance_vllm.errors import UserError, plain
from resonance_vllm.files import read_object, write_text

TEMPLATES = Path(__file__).parent / "templates"
MARKER = "leval-harness-page.txt"
INDEX = "index.html"
NUMBERS = "numbers.csv"
SCRIPTS = ("page.js", "charts.js", "compare.js")
NEW = ".new-"
FOLDERS = ("data", "figures")
TITLE = "Long-context leaderboard"

MOST_BASELINES = 16
"""Comparisons with every method as baseline grow with its square; beyond this only the default."""


def write_page(
    analysis: Analysis, out: Path, title: str = TITLE, diffs: Sequence[dict[str, Any]] = ()
) -> Path:
    """Write a static folder that opens from disk and from any web server.

    The page is made beside an earlier page in `out`, whose parts are then replaced by renaming: a
    reader finds a whole page at any time. `diffs` are comparisons of setups that are shown too, see
    `read_diff`.

    Returns:
        Path of `index.html`, which is put there last.

    Raises:
        UserError: `out` holds something that is not a page of ours.
        OSError: it cannot be written.
    """
    with _replaced(out) as made:
        _make(analysis, made, title, diffs)
    return out / INDEX


@contextlib.contextmanager
def _replaced(out: Path) -> Iterator[Path]:
    """An empty folder whose parts replace those of the page in `out` at the end, unless it fails.

    Other files in `out` stay.
    """
    others = out.iterdir() if out.exists() else ()
    if any(not path.name.startswith(NEW) for path in others) and not (out / MARKER).is_file():
        raise UserError(
            f"--out: {out} is not empty and holds no leaderboard page; give a new folder"
        )
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=NEW) as scratch:
        made = Path(scratch)
        yield made
        (made / MARKER).replace(out / MARKER)
        for name in FOLDERS:
            with contextlib.suppress(FileNotFoundError):
                (out / name).rename(made / f".{name}")
            (made / name).rename(out / name)
        for path in sorted(made.iterdir(), key=lambda path: path.name == INDEX):
            if path.is_file():
                path.replace(out / path.name)


def _make(analysis: Analysis, out: Path, title: str, diffs: Sequence[dict[str, Any]]) -> None:
    """Write all files of the page into an empty folder."""
    from jinja2 import Environment, FileSystemLoader

    (out / MARKER).write_text("Written by leval-harness page; replaced when it is run again.\n")
    # what the results say
    few = len(analysis.titles) <= MOST_BASELINES
    names = filter(None, analysis.titles if few else analysis.baselines.values())
    compared = {name: analysis.differences_to(name) for name in dict.fromkeys(names)}
    lines, _ = effective_lines(analysis)
    said, retrieved = verdicts(analysis), retrievals(analysis)
    # tables and figures
    table = leaderboard_table(analysis)
    write_text(out / NUMBERS, redact(csv_text([details_table(analysis)]), names=False))
    figures = write_figures(analysis, out / "figures")
    # the same as data for the page's scripts and its template
    data = out / "data"
    data.mkdir()
    board, files = leaderboard(table, analysis, lines, retrieved), {}
    for at, (baseline, found) in enumerate(comparisons(table, analysis, compared).items()):
        name = files[baseline] = f"c{at:03d}"
        write_text(data / f"{name}.js", script(name, found))
    runs = analysis.results.runs
    words = {"verdict": verdict(said), "reads": reads(lines, analysis), "about": about(runs)}
    board |= {"samples": write_samples(analysis.results, data), "compare": files}
    write_text(data / "leaderboard.js", script("leaderboard", board))
    # the page itself
    for name in (*SCRIPTS, "page.css"):
        shutil.copyfile(TEMPLATES / name, out / name)
    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True)
    html = environment.get_template("index.html.j2").render(
        title=plain(title),
        diffs=[_diff(each, at, out / "figures") for at, each in enumerate(diffs)],
        figures=[{"src": f"figures/{n}", "title": plain(text)} for n, text in figures.items()],
        scripts=SCRIPTS,
        numbers=NUMBERS,
        published=any(row.get("published") for row in board["rows"]),
        **words,
    )
    write_text(out / INDEX, redact(html, names=False))


def read_diff(path: Path) -> dict[str, Any]:
    """The content of a `diff.json`, which `leval-harness diff --out` wrote.

    Raises:
        UserError: it is no such file, or of another schema.
    """
    content = read_object(path)
    if content is None or content.get("kind") != DIFF_KIND:
        raise UserError(f"{path} is no diff.json that `leval-harness diff --out` wrote")
    if content.get("schema") != DIFF_SCHEMA:
        raise UserError(f"{path}: schema {content.get('schema')!r}; allowed: {DIFF_SCHEMA}")
    return content


def _diff(content: dict[str, Any], number: int, folder: Path) -> dict[str, Any]:
    """What the page shows of a comparison of setups; its figure is written into the folder."""
    name = f"diff-{number:03d}"
    targets = [folder / f"{name}.{kind}" for kind in ("svg", "png")]
    write_figure(partial(parity_figure, content), *targets)
    sides = {side: content[side].get("text", "a saved reference") for side in ("a", "b")}
    sentences = [plain(each) for each in content["sentences"]]
    return {**sides, "src": f"figures/{name}", "sentences": sentences}
