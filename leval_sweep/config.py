"""A sweep config: models × methods × context lengths × tasks, checked before anything runs."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leval_backends import libraries, own_backends
from leval_sweep import config_checks as checks
from leval_sweep.config_files import apply_overrides, find_config, load_with_includes
from leval_sweep.errors import ConfigError, near_matches
from resonance_vllm.core.spec import COMMON_KEYS, METHOD_KEYS, split_rope_type
from resonance_vllm.settings import long_name

DTYPES = ("auto", "float32", "bfloat16", "float16")
# Backends whose RoPE we can set; every other one runs the model as its server or file has it.
ROPE_BACKENDS = libraries()
# Arguments that a sweep sets itself; written by hand they would contradict the cell's record.
RESERVED_ARGS = {
    "pretrained": "models.<name>.path",
    "model": "models.<name>.path",
    "revision": "models.<name>.revision",
    "dtype": "models.<name>.dtype",
    "rope_parameters": "methods",
    "rope_scaling": "methods",
    "rope_theta": "methods",
    "hf_overrides": "methods",
    "rope_precision": "rope_precision",
    "max_length": "context_lengths",
    "max_model_len": "context_lengths",
}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """One model and how it is asked.

    Attributes:
        name: what tables call it.
        path: folder of a checkpoint, `smollm2` (prepared on first use), name on the hub, or the
            name under which a server has it.
        backend: lm-eval model type.
        revision: branch, tag or commit on the hub.
        dtype: of weights and activations.
        args: further lm-eval `model_args`.
        apply_chat_template: true, false, or the name of one of the model's templates.
        batch_size: as lm-eval's `--batch_size`.
        device: as lm-eval's `--device`.
        methods: only these of the sweep's methods; None for all.
        context_lengths: in place of the sweep's; None for those.
        tokens_per_second: prompt speed that `--dry-run` reckons with before anything was measured.
        resources: what one cell of this model needs of a Ray cluster.
    """

    name: str
    path: str
    backend: str = "hf"
    revision: str | None = None
    dtype: str = "auto"
    args: Mapping[str, Any] = field(default_factory=dict)
    apply_chat_template: bool | str = False
    batch_size: int | str = 1
    device: str | None = None
    methods: tuple[str, ...] | None = None
    context_lengths: tuple[int | None, ...] | None = None
    tokens_per_second: float | None = None
    resources: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """Tasks that are asked together, in one cell; settings here go before the sweep's own.

    `gen_kwargs` holds generation settings of all tasks, `task_gen_kwargs` those of single ones.
    `context_lengths` in place of the sweep's and the model's.
    """

    tasks: tuple[str, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    gen_kwargs: Mapping[str, Any] = field(default_factory=dict)
    task_gen_kwargs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    limit: int | None = None
    num_fewshot: int | None = None
    context_lengths: tuple[int | None, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """A whole sweep; `methods` maps a name to a RoPE dictionary, or None for the model as it is."""

    name: str
    models: tuple[ModelConfig, ...]
    methods: Mapping[str, Mapping[str, Any] | None]
    tasks: tuple[TaskConfig, ...]
    context_lengths: tuple[int | None, ...] = (None,)
    seed: int = 0
    baseline: str | None = None
    rope_precision: str = "float32"
    timeout: float | None = None
    jobs: int = 1
    use_cache: bool = False
    confirm_run_unsafe_code: bool = False


@dataclass(frozen=True, kw_only=True)
class CellRequest:
    """One cell before anything of model or data was looked at."""

    model: ModelConfig
    method: str
    rope: Mapping[str, Any] | None
    context_length: int | None
    task: TaskConfig


def backends() -> list[str]:
    """Names of lm-eval's model types and of ours."""
    from lm_eval.models import MODEL_MAPPING

    return sorted({*MODEL_MAPPING, *own_backends()})


def _backend(value: Any, where: str) -> str:
    known = backends()
    if value not in known:
        raise ConfigError(f"{where}: unknown backend {value!r}{near_matches(str(value), known)}")
    return str(value)


def _args(value: Any, where: str) -> dict[str, Any]:
    """Further model arguments; `null` takes back one that an included file gave."""
    given = checks.plain_mapping(value, where)
    checked = {key: item for key, item in given.items() if item is not None}
    for key, place in RESERVED_ARGS.items():
        if key in checked:
            raise ConfigError(f"{where}.{key}: write it as {place} of the sweep instead")
    return checked


def _batch_size(value: Any, where: str) -> int | str:
    if isinstance(value, str) and value.split(":")[0] == "auto":
        return value
    return checks.positive_int(value, where)


def _rope(value: Any, where: str) -> dict[str, Any] | None:
    """A RoPE dictionary: kind and keys are checked here, the rest where the model is known."""
    if value is None:
        return None
    rope = checks.plain_mapping(value, where)
    if not isinstance(rope.get("rope_type"), str):
        raise ConfigError(
            f"{where}: needs rope_type, for instance {{rope_type: yarn, factor: 2.0}}, "
            "or null for the checkpoint as it is"
        )
    try:
        method, _, _ = split_rope_type(long_name(rope["rope_type"]))
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error
    allowed = {*COMMON_KEYS, *METHOD_KEYS[method][0], *METHOD_KEYS[method][1]}
    for key in rope:
        if key not in allowed:
            raise ConfigError(f"{where}: {method} has no '{key}'{near_matches(key, allowed)}")
    return rope


_CONTEXT_LENGTHS = checks.list_of(checks.optional(checks.positive_int))
_RESOURCES = checks.mapping_of(checks.amount)

