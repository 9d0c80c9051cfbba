"""From a sweep config to its runs: the record that a worker reads, its id, what it is run with."""

import contextlib
import hashlib
import json
import logging
import math
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from leval_harness.backends import BACKENDS, asks_server, generated_after_text
from leval_harness.models.prepare import local_path
from leval_harness.results.layout import REFERENCE, SCHEMA_VERSION
from leval_harness.sweep import ConfigError
from leval_harness.sweep.config import (
    ModelConfig,
    RunRequest,
    SweepConfig,
    TaskEntry,
)
from leval_harness.sweep.context_lengths import WINDOW, in_tokens, native_length
from leval_harness.sweep.executor import Capacity
from leval_harness.sweep.identity import checkpoint_digests, has_weights, run_identity
from leval_harness.sweep.preflight import check_runs
from leval_harness.sweep.run_record import RunRecord, run_id
from leval_harness.sweep.task_registry import (
    BESIDE_LENGTH,
    EFFECTIVE_CONTEXT,
    check_names,
    check_settings,
    families_of,
    length_setting,
)
from leval_tasks.common.metadata import asked_without_template
from resonance_vllm.checkpoint.arguments import model_args
from resonance_vllm.checkpoint.limits import length_limit
from resonance_vllm.checkpoint.positions import PositionConfig
from resonance_vllm.common.errors import RopeConfigError, UserError
from resonance_vllm.common.files import expand_user, read_json_object
from resonance_vllm.common.hub import check_folder_exists, is_offline, resolve_commit
from resonance_vllm.core.spec import RopeSpec

logger = logging.getLogger(__name__)
READS = "reads"


class ModelFiles(NamedTuple):
    """A configured model that was found.

    Attributes:
        path: its folder, or its name on the hub or on a server.
        positions: what its config says about positions; None for a served model.
        identity: its part of a run's identity.
    """

    path: str
    positions: PositionConfig | None
    identity: Mapping[str, Any]


class ModelArguments(NamedTuple):
    """What a run's model is built from.

    Attributes:
        rope: complete RoPE settings; None for the unmodified model.
        precision: of the rotation.
        args: lm-eval's `model_args`.
    """

    rope: RopeSpec | None
    precision: str
    args: dict[str, Any]


class Mistakes:
    """Collects errors in a config, so that all of them are shown at once."""

    def __init__(self) -> None:
        self.errors: dict[str, UserError] = {}

    @contextlib.contextmanager
    def collected(self) -> Iterator[None]:
        """Keep an error that is raised inside of the context; the same message counts once."""
        try:
            yield
        except UserError as error:
            self.errors.setdefault(str(error), error)

    def raise_all(self) -> None:
        """Raise what was collected.

        Raises:
            UserError: the only error as it is; several as one ConfigError, a line for each.
        """
        if len(self.errors) == 1:
            raise next(iter(self.errors.values()))
        if self.errors:
            raise ConfigError("\n".join(self.errors))


def plan(config: SweepConfig, capacity: Callable[[], Capacity] | None = None) -> list[RunRecord]:
    """Return every run of a sweep, in the order of the config.

    Args:
        config: the sweep.
        capacity: returns the GPUs that there are. With it, the error of a config with mistakes also
            says what would make its other runs fail (`preflight`).

    Raises:
        UserError: unknown tasks, models that cannot be found, settings that do not go together, or
            two runs that would compute the same; all that is wrong at once.
    """
    mistakes = Mistakes()
    usable_tasks = []
    for entry in config.tasks:
        with mistakes.collected():
            check_names(entry.tasks)
            check_settings(entry.tasks, entry.metadata)
            usable_tasks.append(id(entry))
    files: dict[int, ModelFiles] = {}
    for model in config.models.values():
        with mistakes.collected():
            files[id(model)] = find_model(model)
    requests = [
        request
        for request in config.requests()
        if id(request.task) in usable_tasks and id(request.model) in files
    ]
    runs: dict[str, RunRecord] = {}
    for request in _prepared(requests, files, mistakes):
        with mistakes.collected():
            run = resolve(request, config, files[id(request.model)])
            if run.run_id in runs:
                raise ConfigError(
                    f"two runs compute the same: '{runs[run.run_id].title}' and '{run.title}'; "
                    "remove one of them"
                )
            runs[run.run_id] = run
    if mistakes.errors and capacity is not None:
        with mistakes.collected():
            check_runs(list(runs.values()), capacity())
    mistakes.raise_all()
    for path in dict.fromkeys(filter(None, map(_unused_template, runs.values()))):
        logger.warning(asked_without_template(path))
    return list(runs.values())


def _prepared(
    requests: Iterable[RunRequest], files: Mapping[int, ModelFiles], mistakes: Mistakes
) -> list[RunRequest]:
    """Return the requests with lengths in tokens and with their reference runs."""
    in_order: list[RunRequest] = []
    for request in requests:
        with mistakes.collected():
            positions = files[id(request.model)].positions
            native = native_length(positions, request.task.metadata)
            length = in_tokens(request.context_length, native, request.model.path)
            prepared = with_reference(request._replace(context_length=length), positions)
            in_order += [new for new in prepared if new not in in_order]
    return in_order


