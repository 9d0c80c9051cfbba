"""`leval-harness lm-eval`: lm-eval's own command line, with this package registered in it."""

import argparse
import contextlib
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from leval_harness.backends import take_over
from leval_harness.cli.lm_eval_run import complete, requests_cache, with_json_dictionaries
from leval_harness.cli.output import examples
from leval_harness.sweep.not_finite import refuse_not_finite
from resonance_vllm.checkpoint.arguments import ROPE_PRECISIONS
from resonance_vllm.common.errors import RunError, SettingError, UserError, install_hint

logger = logging.getLogger(__name__)


@click.command(
    name="lm-eval",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    epilog=examples(
        "leval-harness lm-eval ls groups",
        "leval-harness lm-eval run --model hf --model_args pretrained=smollm2 "
        '--tasks leval_closed_toefl --metadata \'{"data_dir": "sample"}\' --limit 2 '
        "--rope resonance_yarn:factor=2",
    ),
)
@click.option(
    "--rope",
    metavar="TYPE:key=value,…",
    help="RoPE method that the model of --model_args is loaded with, for example "
    "resonance_yarn:factor=2; JSON is read, too.",
    show_default="the checkpoint's own settings",
)
@click.option(
    "--rope-precision",
    type=click.Choice(ROPE_PRECISIONS),
    help="Precision in which transformers models rotate queries and keys: float32, or the dtype of "
    "the model as in stock lm-eval. The same with and without --rope.",
    show_default="float32",
)
@click.option(
    "--context-length",
    type=click.IntRange(min=1),
    help="With --rope: longest sequence in tokens.",
    show_default="that of --model_args, else the limit of the method",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def lm_eval(context: click.Context, /, arguments: tuple[str, ...], **options: Any) -> None:
    """Run lm-eval with this package's RoPE methods, models and tasks registered.

    ARGUMENTS are those of lm-eval, whose help follows. The name smollm2 can be used as a model.
    """
    if {"-h", "--help"} & set(arguments) or not arguments:
        click.echo(context.get_help() + "\n")
    if options["rope"] is None and options["context_length"] is not None:
        raise SettingError("--context-length needs --rope; without it, give max_length (hf) or "
                           "max_model_len (vllm) in --model_args")  # fmt: skip
    _register()
    try:
        _run(options, arguments)
    except AssertionError as error:
        if not str(error):
            raise
        raise UserError(str(error)) from error  # lm-eval refuses some arguments by assertions
    except ValueError as error:
        if not str(error).startswith("Tasks not found"):
            raise
        raise SettingError(f"{error}; `leval-harness lm-eval ls tasks` lists them") from error


def _run(options: Mapping[str, Any], arguments: Sequence[str]) -> None:
    """Run what lm-eval's own command would, with this command's options in its settings."""
    from lm_eval.utils import setup_logging

    setup_logging()
    settings = parsed(arguments)
    if settings.command != "run":
        if options["rope"] is not None:
            raise SettingError("--rope needs `run --model_args pretrained=MODEL --tasks …`")
        settings.func(settings)
        return
    values = complete(settings, options)
    take_over(values["model"])
    with requests_cache(values), nan_answers_reported(values["model"]):
        settings.func(settings)


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the arguments as lm-eval's own parser reads them.

    The parser offers no other way than to read the words of the process.
    """
    from lm_eval._cli.harness import HarnessCLI

    words = sys.argv
    sys.argv = ["lm-eval", *with_json_dictionaries(arguments)]
    try:
        return HarnessCLI().parse_args()
    finally:
        sys.argv = words


@contextlib.contextmanager
def nan_answers_reported(name: str) -> Iterator[None]:
    """End a run with an error if an answer of its model was NaN, or a loss of text infinite.

    lm-eval averages them, and counts a choice among NaN as an answer. The run is finished all the
    same, so that its other results are kept.

    Args:
        name: of the model in lm-eval's registry; a name that it does not know is left to lm-eval.

    Raises:
        RunError: names task, document and position of the first of them.
    """
    from lm_eval.api.registry import get_model, model_registry

    problems: list[str] = []
    try:
        model_class = get_model(name)
    except KeyError:
        yield
        return
    registered = model_registry._objs[name]
    model_registry._objs[name] = _checked_model(model_class, problems)
    try:
        yield
    finally:
        model_registry._objs[name] = registered
    if problems:
        raise RunError(f"{problems[0]} ({len(problems)} answers in all)")


def _checked_model(model_class: Any, problems: list[str]) -> Any:
    """Return a class of lm-eval's model that notes each answer without a number in `problems`."""
    from leval_tasks.common.served import match_loaded_models
    from leval_tasks.common.token_logprobs import REQUEST, scored_requests

    def checked(requests: Any, answers: Any) -> Any:
        for request, answer in zip(requests, answers, strict=True):
            try:
                refuse_not_finite(request, answer)
            except RunError as error:
                problems.append(str(error))
        return answers

    class CheckedModel(model_class):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            match_loaded_models(self)
            # the perplexity tasks give a model this method unless it has one
            setattr(self, REQUEST, self.scored_tokens)

        def scored_tokens(self, requests: Any) -> Any:
            return checked(requests, scored_requests(self, requests))

        def loglikelihood(self, requests: Any, *args: Any, **kwargs: Any) -> Any:
            return checked(requests, super().loglikelihood(requests, *args, **kwargs))

        def loglikelihood_rolling(self, requests: Any, *args: Any, **kwargs: Any) -> Any:
            return checked(requests, super().loglikelihood_rolling(requests, *args, **kwargs))

    CheckedModel.__name__ = model_class.__name__  # which lm-eval reports
    return CheckedModel


def _register() -> None:
    """Register RoPE types in transformers and models in lm-eval.

    vLLM and lm-eval's index of tasks find those of this package by themselves.
    """
    try:
        import leval_harness.backends
        from leval_harness.training import t5
        from resonance_vllm import hf
    except ImportError as error:
        logger.warning(
            "%s: running without this package's RoPE types and models; %s",
            error,
            install_hint("hf"),
        )
        return
    hf.register()
    t5.register()
    leval_harness.backends.register()
