"""`leval-harness lm-eval`: lm-eval's own command line with everything of ours registered."""

import argparse
import logging
from typing import NoReturn
from unittest.mock import patch

import click

from leval_harness.backends import take_over
from leval_harness.cli.lm_eval_run import RopeOptions, complete, requests_cache
from resonance_vllm.config import ROPE_PRECISIONS
from resonance_vllm.errors import SettingError, UserError, needs_extra

_ROPE_HELP = """\
RoPE settings (added by leval-harness; everything below is lm-eval's own):
  --rope TYPE:key=value,…          e.g. resonance_yarn:factor=2; what the model's config.json knows
                                   is filled in (models that transformers or vLLM runs)
  --rope-precision float32|model   precision of the rotation on transformers (default float32)
  --context-length N               longest sequence in tokens (default: max_length or max_model_len
                                   of --model_args, else the limit of the settings)
Example: leval-harness lm-eval run --model hf --model_args pretrained=MODEL
             --rope resonance_yarn:factor=2 --tasks leval_closed --metadata '{"data_dir": "sample"}'
"""


@click.command(
    name="lm-eval",
    add_help_option=False,
    context_settings={
        "ignore_unknown_options": True,
        "allow_extra_args": True,
        "allow_interspersed_args": False,
    },
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def lm_eval(arguments: tuple[str, ...]) -> None:
    """Run lm-eval with our RoPE types, models and tasks registered; its arguments follow."""
    ours, rest = own_options(list(arguments))
    if any(argument in ("-h", "--help") for argument in rest) or not rest:
        click.echo(_ROPE_HELP)
    _register()
    try:
        _run(ours, rest)
    except AssertionError as error:
        if not str(error):
            raise
        raise UserError(str(error)) from error  # lm-eval's own way to refuse an argument
    except ValueError as error:
        if not str(error).startswith("Tasks not found"):
            raise
        raise SettingError(f"{error}; `leval-harness lm-eval ls tasks` lists them") from error


def _run(ours: RopeOptions, rest: list[str]) -> None:
    """What lm-eval's own command does, with our options in its settings."""
    from lm_eval.utils import setup_logging

    setup_logging()
    settings = parsed(rest)
    if settings.command != "run":
        if ours.rope is not None:
            raise SettingError("--rope goes with `run --model_args pretrained=MODEL --tasks …`")
        settings.func(settings)
        return
    values = complete(settings, ours)
    take_over(values["model"])
    with requests_cache(values):
        settings.func(settings)


def parsed(arguments: list[str]) -> argparse.Namespace:
    """Arguments as lm-eval's own parser reads them; it reads those of the process."""
    from lm_eval._cli.harness import HarnessCLI

    with patch("sys.argv", ["lm-eval", *arguments]):
        return HarnessCLI().parse_args()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingError(message.removeprefix("argument "))


def own_options(arguments: list[str]) -> tuple[RopeOptions, list[str]]:
    """Our options, and the arguments that are left to lm-eval.

    Raises:
        SettingError: an option of ours with a value that it does not take, or without `--rope`.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--rope")
    parser.add_argument("--rope-precision", choices=ROPE_PRECISIONS)
    parser.add_argument("--context-length", type=int)
    found, rest = parser.parse_known_args(arguments)
    ours = RopeOptions(found.rope, found.rope_precision, found.context_length)
    if ours.rope is None and ours != RopeOptions():
        raise SettingError("--rope-precision and --context-length go with --rope")
    return ours, rest


def _register() -> None:
    """RoPE types into transformers, models into lm-eval; vLLM and tasks find ours by themselves."""
    try:
        import leval_harness.backends
        from leval_harness.training import t5
        from resonance_vllm import hf
    except ImportError as error:
        without = f"running without our RoPE types and backends; {needs_extra('hf')}"
        logging.getLogger(__name__).warning("%s: %s", error, without)
        return
    hf.register()
    t5.register()
    leval_harness.backends.register()
