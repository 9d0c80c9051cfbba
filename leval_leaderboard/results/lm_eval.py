"""lm-eval's results file, read as what others write: typed, and patient with what is in it."""

import hashlib
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, FiniteFloat

from leval_leaderboard.results.fields import EMPTY_IF_NULL, LENIENT, Object, Outside, finite

Number = Annotated[float | None, BeforeValidator(finite)]
Text = Annotated[str | None, LENIENT]
Flag = Annotated[bool | None, LENIENT]


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
        return hashlib.sha256(text.encode()).hexdigest()[:8] if text else ""


class TaskMetadata(Outside):
    """What a task stated when it ran; tasks of others may hold anything here."""

    data: Annotated[DocumentsRead | None, LENIENT] = None
    data_dir: Text = None
    softmax: Text = None
    documents: Number = None
    partial: Flag = None
    chance: Number = None
    settings: Annotated[dict[str, Any] | None, LENIENT] = None


class TaskConfig(Outside):
    """A task's configuration."""

    metadata: Annotated[TaskMetadata, EMPTY_IF_NULL] = TaskMetadata()
    metric_list: Any = None

    def aggregation(self, metric: str) -> str:
        """How the task says that a metric is aggregated; empty if it does not."""
        listed = self.metric_list if isinstance(self.metric_list, list) else []
        for entry in listed:
            if isinstance(entry, dict) and entry.get("metric") == metric:
                return str(entry.get("aggregation") or "")[:60]
        return ""


class EvaluationConfig(Outside):
    """What lm-eval was called with."""

    model: Text = None
    model_args: Any = None
    limit: Number = None
    gen_kwargs: Any = None
    random_seed: Number = None

    @property
    def arguments(self) -> dict[str, Any]:
        """`model_args`, which lm-eval writes as a mapping or as `key=value,...`."""
        if isinstance(self.model_args, str):
            return dict(part.split("=", 1) for part in self.model_args.split(",") if "=" in part)
        return self.model_args if isinstance(self.model_args, dict) else {}

    @property
    def rope(self) -> dict[str, Any]:
        """`rope_parameters`, also where vLLM has them."""
        arguments = self.arguments
        overrides = arguments.get("hf_overrides")
        rope = arguments.get("rope_parameters")
        if rope is None and isinstance(overrides, dict):
            rope = overrides.get("rope_parameters")
        return rope if isinstance(rope, dict) else {}


class SampleCounts(Outside):
    """Questions that a task has, and those that were asked."""

    original: Number = None
    effective: Number = None


class ResultsFile(Outside):
    """`results_*.json` of lm-eval, as far as it is read."""

    results: Object = Field({})
    groups: Object = Field({})
    group_subtasks: Object = Field({})
    configs: Annotated[dict[str, Annotated[TaskConfig, EMPTY_IF_NULL]], EMPTY_IF_NULL] = Field({})
    counts: Annotated[
        dict[str, Annotated[SampleCounts | None, LENIENT]], EMPTY_IF_NULL, Field(alias="n-samples")
    ] = Field({})
    higher_is_better: Object = Field({})
    config: Annotated[EvaluationConfig, EMPTY_IF_NULL] = EvaluationConfig()
    model_name: Any = None
    max_length: Any = None
    date: Any = None
    seconds: Annotated[
        Annotated[FiniteFloat, Field(strict=False)] | None,  # lm-eval writes it as text
        LENIENT,
        Field(alias="total_evaluation_time_seconds"),
    ] = None
    lm_eval_version: Text = None
    transformers_version: Text = None
    git_hash: Text = None

    def config_of(self, task: str) -> TaskConfig:
        """A task's configuration; an empty one where none was written."""
        return self.configs.get(task, TaskConfig())

    @property
    def versions(self) -> dict[str, str]:
        """Versions of the packages that it names."""
        names = ("lm_eval", "transformers", "git")
        versions = (self.lm_eval_version, self.transformers_version, self.git_hash)
        return {name: v for name, v in zip(names, versions, strict=True) if v is not None}
