"""`leval-harness lm-eval`: lm-eval's own command line with everything of ours registered."""

import argparse
import logging
from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import patch

import click

from leval_harness.backends import take_over
from leval_harness.cli.lm_eval_run import complete, requests_cache
from resonance_vllm.checkpoint.arguments import ROPE_PRECISIONS
from resonance_vllm.common.errors import SettingError, UserError, install_hint


@click.command(
    name="lm-eval",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
@click.option("--rope", metavar="TYPE:key=value,…", help="E.g. resonance_yarn:factor=2.")
@click.option(
    "--rope-precision", type=click.Choice(ROPE_PRECISIONS),
    help="Of the rotation on transformers. [default: float32]",
)  # fmt: skip
@click.option(
    "--context-length", type=click.IntRange(min=1),
    help="Longest sequence in tokens. [default: that of --model_args, else the settings' limit]",
)  # fmt: skip
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def lm_eval(context: click.Context, /, arguments: tuple[str, ...], **options: Any) -> None:
    """Run lm-eval with our RoPE types, models and tasks registered; its arguments follow.

    Example: leval-harness lm-eval run --model hf --model_args pretrained=MODEL --tasks leval_closed
    --rope resonance_yarn:factor=2 --metadata '{"data_dir": "sample"}'
    """
    if {"-h", "--help"} & set(arguments) or not arguments:
        click.echo(context.get_help() + "\n")
    if options["rope"] is None and any(options.values()):
        raise SettingError("--rope-precision and --context-length go with --rope")
    _register()
    try:
        _run(options, arguments)
    except AssertionError as error:
        if not str(error):
            raise
        raise UserError(str(error)) from error  # lm-eval's own way to refuse an argument
    except ValueError as error:
        if not str(error).startswith("Tasks not found"):
            raise
        raise SettingError(f"{error}; `leval-harness lm-eval ls tasks` lists them") from error


def _run(options: Mapping[str, Any], arguments: Sequence[str]) -> None:
    """What lm-eval's own command does, with our options in its settings."""
    from lm_eval.utils import setup_logging

    setup_logging()
    settings = parsed(arguments)
    if settings.command != "run":
        if options["rope"] is not None:
            raise SettingError("--rope goes with `run --model_args pretrained=MODEL --tasks …`")
        settings.func(settings)
        return
    values = complete(settings, options)
    take_over(values["model"])
    with requests_cache(values):
        settings.func(settings)


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Arguments as lm-eval's own parser reads them; it reads those of the process."""
    from lm_eval._cli.harness import HarnessCLI

    with patch("sys.argv", ["lm-eval", *arguments]):
        return HarnessCLI().parse_args()


def _register() -> None:
    """RoPE types into transformers, models into lm-eval; vLLM and tasks find ours by themselves."""
    try:
        import leval_harness.backends
        from leval_harness.training import t5
        from resonance_vllm import hf
    except ImportError as error:
        without = f"running without our RoPE types and backends; {install_hint('hf')}"
        logging.getLogger(__name__).warning("%s: %s", error, without)
        return
    hf.register()
    t5.register()
    leval_harness.backends.register()
