"""The content of `cell.json`, `done.json` and `failed.json`: sweeps write it, tables read it.

One class for each file. Reading tolerates files of other versions: unknown fields are ignored, and
what is missing or null takes its default. The order of the fields is the order in the file.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from leval_harness.layout import SCHEMA_VERSION
from resonance_vllm.errors import shown
from resonance_vllm.files import read_object

IDENTITY_FIELDS: dict[str, str] = {
    "schema_version": "layout of the files in a cell's folder",
    "model": "what identifies its files: `files` (path -> SHA-256), or `hub` and `commit`, or for "
    "a served model `served` and `base_url`; and `backend`, `dtype` and `args`, in which a file or "
    "folder is replaced by hashes and a hub name by its commit",
    "rope_parameters": "completed RoPE dictionary; null for a checkpoint as shipped",
    "rope_precision": "precision of the rotation: `float32` or `model`",
    "tasks": "names of tasks and groups, or YAML files",
    "metadata": "settings of the tasks, files replaced as in `model.args`; without `data_dir` "
    "where all tasks are ours",
    "gen_kwargs": "generation settings of all tasks",
    "task_gen_kwargs": "task -> generation settings of it alone",
    "limit": "questions a task; null for all",
    "num_fewshot": "as lm-eval's option",
    "seed": "of every generator that lm-eval seeds",
    "apply_chat_template": "true, false, or the name of a template",
    "batch_size": "as lm-eval's option",
    "device": "as lm-eval's option; null where the backend chooses",
    "context_length": "longest sequence in tokens",
    "task_versions": "task or group -> version of ours, hash of a task file, or `lm_eval`",
    "data": "`source` and `files` (name -> SHA-256) of the documents of our tasks, one such entry "
    "for each family that was given a folder of its own; `python` where its reference is read",
    "packages": "package -> version, of those that decide what is computed",
    "environment": "variables that are set and decide what is computed; missing where none is",
}
"""Fields of `CellRecord.identity`, which decide the numbers of a cell and nothing else does.

`leval_harness.sweep.identity.cell_identity` computes it. Credentials are left out of all fields.
"""


def cell_id(identity: Mapping[str, Any]) -> str:
    """First 16 hex digits of the SHA-256 of the canonical JSON: keys sorted, no blanks, no NaN."""
    canonical = json.dumps(
        identity, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False
    )
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


Version = Annotated[int, Field(ge=1, le=10**15)]
Natural = Annotated[int, Field(ge=0, le=10**15)]
"""A larger one is no length, count or limit."""


def _with_objects(identity: dict[str, Any]) -> dict[str, Any]:
    """Refuse an identity whose parts with keys of their own are no objects."""
    parts = {name: identity.get(name) for name in ("model", "metadata", "task_versions")}
    if isinstance(parts["model"], Mapping):
        parts["model.args"] = parts["model"].get("args")
    for name, part in parts.items():
        if part is not None and not isinstance(part, Mapping):
            raise ValueError(f"{name}: {shown(part)} is not allowed; allowed: an object")
    return identity


WrittenRecord = TypeVar("WrittenRecord", bound="Record")


class Record(BaseModel):
    """Base of what is written to a cell's folder."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _null_is_missing(cls, content: Any) -> Any:
        """Null stands for the default; it is left in where null itself is that."""
        if not isinstance(content, Mapping):
            return content
        nullable = {key for key, field in cls.model_fields.items() if field.default is None}
        return {k: v for k, v in content.items() if v is not None or k in nullable}

    def written(self) -> dict[str, Any]:
        """The content of the file: every field that was given, in order."""
        return self.model_dump(exclude_unset=True)


class ModelRecord(Record):
    """The model of a cell: its name in tables, its files, and how it was run."""

    name: str = Field(min_length=1)
    path: str = ""
    revision: str | None = None
    backend: str = ""
    dtype: str = ""
    args: dict[str, Any] = {}


