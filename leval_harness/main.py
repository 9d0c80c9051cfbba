"""`leval-harness`: thin commands over library functions.

Commands are imported only when they are used, so that `--help` costs no torch.
"""

import importlib
import sys

import click

# command -> module of this package; the click command there is called `command`
COMMANDS = {
    "sweep": "sweep",
    "table": "table",
    "page": "page",
    "lm-eval": "lm_eval",
    "rope": "rope",
    "check": "check",
    "export": "export",
    "prompt": "prompt",
    "score": "score",
    "data": "data",
    "model": "model",
    "posgen": "posgen",
    "finetune": "finetune",
}


class LazyGroup(click.Group):
    """A click group whose commands are modules named in `COMMANDS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Command names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of one command."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"leval_harness.{COMMANDS[cmd_name]}")
        command: click.Command = module.command
        return command


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="leval-harness")
def cli() -> None:
    """How far does this model really read, and which RoPE scaling method gets it there?"""


def main() -> None:
    """Console entry point.

    Exit codes: 0 fine, 1 failed, 2 wrong usage, 130 after Ctrl-C. A `ValueError` or `OSError` is
    the user's to mend (bad input, missing file): it is printed without a traceback. Set
    `LEVAL_HARNESS_DEBUG=1` to see where it was raised.
    """
    from leval_harness.errors import exit_code_for

    try:
        sys.exit(cli.main(standalone_mode=False) or 0)
    except BaseException as error:  # noqa: BLE001 - the one place that turns errors into exit codes
        sys.exit(exit_code_for(error))
