"""Options and output that several commands share."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leval_leaderboard.format_names import format_names

if TYPE_CHECKING:
    from leval_leaderboard.results import Results

FOLDER = click.Path(file_okay=False, path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
json_option = click.option("--json", "as_json", is_flag=True, help="JSON alone on standard output.")
results_argument = click.argument(
    "results", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path)
)


def table_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--format`, `--json` and `--out` of the commands that print tables."""
    formats = click.Choice(format_names())
    form_help = "csv writes every number, the others the table people read."
    json_help = "Every number as JSON instead of a table."
    command = click.option("--out", type=FILE, help="Write to this file.")(command)
    command = click.option("--json", "as_json", is_flag=True, help=json_help)(command)
    return click.option("--format", "output", type=formats, default="md", help=form_help)(command)


def write_or_print(text: str, out: Path | None) -> None:
    """To a file, which is said, or to standard output."""
    from leval_border.files import write_text

    if out is None:
        click.echo(text, nl=False)
    else:
        write_text(out, text)
        click.echo(f"Written: {out}", err=True)


def records_text(records: Sequence[Mapping[str, object]]) -> str:
    """A table's rows as JSON."""
    return json.dumps(records, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def read_results(folders: Sequence[Path]) -> "Results":
    """Read results; what stands out in them is said."""
    from leval_leaderboard.results import load_results
    from leval_leaderboard.tables.escape import plain

    results = load_results(*folders)
    for warning in results.warnings:
        click.echo(f"Note: {plain(warning)}", err=True)
    return results