class MethodRecord(Record):
    """The RoPE method of a cell; `rope_parameters` is None for a checkpoint as it is shipped."""

    name: str = Field(min_length=1)
    rope_parameters: dict[str, Any] | None = None
    rope_precision: str = ""


class CellRecord(Record):
    """The full request of one evaluation.

    Attributes:
        cell_id: hash of `identity`, and name of the cell's folder.
        tasks: names or YAML files, as in the sweep's config.
        metadata: settings of the tasks, as lm-eval's `--metadata`.
        limit: questions a task; None for all.
        context_length: longest sequence in tokens.
        baseline: name of the method that the others are compared with.
        margin: nats a token; smaller differences of the effective context length count as none.
        model_args: what lm-eval builds the model from.
        versions: of Python and of the packages that decide what is computed.
        environment: variables that were set and decide what is computed.
        data: source of the documents and SHA-256 of its files.
        identity: everything that decides the numbers, see `IDENTITY_FIELDS`.
        replaced: the scaling of the checkpoint in whose place the method runs; None without one.
        place: position in the config of its sweep, from 0. `sweep.json` has the order now.
        host: the machine. It is known when the cell runs, as are `command` (what the user typed),
            `created`, `cuda_visible_devices`, `seconds` of the evaluation and `telemetry`, what
            the backend counted.
    """

    schema_version: Version
    cell_id: str = Field(min_length=1)
    sweep: str = ""
    model: ModelRecord
    method: MethodRecord
    tasks: tuple[str, ...] = Field(min_length=1, strict=False)
    metadata: dict[str, Any] = {}
    gen_kwargs: dict[str, Any] = {}
    task_gen_kwargs: dict[str, dict[str, Any]] = {}
    limit: int | float | None = Field(default=None, ge=0, le=10**15)
    num_fewshot: Natural | None = None
    seed: Natural | None = None
    apply_chat_template: bool | str = False
    batch_size: int | str = 1
    device: str | None = None
    context_length: Natural | None = None
    confirm_run_unsafe_code: bool = False
    baseline: str | None = None
    margin: float | None = Field(default=None, gt=0, le=1)
    model_args: dict[str, Any] = {}
    versions: dict[str, Any] = {}
    environment: dict[str, str] = {}
    data: dict[str, Any] = {}
    identity: Annotated[dict[str, Any], AfterValidator(_with_objects)] = {}
    place: Natural = 0
    host: dict[str, Any] = {}
    command: str = ""
    created: str = ""
    replaced: dict[str, Any] | None = None
    cuda_visible_devices: str | None = None
    seconds: float | None = Field(default=None, ge=0)
    telemetry: dict[str, Any] = {}

    @property
    def title(self) -> str:
        """What messages call the cell: model, method, length and tasks."""
        at = f" @ {self.context_length}" if self.context_length else ""
        return f"{self.model.name} | {self.method.name}{at} | {', '.join(self.tasks)}"


class DoneRecord(Record):
    """The marker that is written last: without it a cell is not done.

    Attributes:
        seconds: from start to end of the cell's process.
        telemetry: what the backend counted.
        files: name -> SHA-256 of every other file that the cell produced.
    """

    schema_version: Version
    cell_id: str = Field(min_length=1)
    seconds: float | None = Field(default=None, ge=0)
    telemetry: dict[str, Any] = {}
    files: dict[str, str] = {}


class FailedRecord(Record):
    """Why the last attempt at a cell ended without results."""

    schema_version: Version = SCHEMA_VERSION
    reason: str = "no reason was written"
    kind: str = "error"
    log_tail: tuple[str, ...] = Field(default=(), strict=False)
    attempts: Natural = 1
    seconds: float = Field(default=0.0, ge=0)


def read_record(kind: type[WrittenRecord], path: Path) -> WrittenRecord | None:
    """A record from its file; None if there is none, or it is cut short or something else."""
    content = read_object(path)
    try:
        return None if content is None else kind.model_validate(content)
    except ValueError:
        return None
