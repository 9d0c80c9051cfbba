"""What lm-eval's results file states of one task: its configuration, documents and counts."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, Field, model_validator

from leval_border.settings import LENIENT
from leval_harness.results import settings
from leval_harness.results.fields import (
    EMPTY_IF_NULL,
    Flag,
    Number,
    Object,
    Outside,
    Text,
    digest,
    finite,
)


class DocumentsRead(Outside):
    """What a task of ours wrote about the documents that it read."""

    source: Text = None
    sample: Flag = None
    files: Annotated[dict[str, Any] | None, LENIENT] = None
    python_version: Text = None

    def fingerprint(self) -> str:
        """Short hash of the files, and of the Python version whose documentation they are."""
        text = "".join(f"{name}:{sha};" for name, sha in sorted((self.files or {}).items()))
        text += f"python:{self.python_version};" if self.python_version else ""
        return digest(text) if text else ""


class TaskMetadata(Outside):
    """What a task stated when it ran, also as it was `written`: others may hold anything here."""

    data: Annotated[DocumentsRead | None, LENIENT] = None
    data_dir: Text = None
    softmax: Text = None
    documents: Number = None
    partial: Flag = None
    chance: Number = None
    skipped_documents: Number = None
    shipped_length: Number = None
    claimed_length: Number = None
    settings: Annotated[dict[str, Any] | None, LENIENT] = None
    prompt: Annotated[dict[str, Any] | None, LENIENT] = None
    written: Object = Field(default={})

    model_config = ConfigDict(extra="allow")

    @model_validator(mode="before")
    @classmethod
    def _kept_as_written(cls, content: Any) -> Any:
        return {**content, "written": content} if isinstance(content, Mapping) else content

    @property
    def context_length(self) -> int | None:
        """The one that the task's questions were fitted to, if it says so."""
        stated = finite((self.prompt or {}).get("context_length"))
        return int(stated) if stated and stated > 0 else None

    def deciding(self, said: Mapping[str, Any], *, is_ours: bool) -> dict[str, Any]:
        """What decides numbers; what is `said` of the run as well is left to it."""
        if self.settings is not None and (is_ours or self.data is not None):
            stated = settings.own_settings(self.settings)
        elif is_ours:
            stated = settings.asked_settings(self.model_extra or {})
        else:
            stated = settings.without(self.written, settings.METADATA_ASIDE)
            return {name: each for name, each in stated.items() if said.get(name) != each}
        prompt = self.prompt or {}
        return stated | {name: prompt[name] for name in settings.PROMPT if name in prompt}


class TaskConfig(Outside):
    """A task's configuration."""

    metadata: Annotated[TaskMetadata | None, LENIENT, EMPTY_IF_NULL] = TaskMetadata()
    metric_list: Any = None

    model_config = ConfigDict(extra="allow")

    @model_validator(mode="before")
    @classmethod
    def _any_metadata(cls, content: Any) -> Any:
        """Metadata that is no mapping still tells a task from others."""
        stated = content.get("metadata") if isinstance(content, Mapping) else None
        if stated is None or isinstance(stated, Mapping):
            return content
        return {**content, "metadata": {"metadata": stated}}

    @property
    def stated(self) -> TaskMetadata:
        """The metadata; empty where it is something else."""
        return self.metadata or TaskMetadata()

    def deciding(self) -> dict[str, Any]:
        """Every field that decides numbers, under the names that cells have for them."""
        fields = settings.without(self.model_extra or {}, settings.TASK_ASIDE)
        if "generation_kwargs" in fields:
            fields["gen_kwargs"] = fields.pop("generation_kwargs")
        return fields | ({"metric_list": self.metric_list} if self.metric_list else {})

    def aggregation(self, metric: str) -> str:
        """How the task says that a metric is aggregated; empty if it does not."""
        return str(self._listed(metric).get("aggregation") or "")[:60]

    def direction(self, metric: str) -> Any:
        """Whether higher is better, as the task says; files before 0.4.3 say it nowhere else."""
        return self._listed(metric).get("higher_is_better")

    def _listed(self, metric: str) -> dict[str, Any]:
        listed = self.metric_list if isinstance(self.metric_list, list) else []
        entries = (each for each in listed if isinstance(each, dict))
        return next((each for each in entries if each.get("metric") == metric), {})


class SampleCounts(Outside):
    """Questions that a task has, and those that were asked."""

    original: Number = None
    effective: Number = None
