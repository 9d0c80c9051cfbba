"""From a sweep config to its cells: the record that each cell's process reads, and its id."""

import dataclasses
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from leval_harness import smollm2
from leval_harness.cell_record import CellRecord, cell_id
from leval_harness.checkpoint_files import checkpoint_hashes
from leval_harness.layout import SCHEMA_VERSION, YARDSTICK
from leval_harness.secrets import without_credentials
from leval_harness.sweep import ConfigError, ModelNotFoundError
from leval_harness.sweep.config import (
    ROPE_BACKENDS,
    CellRequest,
    EntrySettings,
    ModelConfig,
    SweepConfig,
)
from leval_harness.sweep.identity import cell_identity, environment
from leval_harness.sweep.task_registry import (
    CellLength,
    cell_length,
    checked_entries,
    lm_eval_names,
    own_tasks,
)
from leval_tasks.metadata import EffectiveContextSettings, family_settings, scored_from
from resonance_vllm import config as overrides
from resonance_vllm.config import ModelPositions, hub_commit, length_limit
from resonance_vllm.files import user_path

EFFECTIVE_CONTEXT, READS = "effective_context", "reads"
UNPREPARED = "unprepared"
OF_MODEL = ("apply_chat_template", "batch_size", "device")
OF_SWEEP = ("seed", "confirm_run_unsafe_code", "baseline", "margin")
"""Settings of a model and of a sweep that are in a cell's record as they are."""


class ModelFiles(NamedTuple):
    """A model that was found.

    Attributes:
        path: its folder, name on the hub, or name on a server.
        positions: what its config says of positions; None for a served model.
        identity: its part of a cell's identity: `files`, or `hub` and `commit`, or `served` and
            `base_url`.
    """

    path: str
    positions: ModelPositions | None
    identity: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class PlannedCell:
    """One cell, ready to run.

    Attributes:
        record: content of `cell.json`, except for what is known when it runs.
        with_credentials: the same with the credentials that `record` hides; None without any.
        timeout: seconds after which it counts as hanging; None for no limit.
        resources: what it needs of a Ray cluster.
        tokens_per_second: prompt speed to estimate with before a cell of its model is done.
    """

    record: CellRecord
    with_credentials: CellRecord | None = None
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


def plan(config: SweepConfig, prepare: bool = True) -> list[PlannedCell]:
    """Every cell of a sweep in the order in which they run.

    With `prepare` the model `smollm2` is made where it is not there; without, its cells have ids
    that do not last (`PlannedCell.is_preview`).

    Raises:
        ConfigError: an unknown task, a model that cannot be found, settings that do not go
            together, or two cells that would compute the same.
    """
    config = config.model_copy(update={"tasks": tuple(checked_entries(config.tasks))})
    requests = list(with_yardstick(config.requests()))
    files = {id(model): find_model(model, prepare) for model in config.models.values()}
    cells: dict[str, PlannedCell] = {}
    for request in requests:
        _refuse_short_texts(request, files[id(request.model)])
        cell = resolve(request, config, files[id(request.model)])
        if cell.id in cells:
            raise ConfigError(
                f"two cells compute the same: '{cells[cell.id].record.title}' and "
                f"'{cell.record.title}'; leave one out"
            )
        # Tables follow the config's order, which the names of the folders do not tell.
        record = cell.record.model_copy(update={"place": len(cells)})
        cells[cell.id] = dataclasses.replace(cell, record=record)
    return list(cells.values())


def find_model(model: ModelConfig, prepare: bool = True) -> ModelFiles:
    """The files of a configured model; with `prepare`, `smollm2` is made if it is not there.

    Raises:
        ModelNotFoundError: there is no such folder, or no such name on the hub.
    """
    folder = user_path(model.path, f"models.{model.name}.path")
    if model.backend not in ROPE_BACKENDS and not folder.is_dir():
        served = {"served": model.path, "base_url": model.args.get("base_url")}
        return ModelFiles(model.path, None, served)
    if model.path == smollm2.NAME:
        if not prepare and not smollm2.is_prepared():
            positions = ModelPositions.of(smollm2.POSITIONS)
            return ModelFiles(model.path, positions, {UNPREPARED: model.path})
        folder = smollm2.prepare()
    if folder.is_dir():
        path = str(folder.resolve())
        identity: dict[str, Any] = {"files": checkpoint_hashes(Path(path), model.args)}
        if not identity["files"]:
            raise ModelNotFoundError(
                f"models: {path} is no checkpoint folder (no config.json in it)"
                + _adapter_hint(folder, model.backend)
            )
    elif model.path.startswith((".", "/", "~")) or model.path.count("/") > 1:
        raise ModelNotFoundError(f"models.{model.name}.path: there is no folder {model.path}")
    else:
        try:
            commit, snapshot = hub_commit(model.path, model.revision)
        except OSError as error:
            raise ModelNotFoundError(f"models: {error}") from error
        path = str(snapshot or model.path)
        identity = {"hub": model.path, "commit": commit}
    return ModelFiles(path, ModelPositions.of_checkpoint(path), identity)


def _adapter_hint(folder: Path, backend: str) -> str:
    """How a model with an adapter is configured, if the folder holds an adapter."""
    if not (folder / "adapter_config.json").is_file():
        return ""
    key = "lora_local_path" if ROPE_BACKENDS.get(backend) == "vllm" else "peft"
    return f"; it is an adapter: put it into `args` as `{key}`, and its base model into `path`"


