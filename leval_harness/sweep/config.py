"""A sweep config: models × methods × context lengths × tasks, checked before anything runs."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from leval_harness.backends import OWN_BACKENDS, libraries
from leval_harness.sweep import ConfigError
from leval_tasks.generation import check_generation
from leval_tasks.metadata import refuse_near_misses
from resonance_vllm.core.spec import RopeRequest
from resonance_vllm.errors import UserError, hint, not_allowed, one_of, shown
from resonance_vllm.settings import Settings, read

Item = TypeVar("Item")
Items = TypeVar("Items", tuple[Any, ...], dict[str, Any])
LARGEST = 10**15


def _text(value: str) -> str:
    if not value.strip() or "\0" in value:
        raise ValueError(f"{shown(value)} is not allowed; allowed: text that is not empty")
    return value


def _name(characters: str, described: str) -> AfterValidator:
    def check(value: str) -> str:
        if not re.fullmatch(rf"[A-Za-z0-9][A-Za-z0-9{characters}]{{0,79}}", value):
            allowed = f"a name of up to 80 letters, digits{described}"
            raise ValueError(
                f"{shown(value)} is not allowed; allowed: {allowed} beginning with a letter or "
                "digit"
            )
        return value

    return AfterValidator(check)


def listed(value: object) -> Sequence[object]:
    """A list; a single value counts as a list of one."""
    return value if isinstance(value, list | tuple) else [value]


def _filled(values: Items) -> Items:
    if not values:
        raise ValueError("empty is not allowed; allowed: at least one")
    return values


def _once(values: tuple[Item, ...]) -> tuple[Item, ...]:
    for i, value in enumerate(values):
        if value in values[:i]:
            raise UserError(f"{i}: {shown(value)} is listed twice")
    return values


def _plain(value: Any, place: str) -> Any:
    """A value that JSON can hold: cells are written as JSON."""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or not key.strip() or "\0" in key:
                raise UserError(not_allowed(place, key, "keys that are text"))
        return {key: _plain(item, f"{place}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{place}.{i}") for i, item in enumerate(value)]
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int | float) and abs(value) <= LARGEST**20 and math.isfinite(value):
        return value
    allowed = "text, a finite number, true, false, null, a list or a mapping of these"
    raise UserError(not_allowed(place, value, allowed))


def _checked_by(check: Callable[[dict[str, Any]], object]) -> AfterValidator:
    """A validator that keeps the value and raises what `check` raises."""

    def checked(value: dict[str, Any]) -> dict[str, Any]:
        check(value)
        return value

    return AfterValidator(checked)


Text = Annotated[str, AfterValidator(_text)]
Label = Annotated[str, _name("._+()=, @-", ", blanks and ._+()=,@-")]
"""A name as tables show it."""
FolderName = Annotated[str, _name("._-", " and ._-")]
Count = Annotated[int, Field(ge=1, le=LARGEST)]
Natural = Annotated[int, Field(ge=0, le=LARGEST)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
"""The range of NumPy's generator."""
Positive = Annotated[float, Field(gt=0)]
Amount = Annotated[float, Field(ge=0)]
Several = Annotated[
    tuple[Item, ...],
    Field(strict=False),
    BeforeValidator(listed),
    AfterValidator(_filled),
    AfterValidator(_once),
]
"""A list without repetition; a single value counts as a list of one."""
PlainMapping = Annotated[
    dict[Text, Any],
    AfterValidator(lambda content: {key: _plain(value, key) for key, value in content.items()}),
]
"""Passed through to lm-eval, to a model or to tasks, which know the keys."""
Metadata = Annotated[PlainMapping, _checked_by(refuse_near_misses)]
"""Keys of other projects pass; a misspelt key of ours does not."""
Generation = Annotated[PlainMapping, _checked_by(check_generation)]
"""Keys of one backend pass; a value that is wrong on every backend does not."""

