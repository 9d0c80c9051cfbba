"""What lm-eval's command line and its config file ask for together: completed, and checked.

lm-eval merges both itself, so that nothing is read twice here; what stands in its own object is
what will run, however it was written.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from leval_border.errors import SettingError, UserError, hint, one_of
from leval_border.settings import Settings, field_names, read
from leval_harness.cli.errors import MENDABLE
from leval_harness.yaml_files import read_yaml
from leval_tasks.generation import check_generation
from leval_tasks.metadata import refuse_near_misses
from resonance_vllm.core.spec import parsed_value
from resonance_vllm.model_config.checkpoint import reason_of


class RopeOptions(NamedTuple):
    """Our options on lm-eval's command line, as they were written; None where they were not."""

    rope: str | None = None
    precision: str | None = None
    length: str | None = None


Options = dict[str, Any] | str | None


class RunSettings(Settings):
    """Types of lm-eval's settings, of which it looks at few before a model is loaded."""

    model: str = "hf"
    model_args: Options = None
    tasks: str | list[str] | None = None
    num_fewshot: Annotated[int, Field(ge=0)] | None = None
    limit: Annotated[float, Field(gt=0)] | None = None
    batch_size: Annotated[int, Field(ge=1)] | str = 1
    max_batch_size: Annotated[int, Field(ge=1)] | None = None
    device: str | None = None
    samples: dict[str, Any] | str | None = None
    use_cache: str | None = None
    output_path: str | None = None
    include_path: str | None = None
    system_instruction: str | None = None
    apply_chat_template: bool | str = False
    fewshot_as_multiturn: bool | None = None
    log_samples: bool = False
    predict_only: bool = False
    trust_remote_code: bool = False
    confirm_run_unsafe_code: bool = False
    gen_kwargs: Options = None
    metadata: Options = None
    hf_hub_log_args: Options = None
    wandb_args: Options = None
    trackio_args: Options = None


class Chosen(Settings):
    """Single questions by task, once lm-eval has read the text or the file that they stand in."""

    samples: dict[str, Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]]


@contextlib.contextmanager
def completing(ours: RopeOptions) -> Iterator[None]:
    """While this lasts, what lm-eval is asked to run is `complete` before anything is loaded."""
    from lm_eval.api.model import LM
    from lm_eval.config.evaluate_config import EvaluatorConfig

    from leval_harness.sweep.evaluation import remote_code_as_configured

    stock, running = EvaluatorConfig.__dict__["from_cli"], contextlib.ExitStack()
    made = LM.__dict__["create_from_arg_obj"]

    def from_cli(cls: Any, namespace: Any) -> Any:
        if path := getattr(namespace, "config", None):
            check_file(Path(path), [each.name for each in dataclasses.fields(cls)])
        config = stock.__func__(cls, namespace)
        complete(config, ours)
        running.enter_context(remote_code_as_configured(config.model_args))
        return config

    def create(cls: Any, args: Any, *more: Any) -> Any:
        with _loading(args.get("pretrained")):
            return made.__func__(cls, args, *more)

    EvaluatorConfig.from_cli = classmethod(from_cli)
    LM.create_from_arg_obj = classmethod(create)
    try:
        with running:
            yield
    finally:
        EvaluatorConfig.from_cli, LM.create_from_arg_obj = stock, made


@contextlib.contextmanager
def _loading(path: object) -> Iterator[None]:
    """Errors of libraries on damaged weights or tokenizers, which are of many kinds, as one."""
    try:
        yield
    except (UserError, *MENDABLE):
        raise
    except Exception as error:
        raise UserError(f"{path or 'the model'} cannot be loaded: {reason_of(error)}") from error


def check_file(path: Path, known: list[str]) -> None:
    """Refuse a config file of which lm-eval would fail on a key or a type, or run something else.

    Raises:
        SettingError: names the place, its value and what is allowed.
    """
    content = read_yaml(path)
    for key in content:
        if key not in known:
            raise SettingError(f"{path}: {key}: unknown setting{hint(key, known)}")
    typed = {name: content[name] for name in field_names(RunSettings) if name in content}
    read(RunSettings, typed, str(path))


def complete(config: Any, ours: RopeOptions) -> None:
    """Check what lm-eval is about to run as sweeps do, with RoPE settings and tasks of ours in it.

    Args:
        config: lm-eval's `EvaluatorConfig`, command line and file merged; changed in place.
        ours: our own options.

    Raises:
        SettingError: names the setting, its value and what is allowed.
    """
    from leval_harness.sweep.task_registry import check_keys_are_tasks, check_settings

    stated = {name: getattr(config, name) for name in ("limit", "num_fewshot")}
    read(RunSettings, stated)
    given = dict(config.model_args)
    check_generation(config.gen_kwargs or {}, "gen_kwargs")
    with _at("metadata"):
        refuse_near_misses({k: v for k, v in config.metadata.items() if k not in given})
    if ours.rope is None:
        _check_raw(config.model, given)
    else:
        args = _rope_args(ours, config.model, given)
        config.model_args, config.metadata = {**given, **args}, {**args, **config.metadata}
    listed = [config.tasks] if isinstance(config.tasks, str) else list(config.tasks or ())
    tasks = [name for each in listed if isinstance(each, str) for name in each.split(",")]
    if config.samples is not None:
        chosen = read(Chosen, {"samples": config.samples}).samples
        # lm-eval asks in the order of the documents and would record the numbers in ours
        config.samples = {name: sorted(set(numbers)) for name, numbers in chosen.items()}
        if not config.include_path and all(isinstance(each, str) for each in listed):
            check_keys_are_tasks("samples", config.samples, tasks)
    check_settings(tasks, config.metadata)


@contextlib.contextmanager
def _at(place: str) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise SettingError(f"{place}.{error}") from None


def _rope_args(ours: RopeOptions, backend: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The model arguments that carry RoPE settings to a backend."""
    from leval_harness.backends import library_of
    from resonance_vllm.core.spec import RopeRequest
    from resonance_vllm.model_config import overrides as settings
    from resonance_vllm.model_config.model_positions import ModelPositions

    assert ours.rope is not None
    precision = ours.precision or "float32"
    one_of("--rope-precision", precision, settings.ROPE_PRECISIONS)
    if "pretrained" not in given:
        raise SettingError("--rope needs --model_args pretrained=MODEL")
    model = ModelPositions.of_checkpoint(str(given["pretrained"]))
    args = settings.model_args(
        model.complete(RopeRequest.parse(ours.rope)),
        model,
        library=library_of(backend),
        model_path=str(given["pretrained"]),
        context_length=None if ours.length is None else int(ours.length),
        rope_precision=precision,
    )
    if clash := sorted(set(args) & set(given) - {"pretrained"}):
        raise SettingError(f"--rope sets {', '.join(clash)}: leave that out of --model_args")
    return args


def _check_raw(backend: str, given: Mapping[str, Any]) -> None:
    """Refuse overrides in lm-eval's own form that hide a scaling which the checkpoint ships."""
    from leval_harness.backends import libraries
    from resonance_vllm.model_config.model_positions import ModelPositions

    library = libraries().get(backend)
    overrides = given.get("hf_overrides", {}) if library == "vllm" else given
    if isinstance(overrides, str):
        overrides = parsed_value(overrides)
    if library is None or "pretrained" not in given or not isinstance(overrides, Mapping):
        return
    if any(key in overrides for key in ("rope_parameters", "rope_scaling", "text_config")):
        ModelPositions.of_checkpoint(str(given["pretrained"])).check_override(overrides)
