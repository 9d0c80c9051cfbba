"""`leval-harness`: thin commands over library functions.

Commands are imported only when they are used, so that `--help` costs no torch.
"""

import importlib
import io
import sys
from collections.abc import Sequence
from typing import NoReturn, cast

import click

GROUPS = {
    "Evaluate": {
        "sweep": "Compare models, methods and context lengths; resumable.",
        "lm-eval": "lm-eval's own command line, with our methods, models and tasks.",
        "diff": "Does setup B still read like A? By token losses, with a verdict.",
        "prompt": "Show what a model is really asked, and where texts are cut.",
    },
    "Results": {
        "table": "Tables of what came out: Markdown, LaTeX, HTML, CSV, JSON.",
        "page": "A leaderboard page with figures that opens from disk.",
        "card": "Results as Every Eval Ever records and the Hub's .eval_results.",
        "upload": "Results, a page or cards to a repository of the Hub.",
        "score": "Score answers in L-Eval's published format.",
    },
    "RoPE methods": {
        "rope": "What a method does to every feature: frequencies and gaps.",
        "check": "What a model will really run with, before it runs.",
        "export": "A checkpoint that stock transformers and vLLM run as it is.",
    },
    "Models and data": {
        "model": "Prepare a small real model to begin with.",
        "data": "List, verify or fetch the documents of the tasks.",
    },
    "Train": {
        "posgen": "Train small models short and test them long.",
        "finetune": "Adapt a model to a method on long text.",
    },
}
"""Commands under their headings, each with its summary. The click command of `lm-eval` is
`leval_harness.cli.lm_eval.command`, and so on."""

COMMANDS = [name for commands in GROUPS.values() for name in commands]


class LazyGroup(click.Group):
    """A click group whose commands are modules of this package, named in `GROUPS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Command names in the order of the table."""
        return COMMANDS

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of one command."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"leval_harness.cli.{cmd_name.replace('-', '_')}")
        return cast(click.Command, module.command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the nearest commands where there is none of a name."""
        from leval_border.errors import hint

        if args[0] not in COMMANDS and not ctx.resilient_parsing:
            ctx.fail(f"no command {args[0]!r}{hint(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """A line for each command, under its heading."""
        for heading, commands in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl(list(commands.items()))


@click.command(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "show_default": True}
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
    from leval_harness.cli.console import safe_streams
    from leval_harness.cli.errors import exit_code_for

    # The name of a file may not be valid text; printing it must not fail.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    with safe_streams():
        try:
            sys.exit(app.main(arguments, standalone_mode=False) or 0)
        except BaseException as error:  # noqa: BLE001 - the place that turns errors into exit codes
            sys.exit(exit_code_for(error))