def with_yardstick(requests: Iterable[CellRequest]) -> Iterator[CellRequest]:
    """The requests, with a cell of its own for the yardstick of effective-context tasks.

    The model as shipped reads windows, once for all methods; the methods read the texts in full.

    Raises:
        ConfigError: such tasks without a context length, which all methods must share.
    """
    planned: list[CellRequest] = []
    for request in requests:
        task, known = request.task, own_tasks()
        ours = [n for n in task.tasks if n in known and known[n].family == EFFECTIVE_CONTEXT]
        if not ours or READS in family_settings(EffectiveContextSettings, task.metadata):
            yield request
            continue
        if request.context_length is None:
            raise ConfigError(
                f"context_lengths: missing; {ours[0]} needs it: every method reads the same texts"
            )
        length = {"context_length": [request.context_length], **task.metadata}
        windows = request._replace(
            method=YARDSTICK,
            rope=None,
            context_length=None,
            task=task.model_copy(
                update={"tasks": tuple(ours), "metadata": {**length, READS: "windows"}}
            ),
        )
        if windows not in planned:
            planned.append(windows)
            yield windows
        full = {**task.metadata, READS: "full"}
        yield request._replace(task=task.model_copy(update={"metadata": full}))


def _refuse_short_texts(request: CellRequest, files: ModelFiles) -> None:
    """Refuse texts that end before the first position that is scored.

    Raises:
        ConfigError: names the length and the window.
    """
    given = family_settings(EffectiveContextSettings, request.task.metadata)
    window = given.get("window") or (files.positions and files.positions.max_position_embeddings)
    if READS not in given or not isinstance(window, int):
        return
    lengths = given.get("context_length") or request.context_length
    shortest = min(lengths) if isinstance(lengths, list | tuple) else lengths
    if isinstance(shortest, int) and shortest <= scored_from(window):
        raise ConfigError(
            f"context_length: {shortest} is not above {scored_from(window)}, a quarter of the "
            f"window of {window} tokens, from which on texts are scored; give longer texts"
        )


def resolve(request: CellRequest, config: SweepConfig, files: ModelFiles) -> PlannedCell:
    """A cell with its id, from a request and the files of its model."""
    model, task = request.model, request.task
    length = CellLength()
    if lm_eval_names(task.tasks):  # ours take the length from the model's arguments
        length = cell_length(task.tasks, task.metadata, request.context_length)
    if length.tokenizer and files.positions is None and "tokenizer" not in model.args:
        raise ConfigError(
            f"models.{model.name}.args.tokenizer: missing; {length.tokenizer} makes its texts with "
            "the model's tokenizer"
        )
    rope, precision, model_args = _model_args(request, config.rope_precision, files, length)
    longest = model_args.get("max_length") or model_args.get("max_model_len")
    content: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "cell_id": "not known yet",
        "sweep": config.name,
        "model": {
            **{name: getattr(model, name) for name in ("name", "backend", "dtype", "args")},
            "path": files.path,
            "revision": model.revision or files.identity.get("commit"),
        },
        "method": {
            "name": request.method,
            "rope_parameters": rope,
            "rope_precision": precision,
        },
        "tasks": task.tasks,
        **{name: getattr(task, name) for name in EntrySettings.model_fields},
        "metadata": {**task.metadata, **length.metadata},
        **{name: getattr(model, name) for name in OF_MODEL},
        **{name: getattr(config, name) for name in OF_SWEEP},
        "context_length": request.context_length or longest,
        "model_args": model_args,
    }
    whole = CellRecord.model_validate(content)
    record = CellRecord.model_validate(without_credentials(whole.written()))
    identity = cell_identity(record, files.identity, environment(model.backend))
    found: dict[str, Any] = {
        **{key: identity[key] for key in ("data", "environment") if key in identity},
        "cell_id": cell_id(identity),
        "versions": {"python": platform.python_version(), **identity["packages"]},
        "identity": identity,
    }
    return PlannedCell(
        record=record.model_copy(update=found),
        with_credentials=None if record == whole else whole,
        timeout=config.timeout,
        resources=model.resources,
        tokens_per_second=model.tokens_per_second,
    )


def _model_args(
    request: CellRequest, precision: str, files: ModelFiles, length: CellLength
) -> tuple[dict[str, Any] | None, str, dict[str, Any]]:
    """Completed RoPE parameters, effective precision, and lm-eval's `model_args` of a cell.

    The model reads up to `length.extra_tokens` tokens more than the length of the texts.
    """
    model, positions = request.model, files.positions
    library = ROPE_BACKENDS.get(model.backend)
    args: dict[str, Any] = dict(model.args)
    if library is None or positions is None:
        args["model" if "completions" in model.backend else "pretrained"] = files.path
        if request.context_length:
            args["max_length"] = request.context_length + length.extra_tokens
        return None, precision, args
    try:
        rope = None if request.rope is None else positions.complete(request.rope)
        readable = request.context_length
        if readable and not (rope is not None and rope.method.follows_length):
            # no more than the settings allow, and no longer where they depend on the length
            longer = readable + length.extra_tokens
            readable = longer if length_limit(positions, rope, longer) >= longer else readable
        args |= overrides.model_args(
            rope,
            positions,
            library=library,
            model_path=files.path,
            context_length=readable,
            rope_precision=precision,
        )
    except ValueError as error:
        at = f" @ {request.context_length}" if request.context_length else ""
        where = f"model '{model.name}', method '{request.method}'{at}"
        raise ConfigError(f"{where}: {error}") from error
    args["dtype"] = model.dtype
    if files.path == model.path and (commit := files.identity.get("commit")):
        args["revision"] = commit  # a branch may have moved when the cell runs
    effective = overrides.effective_rope_precision(library, precision)
    return None if rope is None else rope.to_dict(), effective, args