_MODEL: dict[str, checks.Check] = {
    "path": checks.text,
    "backend": _backend,
    "revision": checks.optional(checks.text),
    "dtype": checks.one_of(*DTYPES),
    "args": _args,
    "apply_chat_template": checks.flag_or_name,
    "batch_size": _batch_size,
    "device": checks.optional(checks.text),
    "methods": checks.optional(checks.list_of(checks.text)),
    "context_lengths": checks.optional(_CONTEXT_LENGTHS),
    "tokens_per_second": checks.optional(checks.positive_number),
    "resources": _RESOURCES,
    "name": checks.label,
}

_TASK: dict[str, checks.Check] = {
    "tasks": checks.list_of(checks.text),
    "metadata": checks.plain_mapping,
    "gen_kwargs": checks.plain_mapping,
    "task_gen_kwargs": checks.mapping_of(checks.plain_mapping),
    "limit": checks.optional(checks.positive_int),
    "num_fewshot": checks.optional(checks.count),
    "context_lengths": checks.optional(_CONTEXT_LENGTHS),
}

_SWEEP: dict[str, checks.Check] = {
    "name": checks.folder_name,
    "models": checks.mapping,
    "methods": checks.mapping_of(_rope, checks.label),
    "tasks": checks.plain,
    "context_lengths": _CONTEXT_LENGTHS,
    "metadata": checks.plain_mapping,
    "gen_kwargs": checks.plain_mapping,
    "task_gen_kwargs": checks.mapping_of(checks.plain_mapping),
    "limit": checks.optional(checks.positive_int),
    "num_fewshot": checks.optional(checks.count),
    "seed": checks.count,
    "baseline": checks.optional(checks.text),
    "rope_precision": checks.one_of("float32", "model"),
    "timeout": checks.optional(checks.positive_number),
    "jobs": checks.positive_int,
    "use_cache": checks.flag,
    "confirm_run_unsafe_code": checks.flag,
}
_SHARED = ("metadata", "gen_kwargs", "task_gen_kwargs", "limit", "num_fewshot")


def load_config(name: str, overrides: Iterable[str] = ()) -> SweepConfig:
    """A sweep config from a path or a shipped name, overrides applied, everything checked.

    Raises:
        ConfigError: anything in it cannot be meant; the message names field, value and what is
            allowed.
    """
    path = find_config(name)
    content = apply_overrides(load_with_includes(path), overrides)
    return parse_config({"name": path.stem, **content})


def parse_config(content: Mapping[str, Any]) -> SweepConfig:
    """A checked sweep config from plain dictionaries."""
    top = checks.known_keys(content, "config", _SWEEP)
    for key in ("name", "models", "methods", "tasks"):
        if not top.get(key):
            raise ConfigError(f"config.{key}: is missing or empty")
    shared = {key: top.pop(key) for key in _SHARED if key in top}
    models = tuple(_model(name, item, top["methods"]) for name, item in top["models"].items())
    tasks = top["tasks"] if isinstance(top["tasks"], list) else [top["tasks"]]
    entries = tuple(_task(item, f"config.tasks.{i}", shared) for i, item in enumerate(tasks))
    config = SweepConfig(**{**top, "models": models, "tasks": entries})
    _check_methods(config)
    return config


def _model(key: str, value: Any, methods: Mapping[str, Any]) -> ModelConfig:
    where = f"config.models.{key}"
    settings = checks.known_keys(value, where, _MODEL)
    if "path" not in settings:
        raise ConfigError(f"{where}.path: is missing")
    settings.setdefault("name", checks.label(key, where))
    for method in settings.get("methods") or ():
        if method not in methods:
            raise ConfigError(f"{where}.methods: unknown '{method}'{near_matches(method, methods)}")
    return ModelConfig(**settings)


def _task(value: Any, where: str, shared: Mapping[str, Any]) -> TaskConfig:
    entry = value if isinstance(value, Mapping) else {"tasks": value}
    settings = checks.known_keys(entry, where, _TASK)
    if "tasks" not in settings:
        raise ConfigError(f"{where}.tasks: is missing")
    merged: dict[str, Any] = {**shared, **settings}
    for key in ("metadata", "gen_kwargs", "task_gen_kwargs"):
        merged[key] = {**shared.get(key, {}), **settings.get(key, {})}
    return TaskConfig(**merged)


def _check_methods(config: SweepConfig) -> None:
    """The baseline is one of the methods; a backend whose RoPE we cannot set gets none to set."""
    if config.baseline is not None and config.baseline not in config.methods:
        near = near_matches(config.baseline, config.methods)
        raise ConfigError(f"config.baseline: unknown method '{config.baseline}'{near}")
    for model in config.models:
        for name in model.methods or config.methods:
            if model.backend not in ROPE_BACKENDS and config.methods[name] is not None:
                raise ConfigError(
                    f"config.models.{model.name}.backend: '{model.backend}' runs the model as it "
                    f"is served, so method '{name}' cannot be set from here; set it where the "
                    f"model is served, and write `{name}: null` to give the row its name"
                )


def expand(config: SweepConfig) -> Iterator[CellRequest]:
    """Every cell of a sweep, comparable ones (same model, tasks, length) next to each other."""
    for model in config.models:
        for task in config.tasks:
            for length in task.context_lengths or model.context_lengths or config.context_lengths:
                for method in model.methods or config.methods:
                    yield CellRequest(
                        model=model,
                        method=method,
                        rope=config.methods[method],
                        context_length=length,
                        task=dataclasses.replace(task, context_lengths=None),
                    )


def task_names(config: SweepConfig) -> list[str]:
    """Every task or group that the sweep names, once, in order."""
    return list(dict.fromkeys(name for task in config.tasks for name in task.tasks))


def as_path(path: str) -> Path:
    """A path as a user writes it, `~` included."""
    return Path(path).expanduser()