def _unused_template(run: RunRecord) -> str | None:
    """Return the checkpoint of a run whose closed-ended questions do not use its chat template."""
    is_closed = "closed" in families_of(run.tasks)
    if not is_closed or run.apply_chat_template or run.metadata.get("frame"):
        return None
    folder = Path(str(run.model_args.get("tokenizer") or run.model.path))
    tokenizer = read_json_object(folder / "tokenizer_config.json") or {}
    if "chat_template" in tokenizer or (folder / "chat_template.jinja").is_file():
        return str(folder)
    return None


def find_model(model: ModelConfig) -> ModelFiles:
    """Return the files of a configured model; a small model of this package is made if missing.

    Raises:
        UserError: there is no such folder or model on the hub, or its config cannot be read.
    """
    folder = expand_user(model.path)
    is_served = asks_server(model.backend, model.args)
    if is_served or (model.backend not in BACKENDS and not folder.is_dir()):
        # The name that a server uses may be that of a folder here.
        served = {"served": model.path, "base_url": model.args.get("base_url")}
        return ModelFiles(model.path, None, served)
    folder = Path(local_path(str(folder)))
    check_folder_exists(model.path, f"models.{model.label}.path")
    if folder.is_dir():
        path = folder.resolve()
        files = checkpoint_digests(path / str(model.args.get("subfolder", "")))
        return ModelFiles(str(path), PositionConfig.from_checkpoint(str(path)), {"files": files})
    commit, snapshot = resolve_commit(model.path, model.revision)
    if snapshot is not None and not has_weights(snapshot) and not is_offline():
        snapshot = (
            None  # it has what `check` reads; the weights are fetched when the model is loaded
        )
    path_or_name = str(snapshot or model.path)
    identity = {"hub": model.path, "commit": commit}
    return ModelFiles(path_or_name, PositionConfig.from_checkpoint(path_or_name), identity)


def with_reference(request: RunRequest, positions: PositionConfig | None) -> list[RunRequest]:
    """Return a request, with that of its reference run in front if it has effective-context tasks.

    The reference run reads the documents with the unmodified model in windows of its native context
    length, once for all methods; in full if they do not exceed it. The methods then read the
    documents in full only.

    Raises:
        ConfigError: no native context length is known.
    """
    metadata = request.task.metadata
    tasks = [name for name in request.task.tasks if families_of([name]) == {EFFECTIVE_CONTEXT}]
    if not tasks or READS in metadata:
        return [request]
    if request.context_length is None:
        raise ConfigError(
            f"context_lengths: missing; {tasks[0]} needs it: every method reads the same documents"
        )
    native = native_length(positions, metadata)
    if native is None:
        raise ConfigError(
            f"metadata.{WINDOW}: missing; {tasks[0]} compares with windows of the native context "
            f"length, which the config of {request.model.path} does not state"
        )
    lengths: Any = metadata.get("context_length") or request.context_length
    longest = max(lengths) if isinstance(lengths, list | tuple) else lengths
    # As long as what the methods read: a backend that generates after a text reads less of it.
    generated = generated_after_text(request.model.backend, request.model.args)
    read = "reference"
    if longest <= native:
        read = "full"
    of_reference = {
        "context_length": [request.context_length - generated],
        **metadata,
        READS: read,
    }
    is_stated = positions is not None and positions.max_position_embeddings is not None
    reference = request._replace(
        method=REFERENCE,
        rope=None,
        context_length=None if is_stated else native,
        task=_changed(request.task, tasks=tuple(tasks), metadata=of_reference),
    )
    full = _changed(request.task, metadata={**metadata, READS: "full"})
    return [reference, request._replace(task=full)]


def _changed(task: TaskEntry, **changes: Any) -> TaskEntry:
    return task.model_copy(update=changes)


def resolve(request: RunRequest, config: SweepConfig, files: ModelFiles) -> RunRecord:
    """Return a run with its id and group, from a request and the files of its model.

    Raises:
        UserError: the settings do not go together, or the length is above the limit.
    """
    model = request.model
    task = request.task
    length = length_setting(task.tasks, task.metadata, request.context_length)
    # Tasks of lm-eval that make documents of a length add instructions and answer to it. Ours do
    # not, and an entry with both reads no more than the length.
    beside = BESIDE_LENGTH if length and families_of(task.tasks) == {""} else 0
    rope, precision, model_args = model_arguments(request, files, config.rope_precision, beside)
    longest = model_args.get("max_length") or model_args.get("max_model_len")
    replaced = None
    if rope is not None and files.positions is not None:
        replaced = files.positions.replaced_scaling(rope)
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
                "rope_parameters": rope and rope.to_dict(),
                "rope_precision": precision,
            },
            "tasks": task.tasks,
            **{name: getattr(task, name) for name in ("gen_kwargs", "limit", "num_fewshot")},
            "metadata": {**task.metadata, **length},
            **{n: getattr(model, n) for n in ("apply_chat_template", "batch_size", "device")},
            **{name: getattr(config, name) for name in ("seed", "confirm_run_unsafe_code")},
            "context_length": request.context_length or longest,
            "model_args": model_args,
            "replaced": replaced,
            "gpus": gpus_of(model),
        }
    )
    identity = run_identity(record, files.identity)
    known_now: dict[str, Any] = {
        "data": identity["data"],
        "run_id": run_id(identity),
        "versions": {"python": platform.python_version(), **identity["packages"]},
        "identity": identity,
        "group": group_of(record, rope, files.positions),
    }
    return record.model_copy(update=known_now)


