"""Options and output that several commands share."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click
from pydantic import BaseModel

from leval_harness.results.layout import FORMATS

Command = Callable[..., Any]


FOLDER = click.Path(file_okay=False, path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
EXISTING_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON alone on standard output."
)
results_argument = click.argument(
    "results", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path)
)


def examples(*lines: str) -> str:
    """Return the epilog of a command's help: shell lines, each of which runs as it is written."""
    # \b keeps click from wrapping the lines
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def model_path(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Return the folder of a prepared model (`smollm2`), or any other model text unchanged."""
    from leval_harness.models.prepare import local_path

    return local_path(value)


def model_folder(context: click.Context, parameter: click.Parameter, value: str) -> Path:
    """Return the folder of a model, which has to be on this machine."""
    path = model_path(context, parameter, value)
    folder: Path = EXISTING_FOLDER.convert(path, parameter, context)
    return folder


def setting_options(model: type[BaseModel]) -> Callable[[Command], Command]:
    """Add an option for each plain field of a settings class, which alone knows its range.

    The command gets None where an option is not given, see `given_options`.
    """

    def add_options(command: Command) -> Command:
        # click lists the option that was added last first
        for name, field in reversed(model.model_fields.items()):
            kind: Any = field.annotation
            if get_origin(kind) is Literal:
                kind = click.Choice(get_args(kind))
            elif kind not in (bool, int, float, str):
                continue
            flag = f"--{name.replace('_', '-')}"
            if kind is bool:
                flag = f"{flag}/--no-{name.replace('_', '-')}"
            command = click.option(flag, type=kind, default=None, help=field.description)(command)
        return command

    return add_options


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given; the others are None, or () where they are repeatable."""
    return {name: value for name, value in options.items() if value not in (None, ())}


def table_options(command: Command) -> Command:
    """Add `--format`, `--json` and `--out`, which the commands that print tables share."""
    command = click.option(
        "--out", type=FILE, help="Write to this file instead of standard output."
    )(command)
    command = json_option(command)
    return click.option(
        "--format",
        "output",
        type=click.Choice(FORMATS),
        help="Format of the output. csv and json have every number, the others the tables that "
        "people read.",
        show_default="drawn on a terminal, md in files and pipes",
    )(command)


def write_or_print(text: str, out: Path | None) -> None:
    """Print a text, or write it to a file and report that."""
    from resonance_vllm.common.files import write_text

    if out is None:
        click.echo(text, nl=False)
        return
    if out.exists() and not out.is_file():
        # a pipe or device such as /dev/stdout: write_text would rename a new file into its place
        out.write_text(text, encoding="utf-8")
    else:
        write_text(out, text)
    click.echo(f"Written: {out}", err=True)
