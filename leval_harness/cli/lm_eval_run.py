"""The settings of an evaluation that `leval-harness lm-eval` checks and completes before it runs.

RoPE settings go into the arguments of the model. The caches of lm-eval, whose keys know neither
model nor RoPE settings, get a file or folder for each.
"""

import argparse
import ast
import contextlib
import dataclasses
import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from leval_harness.backends import asks_server, find_backend, get_backend
from leval_harness.models.prepare import local_path
from leval_tasks.common.metadata import FAMILIES, refuse_near_misses
from resonance_vllm.checkpoint.arguments import model_args
from resonance_vllm.checkpoint.positions import PositionConfig
from resonance_vllm.common.credentials import refuse_credentials
from resonance_vllm.common.errors import (
    SettingError,
    UserError,
    check_choice,
    invalid_value_message,
)
from resonance_vllm.common.hub import check_folder_exists
from resonance_vllm.common.settings import field_names
from resonance_vllm.core.spec import RopeRequest

logger = logging.getLogger(__name__)

DICTIONARIES = ("model_args", "metadata", "gen_kwargs")
"""Settings of lm-eval that are dictionaries; on the command line `a=1,b=2` or JSON."""
SHORTEST_OPTION = len("--model_")
"""An abbreviation of `--model_args` is longer than `--model`, which is another option."""


def complete(settings: argparse.Namespace, options: Mapping[str, Any]) -> dict[str, Any]:
    """Check what lm-eval is about to run as far as it is cheap, and put RoPE settings into it.

    Args:
        settings: command line as lm-eval's own parser reads it; changed in place.
        options: this command's options `rope`, `rope_precision` and `context_length`, each or None.

    Returns:
        All settings that decide what is run, see `merged_settings`.

    Raises:
        SettingError: a setting is wrong; the message names it, its value and what is allowed.
    """
    from leval_harness.sweep.task_registry import check_settings

    values = merged_settings(settings)
    record = find_backend(values["model"])
    backend = record.name if record else values["model"]
    args = values["model_args"]
    _check_model(backend, args)
    _check_metadata(values["metadata"])
    refuse_credentials(values["gen_kwargs"], "gen_kwargs")
    if options["rope"] is not None:
        args |= _rope_args(options, backend, args)
    if record is not None and record.chooses_rope_precision:
        _set_precision(args, options["rope_precision"])
    elif options["rope_precision"] is not None:
        raise SettingError(
            f"--rope-precision: {values['model']} rotates in the model's own precision; allowed "
            "with: hf, hf-long"
        )
    if args:
        settings.model_args = args
    if values.get("use_cache"):
        settings.use_cache = _own_answers_cache(values["use_cache"], backend, args)
    # lm-eval merges model_args into the metadata; only these are settings of a task
    known = {name for family in FAMILIES for name in field_names(family)}
    of_tasks = {key: value for key, value in args.items() if key in known}
    check_settings(_task_names(values.get("tasks")), of_tasks | values["metadata"])
    return values


