"""`leval-harness page`: the static leaderboard page."""

from pathlib import Path

import click


@click.command(
    name="page", epilog="Example: leval-harness page results/all-methods --out public/leaderboard"
)
@click.argument("results", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder to write; an earlier page there is replaced.",
)
@click.option("--baseline", help="Method to compare with at first; the page can change it.")
@click.option("--title", default="Long-context leaderboard", show_default=True)
def command(results: tuple[Path, ...], out: Path, baseline: str | None, title: str) -> None:
    """Write a leaderboard page that opens from disk, from one or more RESULTS folders."""
    from leval_leaderboard.page import write_page
    from leval_leaderboard.results import load_results
    from leval_leaderboard.tables import analyse
    from leval_leaderboard.tables.escape import plain

    read = load_results(*results)
    for warning in read.warnings:
        click.echo(f"Note: {plain(warning)}", err=True)
    index = write_page(analyse(read, baseline), out, title)
    click.echo(f"Page: {index.resolve()}")
