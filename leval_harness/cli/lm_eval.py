"""`leval-harness lm-eval`: lm-eval's own command line with everything of ours registered."""

import argparse
import contextlib
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import click

from leval_harness.cli.console import exit_code_for, safe_streams
from leval_harness.cli.lm_eval_run import RopeOptions, completing
from leval_harness.secrets import redact_samples, without_credentials
from resonance_vllm.errors import SettingError, UserError, near, needs_extra, not_allowed

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
    with safe_streams(names=True, plain=True):
        try:
            _run(list(arguments))
        except BaseException as error:  # noqa: BLE001 - the message must pass the safe streams
            sys.exit(exit_code_for(error))


def _run(arguments: list[str]) -> None:
    started_in = dict(os.environ)  # to which libraries add once they are imported
    ours, rest = own_options(arguments)
    runs = rest[:1] == ["run"] or (rest[:1] and rest[0].startswith("-"))
    if ours.rope is not None and (not runs or rest == ["run"]):
        raise SettingError("--rope goes with `run --model_args pretrained=MODEL --tasks …`")
    if any(argument in ("-h", "--help") for argument in rest) or not rest:
        click.echo(_ROPE_HELP)
    _register()
    from lm_eval.__main__ import cli_evaluate

    before, sys.argv = sys.argv, ["lm-eval", *rest]
    try:
        with _safe_results(started_in), completing(ours):
            cli_evaluate()
    except AssertionError as error:
        if not str(error):
            raise
        raise UserError(str(error)) from error  # lm-eval's own way to refuse an argument
    except ValueError as error:
        missing = re.match(r"Tasks not found: (.+)", str(error))
        if missing is None:
            raise
        raise UserError(_with_near_tasks(missing[1].split(", "))) from error
    finally:
        sys.argv = before


def _with_near_tasks(missing: Sequence[str]) -> str:
    """A message about tasks that lm-eval does not find, with the names that are similar."""
    from leval_harness.sweep.task_registry import lm_eval_index, own_tasks

    known = [*own_tasks(), *lm_eval_index()]
    return "\n".join(f"tasks: {name!r} is no task{near(name, known)}" for name in missing)


@contextlib.contextmanager
def _safe_results(started_in: Mapping[str, str]) -> Iterator[None]:
    """Let lm-eval save results without credentials, inside of this.

    The saved `config` also names the variables of the environment `started_in` that decide numbers.
    """
    from lm_eval import loggers

    from leval_harness.sweep.identity import environment

    stock = loggers.EvaluationTracker

    class Tracker(stock):  # type: ignore[misc,valid-type]
        def save_results_aggregated(self, results: Any, samples: Any = None) -> None:
            config = results.get("config") or {}
            if variables := environment():
                results = {**results, "config": {**config, "environment": variables}}
            stated = {"config", "configs", "pretty_env_info"} & set(results)
            public = {name: without_credentials(results[name]) for name in stated}
            super().save_results_aggregated({**results, **public}, samples)

        def save_results_samples(self, task_name: str, samples: Any) -> None:
            super().save_results_samples(task_name, redact_samples(samples))

    loggers.EvaluationTracker = Tracker
    try:
        yield
    finally:
        loggers.EvaluationTracker = stock


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingError(message.removeprefix("argument "))


def own_options(arguments: list[str]) -> tuple[RopeOptions, list[str]]:
    """Our options, and the arguments that are left to lm-eval.

    Raises:
        SettingError: an option of ours without a value or with one that is not allowed, or
            without `--rope`.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    for option in ("--rope", "--rope-precision", "--context-length"):
        parser.add_argument(option)
    found, rest = parser.parse_known_args(arguments)
    ours = RopeOptions(found.rope, found.rope_precision, found.context_length)
    if ours.rope is None and ours != RopeOptions():
        raise SettingError("--rope-precision and --context-length go with --rope")
    if ours.length is not None and not re.fullmatch("0*[1-9][0-9]*", ours.length):
        raise SettingError(not_allowed("--context-length", ours.length, "a whole number above 0"))
    return ours, rest


def _register() -> None:
    """RoPE types into transformers, models into lm-eval; vLLM and tasks find ours by themselves."""
    try:
        import leval_harness.backends
        from resonance_vllm.hf import registration as hf
    except ImportError as error:
        without = f"running without our RoPE types and backends; {needs_extra('hf')}"
        logging.getLogger(__name__).warning("%s: %s", error, without)
        return
    hf.register()
    leval_harness.backends.register()
