"""`leval-harness lm-eval`: lm-eval's own command line with everything of ours registered."""

import json
import logging
import sys
from typing import Any

import click

_ROPE_HELP = """\
RoPE settings (added by leval-harness; everything below is lm-eval's own):
  --rope TYPE:key=value,…          e.g. resonance_yarn:factor=2; what the model's config.json knows
                                   is filled in (models that transformers or vLLM runs)
  --rope-precision float32|model   precision of the rotation on transformers (default float32)
  --context-length N               longest sequence in tokens (default: the limit of the settings)
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
def command(arguments: tuple[str, ...]) -> None:
    """Run lm-eval with our RoPE types, models and tasks registered; its arguments follow."""
    rest, ours = _take_options(list(arguments))
    if any(argument in ("-h", "--help") for argument in rest) or not rest:
        click.echo(_ROPE_HELP)
    if ours:
        rest = _with_rope(rest, **ours)
    _register()
    _run(rest)


def _take_options(arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """Split our options from lm-eval's.

    Returns:
        lm-eval's arguments in their order, and our options by parameter name.
    """
    names = {
        "--rope": "rope",
        "--rope-precision": "rope_precision",
        "--context-length": "context_length",
    }
    rest: list[str] = []
    ours: dict[str, str] = {}
    pending = iter(arguments)
    for argument in pending:
        name, equals, value = argument.partition("=")
        if name not in names:
            rest.append(argument)
            continue
        if not equals:
            value = next(pending, "")
        if not value:
            raise click.UsageError(f"{name} needs a value")
        ours[names[name]] = value
    return rest, ours


def _with_rope(
    arguments: list[str],
    rope: str | None = None,
    rope_precision: str = "float32",
    context_length: str | None = None,
) -> list[str]:
    """Put RoPE settings into `--model_args`, as JSON because they hold dictionaries."""
    from leval_backends import library_of
    from resonance_vllm import backend_args, settings

    if rope is None:
        raise click.UsageError("--rope-precision and --context-length go with --rope")
    if rope_precision not in ("float32", "model"):
        raise click.UsageError(f"--rope-precision is {rope_precision!r}; allowed: float32, model")
    if context_length is not None and not (context_length.isdigit() and int(context_length)):
        raise click.UsageError(f"--context-length is {context_length!r}; allowed: a whole number")
    backend = _values(arguments, "--model", "-M")
    given = _model_args(_values(arguments, "--model_args", "-a"))
    if "pretrained" not in given:
        raise click.UsageError("--rope needs --model_args pretrained=MODEL")
    own = backend_args.model_args(
        settings.parse_rope(rope),
        library=library_of(backend[0] if backend else "hf"),
        model_path=str(given["pretrained"]),
        context_length=None if context_length is None else int(context_length),
        rope_precision=rope_precision,
    )
    if clash := sorted(set(own) & set(given) - {"pretrained"}):
        raise click.UsageError(f"--rope sets {', '.join(clash)}: leave that out of --model_args")
    merged = json.dumps({**given, **own})
    return [*_without(arguments, "--model_args", "-a"), "--model_args", merged]


def _values(arguments: list[str], *names: str) -> list[str]:
    """The values that follow an option, in either form (`--x a b` or `--x=a`)."""
    found: list[str] = []
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name not in names:
            continue
        if equals:
            found.append(value)
            continue
        for following in arguments[index + 1 :]:
            if following.startswith("-"):
                break
            found.append(following)
    return found


def _without(arguments: list[str], *names: str) -> list[str]:
    """`arguments` less an option and its values."""
    kept: list[str] = []
    dropping = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if name in names:
            dropping = not equals
        elif argument.startswith("-"):
            dropping = False
            kept.append(argument)
        elif not dropping:
            kept.append(argument)
    return kept


def _model_args(values: list[str]) -> dict[str, Any]:
    """Read model_args as lm-eval does: JSON, `a=1,b=2`, or several `a=1`."""
    from lm_eval._cli.utils import key_val_to_dict, try_parse_json

    merged: dict[str, Any] = {}
    for value in values:
        parsed = try_parse_json(value)
        merged.update(parsed if isinstance(parsed, dict) else key_val_to_dict(str(parsed)))
    return merged


def _register() -> None:
    """RoPE types into transformers, models into lm-eval; vLLM and tasks find ours by themselves."""
    try:
        import leval_backends
        from resonance_vllm import hf
    except ImportError as error:
        logging.getLogger(__name__).warning(
            "%s: running without our RoPE types and backends (pip install 'leval-harness[hf]')",
            error,
        )
        return
    hf.register()
    leval_backends.register()


def _run(arguments: list[str]) -> None:
    """Hand over to lm-eval's parser."""
    from lm_eval.__main__ import cli_evaluate

    before = sys.argv
    sys.argv = ["lm-eval", *arguments]
    try:
        cli_evaluate()
    finally:
        sys.argv = before
