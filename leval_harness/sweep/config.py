"""A sweep config: models × methods × context lengths × tasks, read from YAML and checked."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, model_validator

from leval_harness.backends import BACKENDS
from leval_harness.sweep import ConfigError
from leval_harness.sweep.context_lengths import BEYOND_NATIVE, MULTIPLE
from leval_harness.sweep.task_registry import families_of
from leval_tasks.common.metadata import refuse_near_misses
from resonance_vllm.common.credentials import refuse_credentials
from resonance_vllm.common.errors import UserError, check_choice, choices_hint, short_repr
from resonance_vllm.common.files import expand_user
from resonance_vllm.common.settings import Settings, parse_settings
from resonance_vllm.common.yaml_files import packaged_configs, parse_yaml, read_yaml
from resonance_vllm.core.spec import RopeRequest

Item = TypeVar("Item")

RESERVED_ARGS = {
    **dict.fromkeys(("pretrained", "model"), "models.<name>.path"),
    **{key: f"models.<name>.{key}" for key in ("revision", "dtype")},
    **dict.fromkeys(
        ("rope_parameters", "rope_scaling", "rope_theta", "text_config", "hf_overrides"), "methods"
    ),
    "rope_precision": "rope_precision",
    **dict.fromkeys(("max_length", "max_model_len"), "context_lengths"),
}
"""Arguments of a model that other fields of the sweep decide -> those fields."""


def listed(value: object) -> Sequence[object]:
    """Return a list; a single value becomes a list of one."""
    return value if isinstance(value, list | tuple) else [value]


def _backend(name: str) -> str:
    """Check that a backend is a model type of lm-eval or of this package."""
    from lm_eval.models import MODEL_MAPPING

    known = sorted({*MODEL_MAPPING, *BACKENDS})
    if name not in known:
        raise ValueError(f"{short_repr(name)} is not allowed{choices_hint(name, known)}")
    return name


def _metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """Check settings of tasks: keys of other projects pass; a misspelt key of this package does not."""
    refuse_near_misses(metadata)
    return metadata


def _args(written: dict[str, Any]) -> dict[str, Any]:
    """Check further model arguments; `null` removes one of an included file."""
    args = {key: value for key, value in written.items() if value is not None}
    for key, field in RESERVED_ARGS.items():
        if key in args:
            raise UserError(f"{key}: write it as {field} of the sweep instead")
    return args


def task_entries(value: object) -> list[Any]:
    """Return task entries as mappings; each may be written as a mapping, a task, or a list of tasks."""
    return [entry if isinstance(entry, Mapping) else {"tasks": entry} for entry in listed(value)]


Text = Annotated[str, Field(min_length=1)]
Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+()=, @-]{0,79}$")]
FolderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")]
Count = Annotated[int, Field(ge=1)]
ContextLength = Count | Annotated[str, Field(pattern=MULTIPLE)] | None
"""Tokens, a multiple of the model's native context length such as `1.5x`, or null for its limit."""
Natural = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0)]
Several = Annotated[tuple[Item, ...], Field(strict=False, min_length=1), BeforeValidator(listed)]
"""A list; a single value counts as a list of one."""
PlainMapping = dict[Text, JsonValue]
"""Passed through to lm-eval, to a model or to tasks, which know the keys."""
BatchSize = Count | Annotated[str, Field(pattern=r"^auto(:[1-9]\d*)?$")]
if TYPE_CHECKING:
    RopeMapping = RopeRequest
else:
    RopeMapping = Annotated[PlainMapping, AfterValidator(RopeRequest.from_dict)]