def merged_settings(settings: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of the command line over those of lm-eval's config file, if it has one.

    `model`, and the dictionaries `model_args`, `metadata` and `gen_kwargs`, are always there.

    Raises:
        SettingError: the file cannot be read or has an unknown key, or a setting that has to be a
            dictionary is not one.
    """
    from lm_eval.config.evaluate_config import EvaluatorConfig

    values: dict[str, Any] = {}
    if file := getattr(settings, "config", None):
        try:
            values = EvaluatorConfig.load_yaml_config(file)
        except (ValueError, TypeError, OSError) as error:
            raise SettingError(str(error)) from error
        known = [field.name for field in dataclasses.fields(EvaluatorConfig)]
        for name in values:
            check_choice(file, name, known)
    for name, value in vars(settings).items():
        if value or value == 0:
            values[name] = value
    values["model"] = str(values.get("model") or "hf")
    for name in DICTIONARIES:
        values[name] = parse_dictionary(name, values.get(name) or {})
    return values


def parse_dictionary(name: str, value: Any) -> dict[str, Any]:
    """Return a setting of lm-eval that is a dictionary, or text: `a=1,b=2`, JSON or Python.

    Values in `a=1,b={"c": 2}` may be JSON or Python, too.

    Raises:
        SettingError: the value is neither; the message shows how it is written.
    """
    from lm_eval._cli.utils import split_top_level
    from lm_eval.utils import handle_arg_string

    if isinstance(value, Mapping):
        return dict(value)
    forms = 'a dictionary, or text: a=1,b=2 or \'{"a": 1, "b": {"c": 2}}\''
    if not isinstance(value, str):
        raise SettingError(invalid_value_message(name, value, forms))
    text = value.strip()
    if text.startswith("{"):
        parsed = _parse_literal(text)
        if not isinstance(parsed, dict):
            raise SettingError(invalid_value_message(name, value, forms))
        return parsed
    pairs: dict[str, Any] = {}
    for part in split_top_level(text):
        key, sign, content = part.partition("=")
        if not sign or not key.strip():
            raise SettingError(invalid_value_message(name, value, forms))
        content = content.strip()
        if content.startswith(("{", "[")):
            pairs[key.strip()] = _parse_literal(content)
            if pairs[key.strip()] is None:
                raise SettingError(invalid_value_message(f"{name}.{key.strip()}", content, forms))
        else:
            pairs[key.strip()] = handle_arg_string(content)
    return pairs


def with_json_dictionaries(arguments: Sequence[str]) -> list[str]:
    """Return lm-eval's arguments with dictionaries written in the one form that it reads, JSON.

    Its parser takes `--model_args 'pretrained=M,rope_parameters={"rope_type": "yarn"}'` for JSON
    that lacks double quotes. Options without a dictionary inside a value are left as they are.

    Raises:
        SettingError: a dictionary cannot be read.
    """
    words = list(arguments)
    result: list[str] = []
    while words:
        option, sign, text = words.pop(0).partition("=")
        name = _dictionary_option(option)
        values = [text] if sign else []
        if name:
            while words and not words[0].startswith("-"):
                values.append(words.pop(0))
        if name and any("{" in value for value in values):
            merged: dict[str, Any] = {}
            for value in values:
                merged |= parse_dictionary(f"--{name}", value)
            result += [f"--{name}", json.dumps(merged)]
        elif name:
            result += [f"{option}{sign}{text}", *values[1 if sign else 0 :]]
        else:
            result.append(f"{option}{sign}{text}")
    return result


def _dictionary_option(option: str) -> str:
    """Return the setting that an option of lm-eval, or its abbreviation, sets if a dictionary."""
    if option == "-a":
        return "model_args"
    for name in DICTIONARIES:
        if len(option) >= SHORTEST_OPTION and f"--{name}".startswith(option):
            return name
    return ""


def _parse_literal(text: str) -> Any:
    """Return a dictionary or list that is written as JSON or in Python; None for another text."""
    try:
        return json.loads(text)
    except ValueError:
        with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            return ast.literal_eval(text)
    return None


def _check_model(backend: str, args: dict[str, Any]) -> None:
    """Refuse credentials and a missing folder, and replace the name of a small model by its path."""
    refuse_credentials(args, "model_args")
    path = args.get("pretrained")
    if isinstance(path, str) and not asks_server(backend, args):
        args["pretrained"] = local_path(path)
        if find_backend(backend) is not None:
            check_folder_exists(args["pretrained"], "model_args.pretrained")


def _check_metadata(metadata: Mapping[str, Any]) -> None:
    """Refuse credentials and misspelt settings of this package's tasks."""
    refuse_credentials(metadata, "metadata")
    try:
        refuse_near_misses(metadata)
    except UserError as error:
        raise SettingError(f"metadata.{error}") from None


def _task_names(tasks: Any) -> list[str]:
    """Return the task names in a setting of lm-eval: a text with commas, or a list of such."""
    if tasks is None:
        return []
    if isinstance(tasks, str):
        tasks = [tasks]
    names: list[str] = []
    for text in tasks:
        if isinstance(text, str):  # a dictionary is a task's definition
            names += text.split(",")
    return names


def _set_precision(args: dict[str, Any], precision: str | None) -> None:
    """Set the precision in which a transformers model rotates, and say which one it is.

    float32 with and without RoPE settings, as in sweeps and `diff`: two runs then differ in the
    method alone. Stock lm-eval rotates in the dtype of the model.
    """
    if precision is not None:
        stated = args.setdefault("rope_precision", precision)
        if stated != precision:
            raise SettingError(
                f"--rope-precision: {precision}, but --model_args has rope_precision={stated}; give "
                "one of them"
            )
    args.setdefault("rope_precision", "float32")
    if args["rope_precision"] == "float32":
        logger.info(
            "RoPE is computed in float32 (stock lm-eval: the model's dtype, --rope-precision model)"
        )


def _own_answers_cache(cache: str, backend: str, args: Mapping[str, Any]) -> str:
    """Return the file of lm-eval's `--use_cache` for one model and its settings."""
    from leval_harness.sweep.identity import with_digests

    files = with_digests({**args, "model": args.get("pretrained")})
    own = f"{cache}-{digest(backend, args, files)}"
    logger.warning("answers of this model and method are cached in %s", own)
    return own


@contextlib.contextmanager
def requests_cache(values: Mapping[str, Any]) -> Iterator[None]:
    """Let `--cache_requests` use a folder for each model and its settings.

    lm-eval's key knows neither lengths nor the tokenizer, from which synthetic tasks make their
    documents.
    """
    from lm_eval.caching import cache

    path = cache.PATH
    cache.PATH = f"{path}/{digest(values['model_args'], values['metadata'])}"
    try:
        yield
    finally:
        cache.PATH = path


def digest(*parts: Any) -> str:
    """Return a short name of settings: 12 digits of their SHA-256."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _rope_args(options: Mapping[str, Any], backend: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model arguments that carry RoPE settings to a backend."""
    if "pretrained" not in args:
        raise SettingError("--rope needs --model_args pretrained=MODEL")
    record = get_backend(backend)
    limit = record.length_argument
    length = options["context_length"] or args.get(limit)
    if length is not None and not isinstance(length, int):
        raise SettingError(invalid_value_message(f"model_args.{limit}", length, "a whole number"))
    model = PositionConfig.from_checkpoint(str(args["pretrained"]))
    rope_args = model_args(
        model.complete(RopeRequest.parse(options["rope"])),
        model,
        library=record.library,
        model_path=str(args["pretrained"]),
        context_length=length,
        rope_precision=options["rope_precision"] or args.get("rope_precision", "float32"),
    )
    for key in sorted(rope_args):
        if key in args and str(rope_args[key]) != str(args[key]):
            raise SettingError(
                f"--rope sets {key}={rope_args[key]}, but --model_args has {key}={args[key]}; give "
                "one of them"
            )
    return rope_args
