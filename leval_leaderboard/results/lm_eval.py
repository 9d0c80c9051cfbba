"""lm-eval's results file, read as what others write: typed, and patient with what is in it."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, FiniteFloat, model_validator

from leval_border.secrets import redacted
from leval_leaderboard.results import settings
from leval_leaderboard.results.fields import EMPTY_IF_NULL, LENIENT, Object, Outside, finite
from leval_tasks.closed.catalog import OLD_NAMES

LONGEST_ARGUMENTS = 20_000
BY_TASK = (
    "results", "configs", "n-samples", "higher_is_better", "n-shot", "versions", "group_subtasks",
    "task_hashes",
)  # fmt: skip
"""Fields of a results file with an entry a task."""

OUR_SCORE = "exact_match_strict,"
"""Begins a figure that our closed-ended tasks have and no others."""

_COMMAS = re.compile(r",(?![^{}\[\]]*[}\]])")
"""Those between arguments: the next bracket behind one inside a value closes."""

Number = Annotated[float | None, BeforeValidator(finite)]
Text = Annotated[str | None, LENIENT]
Flag = Annotated[bool | None, LENIENT]


def _value(text: str) -> Any:
    """An argument's value as JSON has it, so that both ways of writing it say the same."""
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
    except (ValueError, RecursionError):
        return text


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
    skipped_documents: Number = None
    shipped_length: Number = None
    claimed_length: Number = None
    settings: Annotated[dict[str, Any] | None, LENIENT] = None
    prompt: Annotated[dict[str, Any] | None, LENIENT] = None

    model_config = ConfigDict(extra="allow")

    @property
    def context_length(self) -> int | None:
        """The one that the task's questions were fitted to, if it says so."""
        stated = finite((self.prompt or {}).get("context_length"))
        return int(stated) if stated and stated > 0 else None

    def deciding(self, arguments: Mapping[str, Any], *, is_ours: bool) -> dict[str, Any]:
        """What decides numbers; lm-eval puts the model's `arguments` among it."""
        if self.settings is not None:
            stated = settings.own_settings(self.settings)
        elif is_ours:
            stated = settings.asked_settings(self.model_extra or {})
        else:
            stated = settings.without(self.model_extra or {}, settings.METADATA_ASIDE)
            stated = {name: stated[name] for name in stated if name not in arguments}
        prompt = self.prompt or {}
        return stated | {name: prompt[name] for name in settings.PROMPT if name in prompt}


class TaskConfig(Outside):
    """A task's configuration."""

    metadata: Annotated[TaskMetadata | None, LENIENT, EMPTY_IF_NULL] = TaskMetadata()
    metric_list: Any = None

    model_config = ConfigDict(extra="allow")

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


class EvaluationConfig(Outside):
    """What lm-eval was called with."""

    model: Text = None
    model_args: Any = None
    model_dtype: Text = None
    model_revision: Text = None
    model_sha: Text = None
    limit: Number = None
    max_samples: Number = None
    gen_kwargs: Any = None
    random_seed: Any = None

    model_config = ConfigDict(extra="allow")

    @property
    def arguments(self) -> dict[str, Any]:
        """`model_args`, which lm-eval writes as a mapping or as `key=value,...`."""
        given = self.model_args
        if isinstance(given, str):
            parts = (part.partition("=") for part in _COMMAS.split(given[:LONGEST_ARGUMENTS]))
            given = {name.strip(): _value(text) for name, sign, text in parts if sign}
        return given if isinstance(given, dict) else {}

    def deciding(self) -> dict[str, Any]:
        """Everything that decides numbers, under the names that cells have for them."""
        arguments = self.arguments
        return {
            **settings.without(self.model_extra or {}, settings.RUN_ASIDE),
            "backend": self.model,
            "dtype": (self.model_dtype or arguments.get("dtype") or "").removeprefix("torch."),
            "revision": self.model_sha or self.model_revision or arguments.get("revision"),
            "rope_precision": arguments.get("rope_precision"),
            "model_args": settings.model_arguments(arguments),
            "gen_kwargs": self.gen_kwargs,
            "seed": self.random_seed,
        }

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