ROPE_BACKENDS = libraries()
"""Backends whose RoPE settings we can write; the others run a model as its server has it."""
RESERVED_ARGS = {
    "pretrained": "models.<name>.path",
    "model": "models.<name>.path",
    "revision": "models.<name>.revision",
    "dtype": "models.<name>.dtype",
    "rope_parameters": "methods",
    "rope_scaling": "methods",
    "rope_theta": "methods",
    "text_config": "methods",
    "hf_overrides": "methods",
    "rope_precision": "rope_precision",
    "max_length": "context_lengths",
    "max_model_len": "context_lengths",
}
"""Arguments of a model that other fields of the sweep decide -> those fields."""


def _backend(name: str) -> str:
    """One of lm-eval's model types or of ours."""
    from lm_eval.models import MODEL_MAPPING

    known = sorted({*MODEL_MAPPING, *OWN_BACKENDS})
    if name not in known:
        raise ValueError(f"{shown(name)} is not allowed{hint(name, known)}")
    return name


def _args(given: dict[str, Any]) -> dict[str, Any]:
    """Further model arguments; `null` removes one of an included file."""
    args = {key: value for key, value in given.items() if value is not None}
    for key, place in RESERVED_ARGS.items():
        if key in args:
            raise UserError(f"{key}: write it as {place} of the sweep instead")
    return args


def _batch_size(value: int | str) -> int | str:
    if not re.fullmatch(r"auto(:0*[1-9]\d*)?", value) if isinstance(value, str) else value < 1:
        raise ValueError(f"{shown(value)} is not allowed; allowed: 1 or more, auto, auto:N")
    return value


def _rope(rope: dict[str, Any]) -> RopeRequest:
    """A RoPE dictionary: kind and keys are checked here, the rest where the model is known."""
    if not isinstance(rope.get("rope_type"), str):
        raise ValueError(
            "needs rope_type, for instance {rope_type: yarn, factor: 2.0}, or null for the "
            "checkpoint as shipped"
        )
    return RopeRequest.from_dict(rope)


if TYPE_CHECKING:
    RopeMapping = RopeRequest
else:
    RopeMapping = Annotated[PlainMapping, AfterValidator(_rope)]


class ModelConfig(Settings):
    """One model and how it is run.

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
        tokens_per_second: prompt speed with which `--dry-run` estimates before a cell is done.
        resources: what one cell of this model needs of a Ray cluster.
    """

    name: Label
    path: Text
    backend: Annotated[Text, AfterValidator(_backend)] = "hf"
    revision: Text | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    args: Annotated[PlainMapping, AfterValidator(_args)] = Field(default_factory=dict)
    apply_chat_template: bool | Text = False
    batch_size: Annotated[int | str, AfterValidator(_batch_size)] = 1
    device: Text | None = None
    methods: Several[Text] | None = None
    context_lengths: Several[Count | None] | None = None
    tokens_per_second: Positive | None = None
    resources: dict[Text, Amount] = Field(default_factory=dict)


class EntrySettings(Settings):
    """Settings of a task entry; the sweep may give them for all entries.

    Attributes:
        metadata: settings of the tasks, as lm-eval's `--metadata`.
        gen_kwargs: generation settings of all tasks.
        task_gen_kwargs: task -> generation settings of single ones.
        limit: questions a task.
        num_fewshot: as lm-eval's `--num_fewshot`.
    """

    metadata: Metadata = Field(default_factory=dict)
    gen_kwargs: Generation = Field(default_factory=dict)
    task_gen_kwargs: dict[Text, Generation] = Field(default_factory=dict)
    limit: Count | None = None
    num_fewshot: Natural | None = None

    def over(self, shared: "EntrySettings") -> dict[str, Any]:
        """These settings laid over those of the sweep: mappings key by key, the rest replaced."""
        fields = EntrySettings.model_fields
        merged = {name: getattr(shared, name) for name in fields}
        for name in self.model_fields_set & set(fields):
            value = getattr(self, name)
            merged[name] = {**merged[name], **value} if isinstance(value, dict) else value
        return merged


