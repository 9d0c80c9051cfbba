"""What `leval-harness lm-eval` changes in an evaluation before it runs.

RoPE settings go into the arguments of the model, and the caches of lm-eval, which know neither
model nor settings, get a file for each.
"""

import argparse
import dataclasses
import hashlib
import json
import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from leval_harness.backends import LIBRARIES, library_of
from leval_harness.models.prepare import local_path
from leval_harness.sweep.credentials import refuse_credentials
from leval_tasks.common.metadata import refuse_near_misses
from resonance_vllm.checkpoint.arguments import model_args
from resonance_vllm.checkpoint.positions import PositionConfig
from resonance_vllm.common.errors import (
    SettingError,
    UserError,
    check_choice,
    invalid_value_message,
)
from resonance_vllm.common.hub import check_folder_exists
from resonance_vllm.core.spec import RopeRequest

logger = logging.getLogger(__name__)


def complete(settings: argparse.Namespace, options: Mapping[str, Any]) -> dict[str, Any]:
    """Put RoPE settings into what lm-eval is about to run, and check what is cheap to check.

    Args:
        settings: as lm-eval's own parser reads them; changed in place.
        options: our own: `rope`, `rope_precision` and `context_length`, each or None.

    Returns:
        All settings that decide what is run, see `stated`.

    Raises:
        SettingError: names the setting, its value and what is allowed.
    """
    from leval_harness.sweep.identity import with_digests
    from leval_harness.sweep.task_registry import check_settings

    values = stated(settings)
    backend, given, metadata = values["model"], values["model_args"], values["metadata"]
    for name in ("model_args", "metadata"):
        refuse_credentials(values[name], name)
    if isinstance(path := given.get("pretrained"), str):
        given["pretrained"] = local_path(path)
        if backend in LIBRARIES:
            check_folder_exists(given["pretrained"], "model_args.pretrained")
    try:
        refuse_near_misses(metadata)
    except UserError as error:
        raise SettingError(f"metadata.{error}") from None
    if options["rope"] is not None:
        given |= _rope_args(options, backend, given)
    if given:
        settings.model_args = given
    if cache := values.get("use_cache"):
        files = with_digests({**given, "model": given.get("pretrained")})
        settings.use_cache = f"{cache}-{digest(backend, given, files)}"
        logger.warning("answers are kept in %s, those of this model and method", settings.use_cache)
    tasks = values.get("tasks") or []
    listed = [tasks] if isinstance(tasks, str) else list(tasks)
    names = [name for each in listed if isinstance(each, str) for name in each.split(",")]
    check_settings(names, given | metadata)
    return values


def stated(settings: argparse.Namespace) -> dict[str, Any]:
    """Settings of the command line over those of lm-eval's config file, where one is named.

    `model`, and the dictionaries `model_args`, `metadata` and `gen_kwargs`, are always there.

    Raises:
        SettingError: the file cannot be read, has an unknown key, or one is no dictionary.
    """
    from lm_eval.config.evaluate_config import EvaluatorConfig
    from lm_eval.utils import simple_parse_args_string

    values: dict[str, Any] = {}
    if file := getattr(settings, "config", None):
        try:
            values = EvaluatorConfig.load_yaml_config(file)
        except (ValueError, TypeError, OSError) as error:
            raise SettingError(str(error)) from error
        for name in values:
            check_choice(file, name, [each.name for each in dataclasses.fields(EvaluatorConfig)])
    values |= {name: value for name, value in vars(settings).items() if value or value == 0}
    values["model"] = str(values.get("model") or "hf")
    for name in ("model_args", "metadata", "gen_kwargs"):
        value = values.get(name) or {}
        value = simple_parse_args_string(value) if isinstance(value, str) else value
        if not isinstance(value, Mapping):
            raise SettingError(invalid_value_message(name, value, "a dictionary, or text: a=1,b=2"))
        values[name] = dict(value)
    return values


def requests_cache(values: Mapping[str, Any]) -> AbstractContextManager[Any]:
    """Keep `--cache_requests` apart for each model and its settings, inside of this.

    Its key knows neither lengths nor tokenizer, from which synthetic tasks make their documents.
    """
    from lm_eval.caching import cache

    own = digest(values["model_args"], values["metadata"])
    return patch.object(cache, "PATH", f"{cache.PATH}/{own}")


def digest(*parts: Any) -> str:
    """A short name of settings."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _rope_args(
    options: Mapping[str, Any], backend: str, given: Mapping[str, Any]
) -> dict[str, Any]:
    """The model arguments that carry RoPE settings to a backend."""
    if "pretrained" not in given:
        raise SettingError("--rope needs --model_args pretrained=MODEL")
    library = library_of(backend)
    limit = "max_model_len" if library == "vllm" else "max_length"
    length = options["context_length"] or given.get(limit)
    if length is not None and not isinstance(length, int):
        raise SettingError(invalid_value_message(f"model_args.{limit}", length, "a whole number"))
    model = PositionConfig.from_checkpoint(str(given["pretrained"]))
    args = model_args(
        model.complete(RopeRequest.parse(options["rope"])),
        model,
        library=library,
        model_path=str(given["pretrained"]),
        context_length=length,
        rope_precision=options["rope_precision"] or "float32",
    )
    clash = sorted(key for key in set(args) & set(given) if str(args[key]) != str(given[key]))
    if clash:
        raise SettingError(f"--rope sets {', '.join(clash)}: leave that out of --model_args")
    return args