def _was_ours(name: str, content: Mapping[str, Any]) -> bool:
    """Whether an old name stands for our task: lm-eval may come to have others of such names."""

    def entry(field: str) -> Mapping[str, Any]:
        by_task = content.get(field)
        found = by_task.get(name) if isinstance(by_task, Mapping) else None
        return found if isinstance(found, Mapping) else {}

    metadata = entry("configs").get("metadata")
    read_documents = isinstance(metadata, Mapping) and isinstance(metadata.get("data"), Mapping)
    return read_documents or any(key.startswith(OUR_SCORE) for key in entry("results"))


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
    shots: Object = Field({}, alias="n-shot")
    versions: Object = Field({})
    config: Annotated[EvaluationConfig, EMPTY_IF_NULL] = EvaluationConfig()
    config_general: Annotated[EvaluationConfig | None, LENIENT] = None
    chat_template_sha: Text = None
    chat_template: Any = None
    system_instruction: Any = None
    fewshot_as_multiturn: Any = None
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

    @model_validator(mode="before")
    @classmethod
    def _without_credentials(cls, content: Any) -> Any:
        """lm-eval writes a model's arguments down, and again among each task's metadata."""
        if not isinstance(content, Mapping):
            return content
        names = {"config", "config_general", "configs"} & set(content)
        return {**content, **{name: redacted(content[name]) for name in names}}

    @model_validator(mode="before")
    @classmethod
    def _names_of_today(cls, content: Any) -> Any:
        """Our tasks under the names that they have today, whatever they were called then."""
        if not isinstance(content, Mapping):
            return content
        old = {name: today for name, today in OLD_NAMES.items() if _was_ours(name, content)}
        named = {
            field: {old.get(key, key): each for key, each in content[field].items()}
            for field in BY_TASK
            if isinstance(content.get(field), Mapping)
        }
        groups = named.get("group_subtasks", {})
        for group, members in groups.items():
            if isinstance(members, list):
                groups[group] = [
                    old.get(each, each) if isinstance(each, str) else each for each in members
                ]
        return {**content, **named}

    def config_of(self, task: str) -> TaskConfig:
        """A task's configuration; an empty one where none was written."""
        return self.configs.get(task, TaskConfig())

    @property
    def called(self) -> EvaluationConfig:
        """What the evaluation was called with, under either name for it."""
        return self.config_general or self.config

    def deciding(self) -> dict[str, Any]:
        """What decides the numbers of all its tasks."""
        return {
            **self.called.deciding(),
            "chat_template": self.chat_template_sha or self.chat_template,
            "system_instruction": self.system_instruction,
            "fewshot_as_multiturn": self.fewshot_as_multiturn or None,
        }

    def deciding_of(self, task: str, *, is_ours: bool) -> dict[str, Any]:
        """What decides one task's numbers, beside what holds for all."""
        config, shots = self.config_of(task), self.shots.get(task)
        fields = config.deciding()
        return {
            **fields,
            "num_fewshot": next((n for n in (shots, *self._shots(fields)) if n is not None), None),
            "task_version": self.versions.get(task),
            **config.stated.deciding(self.called.arguments, is_ours=is_ours),
        }

    def _shots(self, fields: Mapping[str, Any]) -> tuple[Any, Any]:
        """The few-shot count in a task's configuration, and that of old versions for all tasks."""
        return fields.get("num_fewshot"), (self.called.model_extra or {}).get("num_fewshot")

    @property
    def packages(self) -> dict[str, str]:
        """Versions of the packages that it names."""
        names = ("lm_eval", "transformers", "git")
        versions = (self.lm_eval_version, self.transformers_version, self.git_hash)
        return {name: v for name, v in zip(names, versions, strict=True) if v is not None}
