"""What a sweep ends with: the tables in every format and the page, beside the results."""

from pathlib import Path

import click

from leval_border.files import write_text
from leval_harness.cli.output import show_tables, show_verdict
from leval_harness.format_names import format_names
from leval_harness.secrets import redact
from leval_harness.tables.formats import plain


def write_report(results_dir: Path) -> None:
    """Write `table.md` and its like, and `page/`, into a results folder; show tables and verdict.

    Raises:
        ResultsError: nothing readable in the folder.
        OSError: the folder cannot be written.
    """
    from leval_harness.analysis import analyse
    from leval_harness.page import write_page
    from leval_harness.results import load_results
    from leval_harness.tables import build_tables, details_table
    from leval_harness.tables.formats import load_format

    results = load_results(results_dir)
    analysis = analyse(results)
    tables, every_number = build_tables(analysis), [details_table(analysis)]
    written = []
    for name in format_names():
        form = load_format(name)
        if form.suffix:
            text = redact(form.text(every_number if form.every_number else tables), names=False)
            write_text(results_dir / f"table.{form.suffix}", text)
            written.append(f".{form.suffix}")
    show_tables(tables)
    for warning in results.warnings:
        click.echo(f"Note: {plain(warning)}", err=True)
    index = write_page(analysis, results_dir / "page")
    others = ", ".join(suffix for suffix in written if suffix != ".md")
    click.echo(f"Tables: {results_dir / 'table.md'} (also {others})")
    click.echo(f"Page:   {index.resolve()}")
    show_verdict(analysis)