class ModelConfig(Settings):
    """One model and how it is run."""

    label: Label | None = Field(
        None, description="Name of the model in tables; its key if not given."
    )
    path: Text = Field(
        description="Folder of a checkpoint, `smollm2` (prepared on first use), name on the hub, "
        "or the name under which a server has it."
    )
    backend: Annotated[Text, AfterValidator(_backend)] = Field(
        "hf", description="lm-eval model type, `hf-long` or `vllm-long`."
    )
    revision: Text | None = Field(None, description="Branch, tag or commit on the hub.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="Type of weights and activations."
    )
    args: Annotated[PlainMapping, AfterValidator(_args)] = Field(
        {}, description="Further lm-eval `model_args`; null removes one of an included file."
    )
    gpus: Natural | None = Field(
        None,
        description="GPUs that the model takes. vLLM: tensor × pipeline × data parallel size; "
        "others: 1, or as many as `parallelize` or `device_map` shall use. 0: it runs on the CPU.",
    )
    apply_chat_template: bool | Text = Field(
        False, description="true, false, or the name of one of the model's templates."
    )
    batch_size: BatchSize = Field(1, description="As lm-eval's `--batch_size`.")
    device: Text | None = Field(None, description="As lm-eval's `--device`.")
    methods: Several[Text] | None = Field(
        None,
        description="Names of the methods that this model runs; all of the sweep if not given.",
    )
    context_lengths: Several[ContextLength] | None = Field(
        None, description="In place of the sweep's."
    )

    @model_validator(mode="after")
    def _gpus_are_stated(self) -> "ModelConfig":
        if self.args.get("parallelize") and self.gpus is None:
            raise UserError(
                "gpus: missing; args.parallelize spreads the layers over several GPUs, of which a "
                "worker gets as many as gpus says"
            )
        return self


class EntrySettings(Settings):
    """Settings of a task entry; the sweep may give them for all entries."""

    metadata: Annotated[PlainMapping, AfterValidator(_metadata)] = Field(
        {}, description="Settings of the tasks, as lm-eval's `--metadata`."
    )
    gen_kwargs: PlainMapping = Field({}, description="Generation settings of the tasks.")
    limit: Count | None = Field(None, description="Questions per task; null for all.")
    num_fewshot: Natural | None = Field(None, description="As lm-eval's `--num_fewshot`.")


class TaskEntry(EntrySettings):
    """Tasks that one run evaluates."""

    tasks: Several[Text] = Field(description="Tasks or groups of lm-eval, or YAML files.")
    context_lengths: Several[ContextLength] | None = Field(
        None, description="In place of those of model and sweep."
    )


class SweepConfig(EntrySettings):
    """A whole sweep."""

    name: FolderName = Field(
        "", description="Name of the results folder; that of the file if not given."
    )
    models: dict[Label, ModelConfig] = Field(
        description="Name -> one model and how it is run.", min_length=1
    )
    methods: dict[Label, RopeMapping | None] = Field(
        description="Name -> RoPE settings, or null for the unmodified model.", min_length=1
    )
    tasks: Annotated[
        tuple[TaskEntry, ...],
        Field(strict=False, min_length=1),
        BeforeValidator(task_entries),
    ] = Field(description="What each run evaluates.")
    context_lengths: Several[ContextLength] | None = Field(
        None,
        description="Tokens, or multiples of each model's native context length (`1.5x`), for every "
        "model and task that has none of its own. Effective context: `1.5x` if nothing is given.",
    )
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = Field(
        0, description="Seed of lm-eval for few-shot examples and sampling."
    )
    baseline: Text | None = Field(None, description="Method that others are compared with.")
    margin: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="Effective context: smaller differences are treated as zero, nats/token."
    )
    rope_precision: Literal["float32", "model"] = Field(
        "float32",
        description="Precision of the rotation on transformers; `model` is the model's own dtype.",
    )
    jobs: Count = Field(1, description="Workers at a time for models that take no GPU.")
    time_limit: Seconds | None = Field(
        None, description="Seconds that a run may take, loading included; null for any."
    )
    stall_limit: Seconds | None = Field(
        7200, description="Seconds without an answer after which a run is given up; null for any."
    )
    confirm_run_unsafe_code: bool = Field(False, description="As lm-eval's option.")

    @model_validator(mode="after")
    def _check_names_of_methods(self) -> "SweepConfig":
        """Refuse names of methods that are not defined, and methods of models that cannot have any."""
        if self.baseline is not None:
            check_choice("baseline", self.baseline, self.methods, UserError)
        for key, model in self.models.items():
            for name in model.methods or self.methods:
                check_choice(f"models.{key}.methods", name, self.methods, UserError)
                if model.backend not in BACKENDS and self.methods[name] is not None:
                    raise UserError(
                        f"models.{key}.backend: '{model.backend}' runs the model as it is served, "
                        f"so method '{name}' cannot be set from here; set it where the model is "
                        f"served, and write `{name}: null` to give the row its name"
                    )
        return self

    def _lengths(self, model: ModelConfig, task: TaskEntry) -> Sequence[int | str | None]:
        """Return the context lengths of a model in a task: its own go before the model's."""
        lengths = task.context_lengths or model.context_lengths or self.context_lengths
        if lengths is not None:
            return lengths
        if "effective_context" in families_of(task.tasks):
            return BEYOND_NATIVE
        return (None,)

    def requests(self) -> "Iterator[RunRequest]":
        """Yield every run; comparable ones (same model, tasks and length) next to each other."""
        for model in self.models.values():
            for task in self.tasks:
                for length in self._lengths(model, task):
                    for method in model.methods or self.methods:
                        yield RunRequest(model, method, self.methods[method], length, task)


