"""Commands that show results: `table` and `page`."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leval_harness.cli.output import FOLDER, results_argument, table_options, write_or_print
from leval_harness.results.layout import WRITTEN
from resonance_vllm.common.errors import SettingError
from resonance_vllm.common.files import write_text

if TYPE_CHECKING:
    from leval_harness.api import Comparison
    from leval_harness.report.table import Table

MOST_NOTES = 5
"""Lines on what was left out; the others are counted."""


def comparing(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options on what is compared, of both commands."""
    for option in (
        click.option(
            "--margin", type=click.FloatRange(min=0, max=1, min_open=True), default=None,
            metavar="NATS", help="Effective context length: a smaller loss counts as none, nats a "
            "token. Default: the sweep's, else 0.05.",
        ),
        click.option(
            "--method-name", "names", multiple=True, metavar="METHOD=NAME",
            help="Another name of a method, or of one run by its id or folder. Repeatable.",
        ),
        click.option("--baseline", help="Method to compare with; default: the sweep's."),
    ):  # fmt: skip
        command = option(command)
    return command


@click.command(
    epilog="Example: leval-harness table results/all-methods --baseline yarn --format tex"
)
@results_argument
@table_options
@click.option(
    "--across", type=click.Choice(("methods", "models")), default="methods",
    help="What is compared on the same questions.",
)  # fmt: skip
@comparing
@click.option("--published", is_flag=True, help="Show the paper's rows beside ours.")
def table(
    results: tuple[Path, ...],
    output: str | None,
    out: Path | None,
    as_json: bool,
    published: bool,
    names: tuple[str, ...],
    **how: Any,
) -> None:
    """Compare methods from one or more RESULTS folders, also plain lm-eval output."""
    loaded = read_results(results, names, **how)
    if how["across"] == "methods" and loaded.compared["model"].nunique() > 1:
        click.echo("Several models: --across models compares them on the same questions.", err=True)
    if output is None and out is None and not as_json and sys.stdout.isatty():
        from leval_harness.report.tables import build_tables

        show(loaded, build_tables(loaded.compared, published))
    else:
        form = output or ("text" if out is None else "md")
        write_or_print(loaded.table("json" if as_json else form, published), out)


@click.command(epilog="Example: leval-harness page results/all-methods --out public/leaderboard")
@results_argument
@click.option("--out", required=True, type=FOLDER, help="Folder; an earlier page is replaced.")
@comparing
@click.option("--title", default="Long-context leaderboard")
def page(
    results: tuple[Path, ...], out: Path, names: tuple[str, ...], title: str, **how: Any
) -> None:
    """Write a page that opens from disk, from one or more RESULTS folders."""
    index = read_results(results, names, **how).page(out, title)
    click.echo(f"Page: {index.resolve()}")


def read_results(folders: Sequence[Path], names: Sequence[str] = (), **how: Any) -> "Comparison":
    """Read results and print what was left out of them; `names` are `METHOD=NAME`.

    Raises:
        ResultsError: nothing readable, or no such method.
    """
    from leval_harness.api import load

    pairs = [each.partition("=") for each in names]
    for method, sign, name in pairs:
        if not (method and sign and name):
            raise SettingError(f"--method-name: {method}{sign}{name} is not METHOD=NAME")
    loaded = load(*folders, method_names={method: name for method, _, name in pairs}, **how)
    files = [each for each in loaded.excluded if each.value is None]  # numbers: in Python
    for each in files[:MOST_NOTES]:
        click.echo(f"Left out: {each}", err=True)
    if len(files) > MOST_NOTES:
        click.echo(f"Left out: {len(files) - MOST_NOTES} more", err=True)
    return loaded


def show(loaded: "Comparison", tables: Sequence["Table"]) -> None:
    """The verdict and some tables; drawn on a terminal, Markdown elsewhere."""
    from leval_harness.report.formats import draw, draw_verdict, render
    from leval_harness.report.verdict import verdicts

    if not sys.stdout.isatty():
        click.echo(render(tables, loaded.compared, "text"), nl=False)
        return
    from rich.console import Console

    console = Console(highlight=False)
    for verdict in verdicts(loaded.compared):
        draw_verdict(verdict, console)
    for each in tables:
        draw(each, console)


def write_report(results_dir: Path) -> None:
    """Write `table.md` and its like, and `page/`, into a results folder; show the main things.

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
    show(loaded, tables[:1])
    others = ", ".join(f".{form}" for form in WRITTEN[1:])
    more = f"{len(tables)} tables" if len(tables) > 1 else "the table"
    click.echo(f"\nTables: {results_dir / 'table.md'} ({more}; also {others})")
    click.echo(f"Page:   {loaded.page(results_dir / 'page').resolve()}")
