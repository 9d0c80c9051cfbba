"""`leval-harness`: thin commands over library functions.

The module of a command is imported when the command is used, so that `--help` loads no torch.
"""

import importlib
import sys
from collections.abc import Sequence
from typing import NoReturn, cast

import click

GROUPS = {
    "Evaluate": {
        "sweep": ("sweep", "Compare models, methods and context lengths; resumable."),
        "lm-eval": ("lm_eval", "Run lm-eval with this package's methods, models and tasks."),
        "diff": ("diff", "Compare the token losses of two setups of a model."),
        "prompt": ("prompt", "Show the prompts that a model gets, and where documents are cut."),
    },
    "Results": {
        "table": ("results", "Show verdict and tables: Markdown, LaTeX, HTML, CSV, JSON."),
        "page": ("results", "Write a leaderboard page with figures that opens from disk."),
        "score": ("score", "Score answers in L-Eval's published format."),
    },
    "RoPE methods": {
        "rope": ("rope", "Print each feature's frequency, wavelength and gap under a method."),
        "check": ("checkpoints", "Show the RoPE settings that each library would use for a model."),
        "export": ("checkpoints", "Write a checkpoint that stock libraries run with a method."),
    },
    "Models and data": {
        "model": ("checkpoints", "Prepare a small real model to begin with."),
        "data": ("data", "Fetch or verify the documents of L-Eval's tasks."),
    },
    "Train": {
        "posgen": ("training", "Train small models on short sequences and test them on long ones."),
        "finetune": ("training", "Fine-tune a model on long text with a RoPE method."),
    },
}
"""Heading -> command -> its module and its summary. The click command in the module has the name
of the command: `leval_harness.cli.results.table`, `leval_harness.cli.lm_eval.lm_eval`."""

COMMANDS = {name: module for group in GROUPS.values() for name, (module, _) in group.items()}
"""Command -> its module in `leval_harness.cli`."""


class LazyGroup(click.Group):
    """A click group whose commands are modules of this package, named in `GROUPS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the command names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a command and return the command, or None if there is no such one."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"leval_harness.cli.{COMMANDS[cmd_name]}")
        return cast(click.Command, getattr(module, cmd_name.replace("-", "_")))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a line for each command, under its heading."""
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
    """Measure up to which length a model uses its context, and which RoPE method extends it.

    \b
    Three commands to begin with:
      leval-harness model smollm2               prepare a small real model
      leval-harness sweep quickstart            compare three methods on it
      leval-harness table results/quickstart    show the results again

    Every command has --help with an example.
    """  # noqa: D301 - click's mark of a paragraph that is not wrapped


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit.

    Exit codes: 0 success, 1 failure, 2 wrong usage or input, 130 after Ctrl-C; `diff` also has 3
    and 4. An error that the user can fix is printed without a traceback; with the environment
    variable LEVAL_HARNESS_DEBUG=1 the traceback is printed, too.

    Args:
        arguments: words after `leval-harness`; None for those of the process.
    """
    from leval_harness.cli.console import exit_code_for

    try:
        sys.exit(app.main(arguments, standalone_mode=False) or 0)
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - every error becomes an exit code here
        sys.exit(exit_code_for(error))