class RunRequest(NamedTuple):
    """One run as the config describes it, before model and data are examined.

    Attributes:
        model: of the run.
        method: name of its RoPE settings.
        rope: these settings; None for the unmodified model.
        context_length: tokens, a multiple of the native context length, or None for the limit.
        task: the tasks and their settings.
    """

    model: ModelConfig
    method: str
    rope: RopeRequest | None
    context_length: Any
    task: TaskEntry


def parse_config(content: Mapping[str, Any]) -> SweepConfig:
    """Return a sweep config from plain dictionaries.

    Raises:
        ConfigError: names every field that is wrong, its value and what is allowed; or a
            credential, whose value it does not name.
    """
    refuse_credentials(content, "config", ConfigError)
    content = with_factors(content)
    try:
        config = parse_settings(SweepConfig, content, "config", ConfigError)
    except ConfigError as error:
        # pydantic compares fields with each other only once all of them are valid
        lines = [*str(error).split("\n"), *_methods_that_do_not_exist(content)]
        raise ConfigError("\n".join(dict.fromkeys(lines))) from None
    shared = {name: getattr(config, name) for name in EntrySettings.model_fields}
    tasks = []
    for entry in config.tasks:
        own = {name: getattr(entry, name) for name in entry.model_fields_set & shared.keys()}
        tasks.append(entry.model_copy(update=merge(shared, own)))
    models = {
        key: model.model_copy(update={"label": model.label or key})
        for key, model in config.models.items()
    }
    return config.model_copy(update={"tasks": tuple(tasks), "models": models})


