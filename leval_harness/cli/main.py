"""`leval-harness`: thin commands over library functions.

Commands are imported only when they are used, so that `--help` costs no torch.
"""

import importlib
import sys
from collections.abc import Sequence
from typing import NoReturn, cast

import click

GROUPS = {
    "Evaluate": {
        "sweep": ("sweep", "Compare models, methods and context lengths; resumable."),
        "lm-eval": ("lm_eval", "lm-eval's own command line, with our methods, models and tasks."),
        "diff": ("diff", "Does setup B still read like A? By token losses, with a verdict."),
        "prompt": ("prompt", "Show what a model is really asked, and where documents are cut."),
    },
    "Results": {
        "table": ("results", "Tables of what came out: Markdown, LaTeX, HTML, CSV, JSON."),
        "page": ("results", "A leaderboard page with figures that opens from disk."),
        "score": ("score", "Score answers in L-Eval's published format."),
    },
    "RoPE methods": {
        "rope": ("rope", "What a method does to every feature: frequencies and gaps."),
        "check": ("checkpoints", "What a model will really run with, before it runs."),
        "export": ("checkpoints", "A checkpoint that stock transformers and vLLM run as it is."),
    },
    "Models and data": {
        "model": ("checkpoints", "Prepare a small real model to begin with."),
        "data": ("data", "Fetch or verify the documents of the tasks."),
    },
    "Train": {
        "posgen": ("training", "Train small models short and test them long."),
        "finetune": ("training", "Adapt a model to a method on long text."),
    },
}
"""Commands under their headings, each with its module and its summary. The click command has the
name of the command: `leval_harness.cli.results.table`, `leval_harness.cli.lm_eval.lm_eval`."""

COMMANDS = {name: module for group in GROUPS.values() for name, (module, _) in group.items()}


class LazyGroup(click.Group):
    """A click group whose commands are modules of this package, named in `GROUPS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Command names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of one command."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"leval_harness.cli.{COMMANDS[cmd_name]}")
        return cast(click.Command, getattr(module, cmd_name.replace("-", "_")))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """A line for each command, under its heading."""
        for heading, commands in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, text) for name, (_, text) in commands.items()])


@click.command(
    cls=LazyGroup,
    commands=dict.fromkeys(COMMANDS),  # for click's hint at a name that is near
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(package_name="leval-harness")
def app() -> None:
    """How far does this model really read, and which RoPE method gets it there?

    \b
    Three commands to begin with:
      leval-harness model smollm2               a small real model
      leval-harness sweep quickstart            three methods compared on it
      leval-harness table results/quickstart    what came out, as a table

    Every command has --help with an example.
    """  # noqa: D301 - click's mark of a paragraph that is not wrapped


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Console entry point.

    Exit codes: 0 fine, 1 failed, 2 wrong usage, 130 after Ctrl-C. What a user can mend is printed
    without a traceback; set `LEVAL_HARNESS_DEBUG=1` to see where it was raised.
    """
    from leval_harness.cli.console import exit_code_for

    try:
        sys.exit(app.main(arguments, standalone_mode=False) or 0)
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - the place that turns errors into exit codes
        sys.exit(exit_code_for(error))
