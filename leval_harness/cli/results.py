"""Commands that show results: `table` and `page`."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leval_harness.cli.output import (
    FOLDER,
    examples,
    results_argument,
    table_options,
    write_or_print,
)
from leval_harness.results.layout import WRITTEN
from resonance_vllm.common.errors import RunError, SettingError
from resonance_vllm.common.files import write_text

if TYPE_CHECKING:
    import pandas as pd

    from leval_harness.api import Comparison
    from leval_harness.report.table import Table

MOST_NOTES = 5
"""Excluded files that are named; the others are counted."""
MOST_ROWS = 40
"""Rows of a table that is printed at the end of a sweep; longer ones are named."""


def comparison_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options on what is compared, which `table` and `page` share."""
    # click lists the option that was added last first
    for option in (
        click.option(
            "--margin", type=click.FloatRange(min=0, max=1, min_open=True), metavar="NATS",
            help="Effective context length: loss increases below this many nats/token are treated "
            "as zero.", show_default="the sweep's, else 0.05",
        ),
        click.option(
            "--method-name", "names", multiple=True, metavar="METHOD=NAME",
            help="Show a method, or one run by its id or folder, under another name. Repeatable.",
        ),
        click.option(
            "--baseline", metavar="METHOD", help="Method that the others are compared with.",
            show_default="the sweep's",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


@click.command(
    epilog=examples(
        "leval-harness table results/quickstart",
        "leval-harness table results/quickstart --baseline yarn --format tex --out table.tex",
    )
)
@results_argument
@table_options
@click.option(
    "--across", type=click.Choice(("methods", "models")), default="methods",
    help="Compare the methods of each model, or the models with each other, on the same questions.",
)  # fmt: skip
@comparison_options
@click.option("--published", is_flag=True, help="Show the paper's published rows beside yours.")
def table(
    results: tuple[Path, ...],
    output: str | None,
    out: Path | None,
    as_json: bool,
    published: bool,
    names: tuple[str, ...],
    **how: Any,
) -> None:
    """Show the verdict and the tables of one or more RESULTS folders.

    RESULTS are folders of sweeps, or folders that lm-eval wrote results to. Exit code 1 says that a
    number is NaN or infinite.
    """
    loaded = read_results(results, names, **how)
    if how["across"] == "methods" and loaded.compared["model"].nunique() > 1:
        click.echo("Several models: --across models compares them on the same questions.", err=True)
    if output is None and out is None and not as_json and sys.stdout.isatty():
        from leval_harness.report.tables import build_tables

        show(loaded, build_tables(loaded.compared, published))
    else:
        form = output or "text"
        if as_json:
            form = "json"
        elif output is None and out is not None:
            form = "md"
        write_or_print(loaded.table(form, published), out)
    check_finite(loaded.compared)


@click.command(epilog=examples("leval-harness page results/quickstart --out public/leaderboard"))
@results_argument
@click.option(
    "--out", required=True, type=FOLDER, help="Folder of the page; an earlier page is replaced."
)
@comparison_options
@click.option("--title", default="Long-context leaderboard", help="Heading of the page.")
def page(
    results: tuple[Path, ...], out: Path, names: tuple[str, ...], title: str, **how: Any
) -> None:
    """Write a leaderboard page with tables and figures for one or more RESULTS folders.

    The page opens from disk: open index.html of the folder in a browser.
    """
    index = read_results(results, names, **how).page(out, title)
    click.echo(f"Page: {index.resolve()}")


def read_results(folders: Sequence[Path], names: Sequence[str] = (), **how: Any) -> "Comparison":
    """Read results and report the files that were excluded.

    Args:
        folders: results folders.
        names: other names of methods, `METHOD=NAME`.
        **how: arguments of `leval_harness.load` on what is compared.

    Raises:
        SettingError: a name is not of the form METHOD=NAME.
        ResultsError: nothing readable, or no such method.
    """
    from leval_harness.api import load

    method_names = {}
    for text in names:
        method, sign, name = text.partition("=")
        if not (method and sign and name):
            raise SettingError(f"--method-name: {text!r} is not of the form METHOD=NAME")
        method_names[method] = name
    loaded = load(*folders, method_names=method_names, **how)
    # excluded numbers (with a value) are listed by the Python API only
    files = [excluded for excluded in loaded.excluded if excluded.value is None]
    for file in files[:MOST_NOTES]:
        click.echo(f"Excluded: {file}", err=True)
    if len(files) > MOST_NOTES:
        click.echo(f"Excluded: {len(files) - MOST_NOTES} more", err=True)
    return loaded


def check_finite(compared: "pd.DataFrame") -> None:
    """Refuse to call results complete in which a number is NaN or infinite.

    Raises:
        RunError: there is such a number; the message says where.
    """
    from leval_harness.report.labels import task_titles
    from leval_harness.results.lm_eval_files import NOT_FINITE

    rows = compared[compared["status"].eq(NOT_FINITE)]
    if rows.empty:
        return
    first = rows.iloc[0]
    task = task_titles(rows).iloc[0]
    more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    raise RunError(f"{first['label']}, {task}, {first['name']}: {first['note']}{more}")


def show(loaded: "Comparison", tables: Sequence["Table"]) -> None:
    """Print the verdict and some tables: drawn on a terminal, plain text elsewhere."""
    from leval_harness.report.formats import draw, draw_verdict, render
    from leval_harness.report.uncompared import uncompared_sentences
    from leval_harness.report.verdict import verdicts

    if not sys.stdout.isatty():
        click.echo(render(tables, loaded.compared, "text"), nl=False)
        return
    from rich.console import Console

    console = Console(highlight=False)
    for verdict in verdicts(loaded.compared):
        draw_verdict(verdict, console)
    for sentence in uncompared_sentences(loaded.compared):
        console.print(sentence, markup=False)
    for each_table in tables:
        draw(each_table, console)


def write_report(results_dir: Path) -> None:
    """Write the tables and the page of a sweep into its folder, and print verdict and tables.

    Tables with more than `MOST_ROWS` rows are named instead of printed.

    Raises:
        ResultsError: nothing readable in the folder.
        OSError: the folder cannot be written.
    """
    from leval_harness.report.formats import render
    from leval_harness.report.tables import build_tables

    loaded = read_results([results_dir])
    tables = build_tables(loaded.compared)
    for form in WRITTEN:
        write_text(results_dir / f"table.{form}", render(tables, loaded.compared, form))
    shown_in_full = [table for table in tables if len(table.cells) <= MOST_ROWS]
    show(loaded, shown_in_full)
    for table in tables:
        if len(table.cells) > MOST_ROWS:
            click.echo(f"Not shown: {table.title} ({len(table.cells)} rows), in table.md")
    other_forms = ", ".join(f"table.{form}" for form in WRITTEN[1:])
    click.echo(f"\nTables: {results_dir / 'table.md'} (also {other_forms})")
    click.echo(f"Page:   {loaded.page(results_dir / 'page').resolve()}")
