"""From a requested cell to the record that its process reads, and the id that names its folder."""

import dataclasses
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from leval_border.files import user_path
from leval_harness import secrets, smollm2
from leval_harness.backends import environment
from leval_harness.cell_record import CellRecord, MethodRecord, ModelRecord
from leval_harness.layout import SCHEMA_VERSION
from leval_harness.secrets import Secrets
from leval_harness.sweep import task_registry as own_tasks
from leval_harness.sweep.cell_inputs import outside
from leval_harness.sweep.config import (
    ROPE_BACKENDS,
    CellRequest,
    EntrySettings,
    ModelConfig,
    SweepConfig,
    expand,
    task_names,
)
from leval_harness.sweep.errors import ConfigError, ModelNotFoundError
from leval_harness.sweep.identity import (
    cell_id,
    folder_identity,
    hub_commit,
)
from leval_harness.sweep.lengths import CellLength, of_cell
from resonance_vllm.core.spec import RopeSpec
from resonance_vllm.model_config import overrides as settings
from resonance_vllm.model_config.limits import length_limit
from resonance_vllm.model_config.model_positions import ModelPositions

UNPREPARED = "unprepared"


@dataclass(frozen=True, kw_only=True)
class PlannedCell:
    """One cell, ready to run.

    Attributes:
        record: content of `cell.json`, except for what is known when it runs.
        secrets: credentials among its settings, which `record` lacks.
        timeout: seconds after which it counts as hanging; None for no limit.
        resources: what it needs of a Ray cluster.
        tokens_per_second: prompt speed to reckon with before anything was measured.
    """

    record: CellRecord
    secrets: Secrets = field(default_factory=list)
    timeout: float | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    tokens_per_second: float | None = None

    @property
    def id(self) -> str:
        """Hash of what decides its numbers; name of its folder."""
        return self.record.cell_id

    @property
    def is_preview(self) -> bool:
        """Whether its model's files, and with them its id, are not known yet."""
        return UNPREPARED in self.record.identity["model"]


class ModelFiles(NamedTuple):
    """A model that was found: where it is, what its config says, and what tells it from others."""

    path: str
    positions: ModelPositions | None
    identity: Mapping[str, Any]


def find_model(model: ModelConfig, prepare: bool = True) -> ModelFiles:
    """Where a model's files are, and what identifies them; see `plan`."""
    folder = user_path(model.path, f"models.{model.name}.path")
    if model.backend not in ROPE_BACKENDS and not folder.is_dir():
        served = {"served": model.path, "base_url": model.args.get("base_url")}
        return ModelFiles(model.path, None, served)
    if model.path == smollm2.NAME:
        if not prepare and not smollm2.is_prepared():
            positions = ModelPositions.of(smollm2.POSITIONS)
            return ModelFiles(model.path, positions, {UNPREPARED: model.path})
        folder = smollm2.prepare()
    identity: dict[str, Any]
    if folder.is_dir():
        path = str(folder.resolve())
        identity = {"files": folder_identity(Path(path))}
    elif model.path.startswith((".", "/", "~")) or model.path.count("/") > 1:
        raise ModelNotFoundError(f"models.{model.name}.path: there is no folder {model.path}")
    else:
        commit, snapshot = hub_commit(model.path, model.revision)
        path = str(snapshot or model.path)
        identity = {"hub": model.path, "commit": commit}
    return ModelFiles(path, ModelPositions.of_checkpoint(path), identity)


def _method(
    request: CellRequest, files: ModelFiles, precision: str, beside: int
) -> tuple[MethodRecord, dict[str, Any]]:
    """The method as it is recorded, and lm-eval's `model_args`: the user's and what it needs.

    The model reads up to `beside` tokens more than the length of the texts.
    """
    model = request.model
    library = ROPE_BACKENDS.get(model.backend)
    args: dict[str, Any] = dict(model.args)
    if library is None or files.positions is None:
        args["model" if "completions" in model.backend else "pretrained"] = files.path
        if request.context_length:
            args["max_length"] = request.context_length + beside
        served = MethodRecord(name=request.method, rope_parameters=None, rope_precision=precision)
        return served, args
    try:
        rope = None if request.rope is None else files.positions.complete(request.rope)
        args |= settings.model_args(
            rope,
            files.positions,
            library=library,
            model_path=files.path,
            context_length=_readable(request.context_length, beside, rope, files.positions),
            rope_precision=precision,
        )
    except ValueError as error:
        length = f" @ {request.context_length}" if request.context_length else ""
        where = f"model '{model.name}', method '{request.method}'{length}"
        raise ConfigError(f"{where}: {error}") from error
    args["dtype"] = model.dtype
    if files.path == model.path and (commit := files.identity.get("commit")):
        args["revision"] = commit  # a branch may have moved when the cell runs
    record = MethodRecord(
        name=request.method,
        rope_parameters=None if rope is None else rope.to_dict(),
        rope_precision=settings.effective_rope_precision(library, precision),
    )
    return record, args


