"""What `leval-harness lm-eval` changes in an evaluation before it runs.

RoPE settings go into the arguments of the model, and the caches of lm-eval, which know neither
model nor settings, get a file for each.
"""

import argparse
import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from leval_harness.backends import libraries, library_of
from leval_harness.secrets import refuse_credentials
from leval_harness.smollm2 import prepared
from leval_tasks.generation import check_generation
from leval_tasks.metadata import refuse_near_misses
from resonance_vllm import config as overrides
from resonance_vllm.config import ModelPositions
from resonance_vllm.core.spec import RopeRequest
from resonance_vllm.errors import SettingError, UserError, not_allowed, one_of
from resonance_vllm.hub import refuse_missing_folder

logger = logging.getLogger(__name__)


class RopeOptions(NamedTuple):
    """Our options on lm-eval's command line, as text; None where one was not given."""

    rope: str | None = None
    precision: str | None = None
    length: str | None = None


def complete(settings: argparse.Namespace, options: RopeOptions) -> None:
    """Put RoPE settings into what lm-eval is about to run, and check what is cheap to check.

    Args:
        settings: as lm-eval's own parser reads them; changed in place.
        options: our own options.

    Raises:
        SettingError: names the setting, its value and what is allowed.
    """
    from leval_harness.sweep.task_registry import check_settings

    backend = str(stated(settings, "model") or "hf")
    given, metadata = dictionary(settings, "model_args"), dictionary(settings, "metadata")
    for name, each in (("model_args", given), ("metadata", metadata)):
        refuse_credentials(each, name)
    library = libraries().get(backend)
    if isinstance(path := given.get("pretrained"), str):
        given["pretrained"] = prepared(path)
        if library:
            refuse_missing_folder(given["pretrained"], "model_args.pretrained")
    check_generation(dictionary(settings, "gen_kwargs"), "gen_kwargs")
    try:
        refuse_near_misses(metadata)
    except UserError as error:
        raise SettingError(f"metadata.{error}") from None
    if options.rope is not None:
        given |= _rope_args(options, backend, given)
    if given:
        settings.model_args = given
    if cache := stated(settings, "use_cache"):
        settings.use_cache = f"{cache}-{digest(backend, given)}"
        logger.warning("answers are kept in %s, those of this model and method", settings.use_cache)
    tasks = stated(settings, "tasks") or []
    listed = [tasks] if isinstance(tasks, str) else list(tasks)
    names = [name for each in listed if isinstance(each, str) for name in each.split(",")]
    check_settings(names, given | metadata)


@contextlib.contextmanager
def requests_cache(settings: argparse.Namespace) -> Iterator[None]:
    """Keep `--cache_requests` apart for each model and its settings, inside of this.

    Its key knows neither lengths nor tokenizer, from which synthetic tasks make their texts.
    """
    if not stated(settings, "cache_requests"):
        yield
        return
    from lm_eval.caching import cache

    before = cache.PATH
    key = digest(*(dictionary(settings, name) for name in ("model_args", "metadata")))
    cache.PATH = f"{before}/{key}"
    try:
        yield
    finally:
        cache.PATH = before


def digest(*parts: Any) -> str:
    """A short name of settings."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def stated(settings: argparse.Namespace, name: str) -> Any:
    """A setting of the command line, else of lm-eval's config file, else None."""
    if (value := getattr(settings, name, None)) or value == 0:
        return value
    file = getattr(settings, "config", None)
    return None if file is None else config_file(file).get(name)


@functools.cache
def config_file(path: str) -> dict[str, Any]:
    """Settings of a config file of lm-eval."""
    from lm_eval.config.evaluate_config import EvaluatorConfig

    try:
        content: dict[str, Any] = EvaluatorConfig.load_yaml_config(path)
    except (ValueError, TypeError, OSError) as error:
        raise SettingError(str(error)) from error
    known = [each.name for each in dataclasses.fields(EvaluatorConfig)]
    for name in content:
        one_of(path, name, known)
    return content


def dictionary(settings: argparse.Namespace, name: str) -> dict[str, Any]:
    """A setting that is a dictionary, or text of the form `a=1,b=2`."""
    from lm_eval.utils import simple_parse_args_string

    value = stated(settings, name) or {}
    value = simple_parse_args_string(value) if isinstance(value, str) else value
    if not isinstance(value, Mapping):
        raise SettingError(not_allowed(name, value, "a dictionary, or text: a=1,b=2"))
    return dict(value)


def _rope_args(options: RopeOptions, backend: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The model arguments that carry RoPE settings to a backend."""
    assert options.rope is not None
    length = _length("--context-length", options.length)
    precision = options.precision or "float32"
    one_of("--rope-precision", precision, overrides.ROPE_PRECISIONS)
    if "pretrained" not in given:
        raise SettingError("--rope needs --model_args pretrained=MODEL")
    model = ModelPositions.of_checkpoint(str(given["pretrained"]))
    library = library_of(backend)
    limit = "max_model_len" if library == "vllm" else "max_length"
    args = overrides.model_args(
        model.complete(RopeRequest.parse(options.rope)),
        model,
        library=library,
        model_path=str(given["pretrained"]),
        context_length=length or _length(f"model_args.{limit}", given.get(limit)),
        rope_precision=precision,
    )
    clash = sorted(key for key in set(args) & set(given) if str(args[key]) != str(given[key]))
    if clash:
        raise SettingError(f"--rope sets {', '.join(clash)}: leave that out of --model_args")
    return args


def _length(name: str, value: Any) -> int | None:
    if value is not None and not re.fullmatch("0*[1-9][0-9]*", str(value)):
        raise SettingError(not_allowed(name, value, "a whole number above 0"))
    return None if value is None else int(value)