def with_factors(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a config in which a method with a list of factors is one method for each of them.

    `yarn: {rope_type: yarn, factor: [2, 4]}` becomes `yarn-2` and `yarn-4`, also where a model names
    `yarn` among its methods.

    Raises:
        ConfigError: a method of such a name exists, or the baseline is a list of factors.
    """
    methods = content.get("methods")
    if not isinstance(methods, Mapping):
        return content
    names = {
        str(name): [f"{name}-{factor:g}" for factor in _factors(rope)]
        for name, rope in methods.items()
        if _factors(rope)
    }
    taken = [*(name for name in methods if name not in names)]
    for name, of_name in names.items():
        for new in of_name:
            if new in taken:
                raise ConfigError(f"config.methods.{name}: there is a method {new} already")
            taken.append(new)
    baseline = content.get("baseline")
    if baseline in names:
        factors = ", ".join(f"{factor:g}" for factor in _factors(methods[baseline]))
        raise ConfigError(
            f"config.baseline: {baseline} has factors {factors}; name one of "
            f"{', '.join(names[baseline])}"
        )
    expanded: dict[str, Any] = {}
    for name, rope in methods.items():
        if name in names:
            of_factors = zip(names[name], _factors(rope), strict=True)
            expanded |= {new: {**rope, "factor": factor} for new, factor in of_factors}
        else:
            expanded[name] = rope
    models = content.get("models")
    if isinstance(models, Mapping):
        models = {key: _with_names(model, names) for key, model in models.items()}
        content = {**content, "models": models}
    return {**content, "methods": expanded}


def _factors(rope: object) -> list[float]:
    """Return the factors of a method that has a list of them; none for any other method."""
    factors = rope.get("factor") if isinstance(rope, Mapping) else None
    if not isinstance(factors, list):
        return []
    are_numbers = all(
        isinstance(factor, int | float) and not isinstance(factor, bool) for factor in factors
    )
    return factors if are_numbers else []


def _with_names(model: object, names: Mapping[str, list[str]]) -> object:
    """Return a model in which the names of methods with several factors are those of each factor."""
    if not isinstance(model, Mapping) or model.get("methods") is None:
        return model
    methods: list[object] = []
    for name in listed(model["methods"]):
        methods += names.get(str(name), [name])
    return {**model, "methods": methods}


def _methods_that_do_not_exist(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield an error message for each method that a config names without defining it.

    Methods are named as the baseline and in the lists of the models.
    """
    methods = content.get("methods")
    if not isinstance(methods, Mapping):
        return
    named: dict[str, Any] = {"config.baseline": content.get("baseline")}
    models = content.get("models")
    if isinstance(models, Mapping):
        for key, model in models.items():
            if isinstance(model, Mapping):
                named[f"config.models.{key}.methods"] = model.get("methods")
    for place, names in named.items():
        for name in listed(names):
            if name is not None and name not in methods:
                yield f"{place}: {short_repr(name)} is not allowed{choices_hint(str(name), methods)}"


def load_config(source: str | Mapping[str, Any], overrides: Sequence[str] = ()) -> SweepConfig:
    """Return a checked sweep config from a path, the name of a shipped sweep, or settings.

    Raises:
        ConfigError: names every field that is wrong, its value and what is allowed.
    """
    if isinstance(source, str):
        path = find_config(source)
        source = {"name": path.stem, **load_with_includes(path)}
    return parse_config(reduce(override, overrides, source))


def find_config(name: str) -> Path:
    """Return the file of a config from its path or the name of a shipped sweep."""
    path = expand_user(name)
    known = packaged_configs("sweeps")
    if path.is_file():
        return path
    if name not in known:
        raise ConfigError(
            f"config: {name!r} is neither a file nor a shipped sweep{choices_hint(name, known)}"
        )
    return known[name]


def load_with_includes(path: Path) -> dict[str, Any]:
    """Return a config with everything that it includes; the including file wins.

    `include` is a path or a list of paths, relative to the including file; later ones win.
    """
    content = read_yaml(path, ConfigError)
    paths = [path.parent / expand_user(str(name)) for name in listed(content.pop("include", []))]
    return reduce(merge, [*map(load_with_includes, paths), content])


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `over` into `base`: mappings key by key, everything else (lists too) is replaced.

    A RoPE method is one value: a dictionary with another `rope_type` replaces the old one whole,
    so that no parameter of the old method remains.
    """
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            same = value.get("rope_type", old.get("rope_type")) == old.get("rope_type")
            value = merge(old, value) if same else value
        merged[key] = value
    return merged


def override(config: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return a config in which `key.key=value` replaces a value; it is YAML.

    An entry of `tasks` is named by its number or by a task. A name with a dot in it is
    quoted: `models."llama-3.1".dtype`. Messages do not repeat the value, which may be a credential.

    Raises:
        ConfigError: no `=`, a value that is not YAML, or a path through something without keys.
    """
    key, equals, raw = text.partition("=")
    where = f"--set {key.strip()[:80]}"
    try:
        parts = next(csv.reader([key.strip()], delimiter=".", strict=True), [])
    except csv.Error:
        parts = []
    if not equals or not parts or not all(parts):
        raise ConfigError(f"{where}: write it as key.key=value, dotted names in quotes")
    changed: dict[str, Any] = _with_value(config, parts, parse_yaml(raw, where, ConfigError), where)
    return changed


def _with_value(node: Any, parts: list[str], value: Any, where: str) -> Any:
    """Return a copy of `node` in which the item at `parts` is `value`."""
    if not parts:
        return value
    head, *rest = parts
    if isinstance(node, Mapping | None):
        inner = (node or {}).get(head)
        if head == "tasks" and rest:
            inner = task_entries(inner)
        return {**(node or {}), head: _with_value(inner, rest, value, where)}
    if not isinstance(node, list):
        raise ConfigError(
            f"{where}: {short_repr(head)} lies in {type(node).__name__}, without keys"
        )
    named = (at for at, item in enumerate(node) if head in listed(item.get("tasks")))
    index = int(head) if head.isdecimal() else next(named, len(node))
    if index >= len(node):
        raise ConfigError(
            f"{where}: {short_repr(head)} is not allowed; allowed: the number of one of {len(node)} "
            "entries (from 0), or the name of a task among them"
        )
    return [*node[:index], _with_value(node[index], rest, value, where), *node[index + 1 :]]