def _readable(
    length: int | None, beside: int, rope: RopeSpec | None, model: ModelPositions
) -> int | None:
    """A length and the tokens beside it; the length alone where settings stop or depend on it."""
    if length is None or (rope is not None and rope.method.follows_length):
        return length
    return (
        length + beside if length_limit(model, rope, length + beside) >= length + beside else length
    )


def _lengths(request: CellRequest, files: ModelFiles) -> CellLength:
    """How the tasks of a cell are told its length."""
    task, model = request.task, request.model
    tasks = own_tasks.foreign(task.tasks)
    if not tasks:
        return CellLength({})
    told = of_cell(
        tasks, task.metadata, request.context_length, others=len(tasks) < len(task.tasks)
    )
    if told.tokenizer and files.positions is None and "tokenizer" not in model.args:
        raise ConfigError(
            f"models.{model.name}.args.tokenizer: missing; {told.tokenizer} makes its texts with "
            "the model's tokenizer"
        )
    return told


def resolve(request: CellRequest, config: SweepConfig, files: ModelFiles) -> PlannedCell:
    """A cell with its id, from a request and the files of its model."""
    model, task = request.model, request.task
    told = _lengths(request, files)
    mine = own_tasks.of_entry(task.tasks, task_names(config), task.task_gen_kwargs)
    changes = {"metadata": {**task.metadata, **told.metadata}, "task_gen_kwargs": mine}
    task = task.model_copy(update=changes)
    method, model_args = _method(request, files, config.rope_precision, told.beside)
    longest = model_args.get("max_length") or model_args.get("max_model_len")
    asked: dict[str, Any] = {
        "tasks": task.tasks,
        **{name: getattr(task, name) for name in EntrySettings.model_fields},
        "seed": config.seed,
        "apply_chat_template": model.apply_chat_template,
        "batch_size": model.batch_size,
        "device": model.device,
        "context_length": request.context_length or longest,
    }
    whole = CellRecord(
        schema_version=SCHEMA_VERSION,
        cell_id="not known yet",
        sweep=config.name,
        model=ModelRecord(
            name=model.name,
            path=files.path,
            revision=model.revision or files.identity.get("commit"),
            backend=model.backend,
            dtype=model.dtype,
            args=model.args,
        ),
        method=method,
        **asked,
        confirm_run_unsafe_code=config.confirm_run_unsafe_code,
        baseline=config.baseline,
        model_args=model_args,
        **_only_set(environment=environment(model.backend)),
    )
    public, kept = secrets.split(whole.written())
    record = CellRecord.model_validate(public)
    identity = _identity(record, secrets.split(dict(files.identity))[0])
    versions = {"python": platform.python_version(), **identity["packages"]}
    found = {"cell_id": cell_id(identity), "data": identity["data"], "identity": identity}
    return PlannedCell(
        record=record.model_copy(update={**found, "versions": versions}),
        secrets=kept,
        timeout=config.timeout,
        resources=model.resources,
        tokens_per_second=model.tokens_per_second,
    )


def _identity(record: CellRecord, model: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that decides the numbers of a cell; `model` is what tells its files."""
    found = outside(record, model)
    entry = {name: getattr(record, name) for name in EntrySettings.model_fields}
    return {
        "schema_version": SCHEMA_VERSION,
        "model": {
            **model,
            "backend": record.model.backend,
            "dtype": record.model.dtype,
            "args": found.pop("model")["args"],
        },
        "rope_parameters": record.method.rope_parameters,
        "rope_precision": record.method.rope_precision,
        "tasks": record.tasks,
        **entry,
        "seed": record.seed,
        "apply_chat_template": record.apply_chat_template,
        "batch_size": record.batch_size,
        "device": record.device,
        "context_length": record.context_length,
        **found,
        **_only_set(environment=record.environment),
    }


def _only_set(**fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that hold something: what few cells have leaves the ids of all others as they were."""
    return {name: each for name, each in fields.items() if each}


def plan(config: SweepConfig, prepare: bool = True) -> list[PlannedCell]:
    """Every cell of a sweep in the order in which they run.

    With `prepare` the model `smollm2` is made where it is not there; without, its cells have ids
    that do not last (`PlannedCell.is_preview`).

    Raises:
        ConfigError: an unknown task, a model that cannot be found, settings that do not go
            together, or two cells that would compute the same.
    """
    names = task_names(config)
    own_tasks.check_names(names)
    for task in config.tasks:
        own_tasks.check_settings(task.tasks, task.metadata)
        own_tasks.check_keys_are_tasks("task_gen_kwargs", task.task_gen_kwargs, names)
    files: dict[tuple[str, str | None, str], ModelFiles] = {}
    cells: dict[str, PlannedCell] = {}
    for request in expand(config):
        key = (request.model.path, request.model.revision, request.model.backend)
        if key not in files:
            files[key] = find_model(request.model, prepare)
        cell = resolve(request, config, files[key])
        if cell.id in cells:
            raise ConfigError(
                f"two cells compute the same: '{cells[cell.id].record.title}' and "
                f"'{cell.record.title}'; leave one out"
            )
        # Tables follow the config; folders are named by hashes and say nothing of it.
        record = cell.record.model_copy(update={"place": len(cells)})
        cells[cell.id] = dataclasses.replace(cell, record=record)
    return list(cells.values())