class TaskEntry(EntrySettings):
    """Tasks that one cell evaluates.

    Attributes:
        tasks: tasks or groups of lm-eval.
        context_lengths: in tokens, in place of those of model and sweep.
    """

    tasks: Several[Text]
    context_lengths: Several[Count | None] | None = None


def _entries(value: object) -> object:
    """Task entries: one or a list, each a mapping, a task, or a list of tasks."""
    entries = listed(value)
    return [each if isinstance(each, Mapping) else {"tasks": each} for each in entries]


def _named(models: object) -> object:
    """Models with their key for a name where they have no other."""
    if not isinstance(models, Mapping):
        return models
    return {
        key: {"name": key, **model} if isinstance(model, Mapping) else model
        for key, model in models.items()
    }


class SweepConfig(EntrySettings):
    """A whole sweep.

    Attributes:
        name: of its folder.
        models: name -> one model and how it is run.
        methods: name -> RoPE settings, or None for the model as shipped.
        tasks: entries; the sweep's own task settings are already merged into them.
        context_lengths: of every model and task that has none of its own.
        seed: of lm-eval, for few-shot examples and sampling.
        baseline: method that the others are compared with.
        margin: of the effective context length, nats a token; smaller differences count as none.
        rope_precision: in which cos and sin are computed and applied on transformers; `model` is
            the model's own dtype.
        timeout: seconds after which a cell counts as hanging.
        jobs: cells at a time on this machine.
        confirm_run_unsafe_code: as lm-eval's option.
    """

    name: FolderName
    models: Annotated[dict[str, ModelConfig], BeforeValidator(_named), AfterValidator(_filled)]
    methods: Annotated[dict[Label, RopeMapping | None], AfterValidator(_filled)]
    tasks: Annotated[
        tuple[TaskEntry, ...],
        Field(strict=False),
        BeforeValidator(_entries),
        AfterValidator(_filled),
    ]
    context_lengths: Several[Count | None] = (None,)
    seed: Seed = 0
    baseline: Text | None = None
    margin: Annotated[float, Field(gt=0, le=1)] | None = None
    rope_precision: Literal["float32", "model"] = "float32"
    timeout: Positive | None = None
    jobs: Count = 1
    confirm_run_unsafe_code: bool = False

    @model_validator(mode="after")
    def _fields_fit_each_other(self) -> "SweepConfig":
        if self.baseline is not None:
            one_of("baseline", self.baseline, self.methods, UserError)
        for key, model in self.models.items():
            for name in model.methods or self.methods:
                one_of(f"models.{key}.methods", name, self.methods, UserError)
                if model.backend not in ROPE_BACKENDS and self.methods[name] is not None:
                    raise UserError(
                        f"models.{key}.backend: '{model.backend}' runs the model as it is served, "
                        f"so method '{name}' cannot be set from here; set it where the model is "
                        f"served, and write `{name}: null` to give the row its name"
                    )
        return self

    def requests(self) -> "Iterator[CellRequest]":
        """Every cell; comparable ones (same model, tasks and length) next to each other."""
        for model in self.models.values():
            for task in self.tasks:
                lengths = task.context_lengths or model.context_lengths or self.context_lengths
                for length in lengths:
                    for method in model.methods or self.methods:
                        yield CellRequest(model, method, self.methods[method], length, task)


class CellRequest(NamedTuple):
    """One cell as the config describes it, before model and data are examined."""

    model: ModelConfig
    method: str
    rope: RopeRequest | None
    context_length: int | None
    task: TaskEntry


def parse_config(content: Mapping[str, Any]) -> SweepConfig:
    """A sweep config from plain dictionaries.

    Raises:
        ConfigError: names every field that is wrong, its value and what is allowed.
    """
    config = read(SweepConfig, content, "config", ConfigError)
    entries = tuple(entry.model_copy(update=entry.over(config)) for entry in config.tasks)
    return config.model_copy(update={"tasks": entries})