def group_of(record: RunRecord, rope: RopeSpec | None, positions: PositionConfig | None) -> str:
    """Return a key for the loaded model of a run; runs with the same key can share it."""
    loaded: dict[str, Any] = {
        "model": record.model.model_dump(exclude={"name"}),
        "batch_size": record.batch_size,
        "device": record.device,
    }
    if positions is not None and can_be_swapped(record, rope, positions):
        loaded["precision"] = record.method.rope_precision
    else:
        loaded["args"] = record.model_args
    return hashlib.sha256(json.dumps(loaded, sort_keys=True).encode()).hexdigest()[:12]


def can_be_swapped(record: RunRecord, rope: RopeSpec | None, positions: PositionConfig) -> bool:
    """Return whether a loaded model can take the rotation of a run in place of another one.

    It can if the rotation is one table that does not depend on the length. If loading shows that it
    cannot be swapped after all, the run gets a model instance of its own then.
    """
    if record.model.backend not in BACKENDS:
        return False
    methods = [rope.method] if rope else []
    with contextlib.suppress(RopeConfigError):  # a type that only the model's own code knows
        methods.append(positions.own_spec().method)
    if any(method.depends_on_length or method.name == "longrope" for method in methods):
        return False
    # vLLM allocates the table of a running engine once, for the native context length.
    longest = record.model_args.get("max_model_len")
    return longest is None or longest <= length_limit(positions, None, longest)


def gpus_of(model: ModelConfig) -> int:
    """Return how many GPUs a model takes; 0 if it runs on the CPU or on a server."""
    if model.gpus is not None:
        return model.gpus
    if model.device == "cpu" or model.backend not in BACKENDS:
        return 0
    parallel = BACKENDS[model.backend].parallel_arguments
    return math.prod(int(str(model.args.get(name, 1))) for name in parallel)


def model_arguments(
    request: RunRequest, files: ModelFiles, precision: str, beside: int
) -> ModelArguments:
    """Return what the model of a run is built from.

    A model behind a server, or whose config cannot be read, gets no RoPE settings from here.

    Args:
        request: the run.
        files: of its model.
        precision: of the rotation, on backends that can choose.
        beside: tokens that the model reads in addition to the context length, if it can.

    Raises:
        ConfigError: the RoPE settings do not fit the model, or the length is above the limit.
    """
    model = request.model
    backend = BACKENDS.get(model.backend)
    if backend is None or files.positions is None:
        return ModelArguments(None, precision, _arguments_of_served(request, files.path, beside))
    rope = None
    try:
        if request.rope is not None:
            rope = files.positions.complete(request.rope)
        rope_arguments = model_args(
            rope,
            files.positions,
            library=backend.library,
            model_path=files.path,
            context_length=readable_length(request.context_length, rope, files.positions, beside),
            rope_precision=precision,
        )
    except ValueError as error:
        length = ""
        if request.context_length:
            length = f" @ {request.context_length}"
        raise ConfigError(
            f"model '{model.label}', method '{request.method}'{length}: {error}"
        ) from error
    args = {**model.args, **rope_arguments, "dtype": model.dtype}
    commit = files.identity.get("commit")
    if commit and files.path == model.path:
        args["revision"] = commit  # a branch may have moved by the time the run is computed
    if not backend.chooses_rope_precision:
        precision = "model"
    return ModelArguments(rope, precision, args)


def _arguments_of_served(request: RunRequest, path: str, beside: int) -> dict[str, Any]:
    """Return the arguments of a model that takes no RoPE settings from here."""
    model = request.model
    name = "model" if asks_server(model.backend, model.args) else "pretrained"
    args = {**model.args, name: path}
    if request.context_length:
        args["max_length"] = request.context_length + beside
    return args


def readable_length(
    length: int | None, rope: RopeSpec | None, positions: PositionConfig, beside: int
) -> int | None:
    """Return how many tokens a model is to read for a context length, `beside` added if it can.

    It cannot where the settings allow no more, and must not where the rotation depends on the
    length: the numbers would be those of another length.
    """
    if length is None or (rope is not None and rope.method.depends_on_length):
        return length
    longer = length + beside
    if length_limit(positions, rope, longer) >= longer:
        return longer
    return length
