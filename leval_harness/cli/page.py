"""`leval-harness page`: the static leaderboard page."""

from pathlib import Path

import click

from leval_border.errors import printable
from leval_harness.cli.output import EXISTING_FILE, FOLDER, read_results, results_argument


@click.command(
    name="page", epilog="Example: leval-harness page results/all-methods --out public/leaderboard"
)
@results_argument
@click.option("--out", required=True, type=FOLDER, help="Folder; an earlier page is replaced.")
@click.option("--baseline", help="Method to compare with at first; the page can change it.")
@click.option(
    "--diff", "diffs", multiple=True, type=EXISTING_FILE,
    help="A diff.json of leval-harness diff to show; may be repeated.",
)  # fmt: skip
@click.option("--title", default="Long-context leaderboard")
def command(
    results: tuple[Path, ...], out: Path, baseline: str | None, diffs: tuple[Path, ...], title: str
) -> None:
    """Write a leaderboard page that opens from disk, from one or more RESULTS folders."""
    from leval_harness.analysis import analyse
    from leval_harness.page import write_page
    from leval_harness.page.write import read_diff

    shown = [read_diff(path) for path in diffs]
    index = write_page(analyse(read_results(results), baseline), out, title, shown)
    click.echo(f"Page: {printable(str(index.resolve()))}")
