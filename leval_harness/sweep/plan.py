"""From a sweep config to its runs: the record that a worker reads, its id, what it is run with."""

import contextlib
import hashlib
import json
import logging
import math
import platform
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from leval_harness.models.prepare import local_path
from leval_harness.results.layout import REFERENCE, SCHEMA_VERSION
from leval_harness.sweep import ConfigError
from leval_harness.sweep.config import ROPE_BACKENDS, ModelConfig, RunRequest, SweepConfig
from leval_harness.sweep.identity import checkpoint_digests, run_identity
from leval_harness.sweep.run_record import RunRecord, run_id
from leval_harness.sweep.task_registry import (
    BESIDE_LENGTH,
    check_names,
    check_settings,
    families_of,
    told_length,
)
from leval_tasks.common.metadata import asked_without_template
from resonance_vllm.checkpoint import config as overrides
from resonance_vllm.checkpoint.config import PositionConfig, length_limit
from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.common.files import expand_user, read_json_object
from resonance_vllm.common.hub import check_folder_exists, resolve_commit
from resonance_vllm.core.spec import RopeSpec

logger = logging.getLogger(__name__)
EFFECTIVE_CONTEXT, READS, WINDOW = "effective_context", "reads", "window"
PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


class ModelFiles(NamedTuple):
    """A model that was found: folder or name, what its config says, its part of the identity.

    Its `positions` are None for a served model.
    """

    path: str
    positions: PositionConfig | None
    identity: Mapping[str, Any]


def plan(config: SweepConfig) -> list[RunRecord]:
    """Every run of a sweep in the order in which they run.

    Raises:
        ConfigError: an unknown task, a model that cannot be found, settings that do not go
            together, or two runs that would compute the same.
    """
    for entry in config.tasks:
        check_names(entry.tasks)
        check_settings(entry.tasks, entry.metadata)
    files = {id(model): find_model(model) for model in config.models.values()}
    runs: dict[str, RunRecord] = {}
    for request in with_references(config.requests(), files):
        run = resolve(request, config, files[id(request.model)])
        if run.run_id in runs:
            raise ConfigError(
                f"two runs compute the same: '{runs[run.run_id].title}' and '{run.title}'; "
                "leave one out"
            )
        runs[run.run_id] = run
    for path in dict.fromkeys(filter(None, map(_unused_template, runs.values()))):
        logger.warning(asked_without_template(path))
    return list(runs.values())


def _unused_template(run: RunRecord) -> str | None:
    """The checkpoint of a run whose closed-ended questions leave its chat template out."""
    closed = "closed" in families_of(run.tasks)
    if not closed or run.apply_chat_template or run.metadata.get("frame"):
        return None
    folder = Path(str(run.model_args.get("tokenizer") or run.model.path))
    stated = read_json_object(folder / "tokenizer_config.json") or {}
    there = "chat_template" in stated or (folder / "chat_template.jinja").is_file()
    return str(folder) if there else None


def find_model(model: ModelConfig) -> ModelFiles:
    """The files of a configured model; a small model of ours is made if it is not there."""
    folder = expand_user(model.path)
    if model.backend not in ROPE_BACKENDS and not folder.is_dir():
        served = {"served": model.path, "base_url": model.args.get("base_url")}
        return ModelFiles(model.path, None, served)
    folder = Path(local_path(str(folder)))
    check_folder_exists(model.path, f"models.{model.label}.path")
    if folder.is_dir():
        path = folder.resolve()
        files = checkpoint_digests(path / str(model.args.get("subfolder", "")))
        return ModelFiles(str(path), PositionConfig.from_checkpoint(str(path)), {"files": files})
    commit, snapshot = resolve_commit(model.path, model.revision)
    where, found = str(snapshot or model.path), {"hub": model.path, "commit": commit}
    return ModelFiles(where, PositionConfig.from_checkpoint(where), found)


def with_references(
    requests: Iterable[RunRequest], files: Mapping[int, ModelFiles]
) -> Iterator[RunRequest]:
    """The requests, with a run of its own for the reference of effective-context tasks.

    The unmodified model reads the documents in windows of its native context length, once for all methods; in
    full where they do not exceed it. The methods read the documents in full.
    """
    planned: list[RunRequest] = []
    for request in requests:
        task, given = request.task, request.task.metadata
        ours = [name for name in task.tasks if families_of([name]) == {EFFECTIVE_CONTEXT}]
        if not ours or READS in given:
            yield request
            continue
        if request.context_length is None:
            raise ConfigError(
                f"context_lengths: missing; {ours[0]} needs it: every method reads the same documents"
            )
        reference = _reference(request, ours, given, files[id(request.model)].positions)
        if reference not in planned:
            planned.append(reference)
            yield reference
        full = {**given, READS: "full"}
        yield request._replace(task=task.model_copy(update={"metadata": full}))


def _reference(
    request: RunRequest, tasks: list[str], given: Mapping[str, Any], model: PositionConfig | None
) -> RunRequest:
    """The run that reads the documents of a request with the unmodified model."""
    stated = model is not None and model.max_position_embeddings is not None
    trained = given.get(WINDOW) or (length_limit(model) if model and stated else None)
    if not isinstance(trained, int):
        raise ConfigError(
            f"metadata.{WINDOW}: missing; {tasks[0]} compares with windows of the native context length, "
            f"which the config of {request.model.path} does not state"
        )
    lengths: Any = given.get("context_length") or request.context_length
    read = "full" if np.max(lengths) <= trained else "reference"
    metadata = {"context_length": [request.context_length], **given, READS: read}
    return request._replace(
        method=REFERENCE,
        rope=None,
        context_length=None if stated else trained,
        task=request.task.model_copy(update={"tasks": tuple(tasks), "metadata": metadata}),
    )


