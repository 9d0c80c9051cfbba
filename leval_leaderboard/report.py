"""What a sweep ends with: the tables in every format and the page, beside the results."""

from pathlib import Path

import click

from leval_border.files import write_text
from leval_leaderboard.tables.escape import plain


def write_report(results_dir: Path) -> None:
    """Write `table.md`, `.csv`, `.tex`, `.html` and `page/` into a results folder; show the tables.

    Args:
        results_dir: a results folder that `load_results` reads.

    Raises:
        ResultsError: nothing readable in the folder.
        OSError: the folder cannot be written.
    """
    from leval_leaderboard.page import write_page
    from leval_leaderboard.results import load_results
    from leval_leaderboard.tables import analyse, build_tables, details_table, render

    results = load_results(results_dir)
    analysis = analyse(results)
    tables = build_tables(analysis)
    for name in ("md", "tex", "html"):
        write_text(results_dir / f"table.{name}", render(tables, name))
    write_text(results_dir / "table.csv", render([details_table(analysis)], "csv"))
    click.echo(render(tables, "md"))
    for warning in results.warnings:
        click.echo(f"Note: {plain(warning)}", err=True)
    index = write_page(analysis, results_dir / "page")
    click.echo(f"Tables: {results_dir / 'table.md'} (also .csv, .tex, .html)")
    click.echo(f"Page:   {index.resolve()}")
