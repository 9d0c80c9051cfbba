"""What `leval-harness lm-eval` changes in an evaluation: RoPE settings, and checks before it runs.

lm-eval itself merges its command line and its config file, so both are checked in one place.
"""

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from leval_harness.backends import libraries, library_of
from leval_harness.cli.console import MENDABLE
from leval_harness.smollm2 import prepared
from leval_harness.yaml_files import read_yaml
from leval_tasks.generation import check_generation
from leval_tasks.metadata import refuse_near_misses
from resonance_vllm import config as overrides
from resonance_vllm.config import ModelPositions, asking_hub, reason_of, refuse_missing_folder
from resonance_vllm.core.spec import RopeRequest
from resonance_vllm.errors import SettingError, UserError, hint, not_allowed, one_of
from resonance_vllm.settings import Settings, field_names, read


class RopeOptions(NamedTuple):
    """Our options on lm-eval's command line, as text; None where one was not given."""

    rope: str | None = None
    precision: str | None = None
    length: str | None = None


Options = dict[str, Any] | str | None


class RunSettings(Settings):
    """Settings of lm-eval that it does not check before a model is loaded."""

    model: str = "hf"
    model_args: Options = None
    tasks: str | list[str] | None = None
    num_fewshot: Annotated[int, Field(ge=0)] | None = None
    limit: Annotated[float, Field(gt=0)] | None = None
    batch_size: Annotated[int, Field(ge=1)] | str = 1
    samples: dict[str, Any] | str | None = None
    gen_kwargs: Options = None
    metadata: Options = None


class SampleNumbers(Settings):
    """Numbers of the documents to ask by task, once lm-eval has read its option `--samples`."""

    samples: dict[str, Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]]


@contextlib.contextmanager
def completing(options: RopeOptions) -> Iterator[None]:
    """Let lm-eval run what `complete` made of its configuration, inside of this."""
    from lm_eval.api.model import LM
    from lm_eval.config.evaluate_config import EvaluatorConfig

    from leval_harness.sweep.evaluation import remote_code_as_configured

    stock, running = EvaluatorConfig.__dict__["from_cli"], contextlib.ExitStack()
    stock_create = LM.__dict__["create_from_arg_obj"]

    def from_cli(cls: Any, namespace: Any) -> Any:
        if path := getattr(namespace, "config", None):
            check_file(Path(path), [each.name for each in dataclasses.fields(cls)])
        config = stock.__func__(cls, namespace)
        complete(config, options)
        model = config.model_args.get("pretrained")
        if isinstance(model, str) and config.model in libraries():
            running.enter_context(asking_hub(model, "model_args.pretrained"))
        running.enter_context(remote_code_as_configured(config.model_args))
        return config

    def create(cls: Any, arguments: Any, *more: Any) -> Any:
        try:
            return stock_create.__func__(cls, arguments, *more)
        except (UserError, *MENDABLE):
            raise
        except Exception as error:  # what libraries raise for a damaged file is of many kinds
            path = arguments.get("pretrained", "the model")
            raise UserError(f"{path} cannot be loaded: {reason_of(error)}") from error

    EvaluatorConfig.from_cli, LM.create_from_arg_obj = classmethod(from_cli), classmethod(create)
    try:
        with running:
            yield
    finally:
        EvaluatorConfig.from_cli, LM.create_from_arg_obj = stock, stock_create


def check_file(path: Path, known: list[str]) -> None:
    """Refuse a config file with an unknown key or a value of a wrong type.

    Raises:
        SettingError: names the place, its value and what is allowed.
    """
    content = read_yaml(path)
    for key in content:
        if key not in known:
            raise SettingError(f"{path}: {key}: unknown setting{hint(key, known)}")
    checked = {name: content[name] for name in field_names(RunSettings) if name in content}
    read(RunSettings, checked, str(path))


def complete(config: Any, options: RopeOptions) -> None:
    """Check what lm-eval is about to run as sweeps do, and put the RoPE settings into it.

    Args:
        config: lm-eval's `EvaluatorConfig`, command line and file merged; changed in place.
        options: our own options.

    Raises:
        SettingError: names the setting, its value and what is allowed.
    """
    from leval_harness.sweep.task_registry import check_keys_are_tasks, check_settings

    read(RunSettings, {name: getattr(config, name) for name in ("limit", "num_fewshot")})
    given = dict(config.model_args)
    if isinstance(model := given.get("pretrained"), str):
        given["pretrained"] = prepared(model)
        if config.model in libraries():
            refuse_missing_folder(given["pretrained"], "model_args.pretrained")
        config.model_args = given
        config.metadata = {**config.metadata, "pretrained": given["pretrained"]}
    check_generation(config.gen_kwargs or {}, "gen_kwargs")
    try:
        refuse_near_misses({k: v for k, v in config.metadata.items() if k not in given})
    except UserError as error:
        raise SettingError(f"metadata.{error}") from None
    if options.rope is not None:
        args = _rope_args(options, config.model, given)
        config.model_args, config.metadata = {**given, **args}, {**args, **config.metadata}
    listed = [config.tasks] if isinstance(config.tasks, str) else list(config.tasks or ())
    tasks = [name for each in listed if isinstance(each, str) for name in each.split(",")]
    if config.samples is not None:
        numbers = read(SampleNumbers, {"samples": config.samples}).samples
        # lm-eval asks in the order of the documents and would record the numbers in ours
        config.samples = {name: sorted(set(each)) for name, each in numbers.items()}
        if not config.include_path and all(isinstance(each, str) for each in listed):
            check_keys_are_tasks("samples", config.samples, tasks)
    check_settings(tasks, config.metadata)


def _rope_args(options: RopeOptions, backend: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The model arguments that carry RoPE settings to a backend."""
    assert options.rope is not None
    precision = options.precision or "float32"
    one_of("--rope-precision", precision, overrides.ROPE_PRECISIONS)
    if "pretrained" not in given:
        raise SettingError("--rope needs --model_args pretrained=MODEL")
    model = ModelPositions.of_checkpoint(str(given["pretrained"]))
    library = library_of(backend)
    limit = "max_model_len" if library == "vllm" else "max_length"
    length = options.length or given.get(limit)
    if length is not None and not re.fullmatch("0*[1-9][0-9]*", str(length)):
        raise SettingError(not_allowed(f"model_args.{limit}", length, "a whole number above 0"))
    args = overrides.model_args(
        model.complete(RopeRequest.parse(options.rope)),
        model,
        library=library,
        model_path=str(given["pretrained"]),
        context_length=None if length is None else int(length),
        rope_precision=precision,
    )
    clash = sorted(key for key in set(args) & set(given) if str(args[key]) != str(given[key]))
    if clash:
        raise SettingError(f"--rope sets {', '.join(clash)}: leave that out of --model_args")
    return args