def resolve(request: RunRequest, config: SweepConfig, files: ModelFiles) -> RunRecord:
    """A run with its id and group, from a request and the files of its model."""
    model, task = request.model, request.task
    told = told_length(task.tasks, task.metadata, request.context_length)
    longer = bool(told) and families_of(task.tasks) == {""}  # ours take all that the model reads
    spec, precision, model_args = _model_args(request, config.rope_precision, files, longer)
    longest = model_args.get("max_length") or model_args.get("max_model_len")
    record = RunRecord.model_validate(
        {
            "schema_version": SCHEMA_VERSION,
            "run_id": "not known yet",
            "sweep": config.name,
            "model": {
                **{name: getattr(model, name) for name in ("backend", "dtype", "args")},
                "name": model.label,
                "path": files.path,
                "revision": model.revision or files.identity.get("commit"),
            },
            "method": {
                "name": request.method,
                "rope_parameters": spec and spec.to_dict(),
                "rope_precision": precision,
            },
            "tasks": task.tasks,
            **{name: getattr(task, name) for name in ("gen_kwargs", "limit", "num_fewshot")},
            "metadata": {**task.metadata, **told},
            **{n: getattr(model, n) for n in ("apply_chat_template", "batch_size", "device")},
            **{name: getattr(config, name) for name in ("seed", "confirm_run_unsafe_code")},
            "context_length": request.context_length or longest,
            "model_args": model_args,
            "replaced": files.positions.replaced_scaling(spec)
            if spec and files.positions
            else None,
            "gpus": gpus_of(model),
        }
    )
    identity = run_identity(record, files.identity)
    found: dict[str, Any] = {
        "data": identity["data"],
        "run_id": run_id(identity),
        "versions": {"python": platform.python_version(), **identity["packages"]},
        "identity": identity,
        "group": group_of(record, spec, files.positions),
    }
    return record.model_copy(update=found)


def group_of(record: RunRecord, rope: RopeSpec | None, positions: PositionConfig | None) -> str:
    """What the loaded model of a run is: with any rotation where that can be swapped.

    It can where it is one table that the length does not change. What turns out not to be, when it
    runs, gets a load of its own there.
    """
    loaded: dict[str, Any] = {"model": record.model.model_dump(exclude={"name"})}
    loaded |= {name: getattr(record, name) for name in ("batch_size", "device")}
    fixed = record.model.backend in ROPE_BACKENDS and positions is not None
    if fixed and positions:
        methods = [rope.method] if rope else []
        with contextlib.suppress(RopeConfigError):  # a type of the model's own
            methods.append(positions.own_spec().method)
        fixed = not any(each.depends_on_length or each.name == "longrope" for each in methods)
        longest = record.model_args.get("max_model_len")  # of vLLM
        fixed &= longest is None or longest <= length_limit(positions, None, longest)
    precision = record.method.rope_precision
    loaded |= {"precision": precision} if fixed else {"args": record.model_args}
    return hashlib.sha256(json.dumps(loaded, sort_keys=True).encode()).hexdigest()[:12]


def gpus_of(model: ModelConfig) -> int:
    """GPUs that a model takes: none where it runs on the CPU or on a server."""
    if model.gpus is not None or model.device == "cpu" or model.backend not in ROPE_BACKENDS:
        return model.gpus or 0
    if ROPE_BACKENDS[model.backend] != "vllm":
        return 1
    return math.prod(int(str(model.args.get(name, 1))) for name in PARALLEL)


def _model_args(
    request: RunRequest, precision: str, files: ModelFiles, longer: bool
) -> tuple[RopeSpec | None, str, dict[str, Any]]:
    """Completed RoPE settings, effective precision, and lm-eval's `model_args` of a run.

    Where tasks make documents to the length (`longer`), the model reads `BESIDE_LENGTH` tokens more.
    """
    model, positions = request.model, files.positions
    library = ROPE_BACKENDS.get(model.backend)
    args: dict[str, Any] = dict(model.args)
    readable = request.context_length
    beside = BESIDE_LENGTH if longer and readable else 0
    if library is None or positions is None:
        args["model" if "completions" in model.backend else "pretrained"] = files.path
        return None, precision, args | ({"max_length": readable + beside} if readable else {})
    at = f" @ {readable}" if readable else ""
    where = f"model '{model.label}', method '{request.method}'{at}"
    try:
        rope = None if request.rope is None else positions.complete(request.rope)
        if readable and beside and not (rope is not None and rope.method.depends_on_length):
            # no more than the settings allow, and no longer where they depend on the length
            allowed = length_limit(positions, rope, readable + beside) >= readable + beside
            readable += beside if allowed else 0
        args |= overrides.model_args(
            rope,
            positions,
            library=library,
            model_path=files.path,
            context_length=readable,
            rope_precision=precision,
        )
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error
    args["dtype"] = model.dtype
    if files.path == model.path and (commit := files.identity.get("commit")):
        args["revision"] = commit  # a branch may have moved when the run runs
    return rope, "model" if library == "vllm" else precision, args
