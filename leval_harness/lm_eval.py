"""`leval-harness lm-eval`: lm-eval's own command line with everything of ours registered."""

import argparse
import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from leval_border.errors import SettingError, not_allowed, one_of
from leval_harness.errors import exit_code_for
from leval_harness.lm_eval_output import cleaned, cleaned_files, credentials
from leval_tasks.closed.catalog import OLD_NAMES
from leval_tasks.generation import check_generation
from resonance_vllm.core.spec import parsed_value

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
    hidden = credentials(arguments)
    with cleaned(hidden):
        try:
            _run(list(arguments), hidden)
        except BaseException as error:  # noqa: BLE001 - its message is cleaned as well
            sys.exit(exit_code_for(error))


def _run(arguments: list[str], hidden: Sequence[str]) -> None:
    started_in = dict(os.environ)  # to which libraries add once they are imported
    check_gen_kwargs(arguments)
    rest = with_task_names(with_rope(arguments))
    if any(argument in ("-h", "--help") for argument in rest) or not rest:
        click.echo(_ROPE_HELP)
    _register()
    from lm_eval.__main__ import cli_evaluate

    before, sys.argv = sys.argv, ["lm-eval", *rest]
    try:
        with cleaned_files(hidden, started_in):
            cli_evaluate()
    finally:
        sys.argv = before


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingError(message.removeprefix("argument "))


def with_rope(arguments: list[str]) -> list[str]:
    """lm-eval's arguments, with our RoPE settings in its `--model_args`.

    Raises:
        SettingError: an option of ours without a value or with one that is not allowed, without
            `--rope`, or against what `--model_args` says.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    for option in ("--rope", "--rope-precision", "--context-length"):
        parser.add_argument(option)
    ours, theirs = parser.parse_known_args(arguments)
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--model", "-M", default="hf")
    # As JSON, because it holds dictionaries; lm-eval merges what is given several times.
    parser.add_argument("--model_args", "-a", nargs="+", action="extend", default=[])
    lm_eval, rest = parser.parse_known_args(theirs)
    given = _pairs("--model_args", lm_eval.model_args)
    if ours.rope is None:
        if ours.rope_precision is not None or ours.context_length is not None:
            raise SettingError("--rope-precision and --context-length go with --rope")
        _check_raw(lm_eval.model, given)
        return theirs
    length = ours.context_length
    if length is not None and not (length.isdecimal() and int(length)):
        raise SettingError(not_allowed("--context-length", length, "a whole number above 0"))
    args = _rope_args(ours.rope, ours.rope_precision or "float32", length, lm_eval.model, given)
    return [*rest, "--model", lm_eval.model, "--model_args", json.dumps({**given, **args})]


def check_gen_kwargs(arguments: list[str]) -> None:
    """Refuse values of `--gen_kwargs` that no backend can mean.

    Raises:
        SettingError: names each, its value and what is allowed.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--gen_kwargs", nargs="+", action="extend", default=[])
    given, _ = parser.parse_known_args(arguments)
    check_generation(_pairs("--gen_kwargs", given.gen_kwargs), "--gen_kwargs")


def with_task_names(arguments: list[str]) -> list[str]:
    """lm-eval's arguments, with our tasks under the names that they have today.

    A notice says what was renamed, and which names are of somebody else's tasks: those are run,
    as lm-eval does.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--tasks", "-t", nargs="+", action="extend", default=[])
    parser.add_argument("--include_path")
    given, rest = parser.parse_known_args(arguments)
    names = [name for text in given.tasks for name in text.split(",")]
    renamed = _renamed(names, [Path(given.include_path)] if given.include_path else [])
    if not renamed:
        return arguments
    include = ["--include_path", given.include_path] if given.include_path else []
    return [*rest, *include, "--tasks", ",".join(renamed.get(name, name) for name in names)]


def _renamed(names: list[str], folders: list[Path]) -> dict[str, str]:
    """The old names among `names` that mean ours, and what those tasks are called today."""
    from leval_sweep.own_tasks import members, own_tasks
    from leval_sweep.task_names import owners, runs_theirs

    log, old = logging.getLogger(__name__), [name for name in names if name in OLD_NAMES]
    ours = [name for name in (*names, *members(names)) if name in own_tasks()]
    theirs = owners([*old, *ours], folders)
    for name, path in theirs.items():
        if name in old:
            log.warning("--tasks: %s is the one of %s; ours is %s", name, path, OLD_NAMES[name])
        elif runs_theirs(path):
            log.warning("--tasks: %s is the one of %s, not ours", name, path)
    renamed = {name: OLD_NAMES[name] for name in old if name not in theirs}
    for name, today in renamed.items():
        log.warning("--tasks: %s is called %s today", name, today)
    return renamed


def _rope_args(
    rope: str, precision: str, length: str | None, backend: str, given: Mapping[str, Any]
) -> dict[str, Any]:
    """The model arguments that carry RoPE settings to a backend."""
    from leval_backends import library_of
    from resonance_vllm import settings
    from resonance_vllm.core.spec import RopeRequest
    from resonance_vllm.positions import ModelPositions

    one_of("--rope-precision", precision, settings.ROPE_PRECISIONS)
    if "pretrained" not in given:
        raise SettingError("--rope needs --model_args pretrained=MODEL")
    model = ModelPositions.of_checkpoint(str(given["pretrained"]))
    args = settings.model_args(
        model.complete(RopeRequest.parse(rope)),
        model,
        library=library_of(backend),
        model_path=str(given["pretrained"]),
        context_length=None if length is None else int(length),
        rope_precision=precision,
    )
    if clash := sorted(set(args) & set(given) - {"pretrained"}):
        raise SettingError(f"--rope sets {', '.join(clash)}: leave that out of --model_args")
    return args


def _check_raw(backend: str, given: Mapping[str, Any]) -> None:
    """Refuse overrides in lm-eval's own form that hide a scaling which the checkpoint ships."""
    from leval_backends import libraries
    from resonance_vllm.positions import ModelPositions

    library = libraries().get(backend)
    overrides = given.get("hf_overrides", {}) if library == "vllm" else given
    if isinstance(overrides, str):
        overrides = parsed_value(overrides)
    if library is None or "pretrained" not in given or not isinstance(overrides, Mapping):
        return
    if any(key in overrides for key in ("rope_parameters", "rope_scaling", "text_config")):
        ModelPositions.of_checkpoint(str(given["pretrained"])).check_override(overrides)


def _pairs(option: str, values: list[str]) -> dict[str, Any]:
    """Read an option as lm-eval does: JSON, `a=1,b=2`, or several `a=1`."""
    from lm_eval._cli.utils import key_val_to_dict, try_parse_json

    merged: dict[str, Any] = {}
    try:
        for value in values:
            parsed = try_parse_json(value)
            merged |= parsed if isinstance(parsed, dict) else key_val_to_dict(str(parsed))
    except ValueError as error:
        raise SettingError(f"{option}: {error}") from error
    return merged


def _register() -> None:
    """RoPE types into transformers, models into lm-eval; vLLM and tasks find ours by themselves."""
    try:
        import leval_backends
        from resonance_vllm import hf
    except ImportError as error:
        without = "running without our RoPE types and backends (pip install 'leval-harness[hf]')"
        logging.getLogger(__name__).warning("%s: %s", error, without)
        return
    hf.register()
    leval_backends.register()
