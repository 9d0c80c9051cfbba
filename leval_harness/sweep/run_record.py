"""The content of `run.json`: a sweep plans it, a worker computes it and adds how it was run."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Record(BaseModel):
    """Base of what is written to a run's folder; the order of the fields is that in the file."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class ModelRecord(Record):
    """The model of a run: its name in tables, its files, and how it was run."""

    name: str
    path: str = ""
    revision: str | None = None
    backend: str = ""
    dtype: str = ""
    args: dict[str, Any] = {}


class MethodRecord(Record):
    """The RoPE method of a run; `rope_parameters` is None for the unmodified checkpoint."""

    name: str
    rope_parameters: dict[str, Any] | None = None
    rope_precision: str = ""


class RunRecord(Record):
    """The full request of one evaluation.

    Attributes:
        run_id: hash of `identity`, and name of the run's folder.
        context_length: longest sequence in tokens.
        model_args: what lm-eval builds the model from, if it were loaded only for this run.
        replaced: the scaling of the checkpoint that the method replaces; None if it has none.
        versions: of Python and of the packages that decide what is computed.
        data: source of the documents and SHA-256 of its files.
        identity: what is declared to decide the numbers, see `leval_harness.sweep.identity`.
        group: the same for runs that one loaded model can serve; not written, nor is `gpus`.
        gpus: how many GPUs the model takes if there are any.
        host: the machine: name, cores, system and GPUs. It is known when the run is computed, as
            are `command` (what the user typed),
            `created`, `cuda_visible_devices`, `seconds` of the evaluation and `telemetry`, what
            the backend counted.
    """

    schema_version: int
    run_id: str
    sweep: str = ""
    model: ModelRecord
    method: MethodRecord
    tasks: tuple[str, ...]
    metadata: dict[str, Any] = {}
    gen_kwargs: dict[str, Any] = {}
    limit: int | None = None
    num_fewshot: int | None = None
    seed: int = 0
    apply_chat_template: bool | str = False
    batch_size: int | str = 1
    device: str | None = None
    context_length: int | None = None
    confirm_run_unsafe_code: bool = False
    model_args: dict[str, Any] = {}
    replaced: dict[str, Any] | None = None
    versions: dict[str, Any] = {}
    data: dict[str, Any] = {}
    identity: dict[str, Any] = {}
    group: str = Field(default="", exclude=True)
    gpus: int = Field(default=0, exclude=True)
    host: dict[str, Any] = {}
    command: str = ""
    created: str = ""
    cuda_visible_devices: str | None = None
    seconds: float | None = Field(default=None, ge=0)
    telemetry: dict[str, Any] = {}

    def written(self) -> dict[str, Any]:
        """Return the content of the file: every field that was given, in order."""
        return self.model_dump(mode="json", exclude_unset=True)

    @property
    def keeps_answers(self) -> bool:
        """Return whether the stored answers stay for a run of more documents.

        They do where documents are read token by token, which takes longest.
        """
        return "reads" in self.metadata

    @property
    def title(self) -> str:
        """Return what messages call the run: model, method, length and tasks."""
        at = f" @ {self.context_length}" if self.context_length else ""
        return f"{self.model.name} | {self.method.name}{at} | {', '.join(self.tasks)}"


def run_id(identity: Mapping[str, Any]) -> str:
    """Return 16 hex digits of the SHA-256 of the canonical JSON: keys sorted, no blanks, no NaN."""
    canonical = json.dumps(
        identity, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False
    )
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]
