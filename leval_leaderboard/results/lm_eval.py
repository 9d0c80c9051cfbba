"""lm-eval's results file, read as what others write: typed, and patient with what is in it."""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, FiniteFloat, model_validator

from leval_border.secrets import redacted
from leval_leaderboard.results import settings
from leval_leaderboard.results.fields import (
    EMPTY_IF_NULL,
    LENIENT,
    LONGEST_TASK,
    Object,
    Outside,
    digest,
    finite,
    short_name,
)
from leval_tasks.closed.catalog import OLD_NAMES

LONGEST_ARGUMENTS = 20_000
BY_TASK = (
    "results", "groups", "configs", "n-samples", "higher_is_better", "n-shot", "versions",
    "group_subtasks", "task_hashes",
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


def _mapping(value: Any) -> dict[str, Any] | None:
    """A mapping that may have been written as JSON; None for anything else."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = _value(value)
    return value if isinstance(value, dict) else None


def _number(value: Any) -> Any:
    return _value(value) if isinstance(value, str) else value


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


class EvaluationConfig(Outside):
    """What lm-eval was called with."""

    model: Text = None
    model_args: Any = None
    model_dtype: Text = None
    model_revision: Text = None
    model_sha: Text = None
    limit: Any = None
    max_samples: Any = None
    gen_kwargs: Any = None
    random_seed: Any = None

    model_config = ConfigDict(extra="allow")

    @property
    def arguments(self) -> dict[str, Any]:
        """`model_args`, which lm-eval writes as a mapping or as `key=value,...`.

        What can be read as neither stands under a name of its own: it tells runs apart as well.
        """
        given = self.model_args
        if isinstance(given, str):
            parts = (part.partition("=") for part in _COMMAS.split(given[:LONGEST_ARGUMENTS]))
            rest = {"model_args": digest(given)} if len(given) > LONGEST_ARGUMENTS else {}
            named = {n.strip(): _value(text) if sign else True for n, sign, text in parts}
            return {name: value for name, value in named.items() if name} | rest
        if isinstance(given, dict):
            return {name: _mapping(value) or value for name, value in given.items()}
        return {} if given is None else {"model_args": given}

    @property
    def questions(self) -> float | None:
        """How many were asked for of each task; None for all, and where nobody can tell."""
        numbers = (finite(_number(each)) for each in (self.limit, self.max_samples))
        return next((number for number in numbers if number and number > 0), None)

    def deciding(self) -> dict[str, Any]:
        """Everything that decides numbers, under the names that cells have for them."""
        arguments = self.arguments
        return {
            **settings.without(self.model_extra or {}, settings.RUN_ASIDE),
            "backend": self.model,
            "dtype": self._dtype,
            "revision": self.model_sha or self.model_revision or arguments.get("revision"),
            "rope_precision": arguments.get("rope_precision"),
            "model_args": settings.model_arguments(arguments),
            "gen_kwargs": self.gen_kwargs,
            "seed": self.random_seed,
            "limit": [] if self.questions else [self.limit or 0] * (self.limit is not None),
            "rope_parameters": [given for given in self._ropes if given != self.rope],
        }

    @property
    def _dtype(self) -> str:
        """As loaded; with what was asked for where that was another one."""
        asked = str(self.arguments.get("dtype") or "").removeprefix("torch.")
        loaded = (self.model_dtype or asked).removeprefix("torch.")
        return loaded if asked in ("", "auto", loaded) else f"{loaded}, asked for {asked}"

    @property
    def rope(self) -> dict[str, Any]:
        """`rope_parameters`, also where vLLM has them."""
        return next((given for given in self._ropes if isinstance(given, dict)), {})

    @property
    def _ropes(self) -> list[Any]:
        """The same from each place that may have them, as they were written."""
        arguments = self.arguments
        overrides = arguments.get("hf_overrides")
        inside = overrides.get("rope_parameters") if isinstance(overrides, dict) else None
        given = (arguments.get("rope_parameters"), _mapping(inside) or inside)
        return [each for each in given if each is not None]


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
    hashes: Object = Field({}, alias="task_hashes")
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

    model_config = ConfigDict(extra="allow")

    @model_validator(mode="before")
    @classmethod
    def _without_credentials(cls, content: Any) -> Any:
        """lm-eval writes a model's arguments down, and again among each task's metadata.

        Everything is looked through but the numbers.
        """
        if not isinstance(content, Mapping):
            return content
        numbers = {name: content[name] for name in ("results", "groups") if name in content}
        rest = {name: content[name] for name in content if name not in ("samples", *numbers)}
        return {**redacted(rest), **numbers}

    @model_validator(mode="before")
    @classmethod
    def _names_of_today(cls, content: Any) -> Any:
        """Our tasks under the names that they have today, and every name of a bounded length."""
        if not isinstance(content, Mapping):
            return content
        old = {name: today for name, today in OLD_NAMES.items() if _was_ours(name, content)}

        def called(name: str) -> str:
            return short_name(old.get(name, name), LONGEST_TASK)

        named = {
            field: {called(key): each for key, each in content[field].items()}
            for field in BY_TASK
            if isinstance(content.get(field), Mapping)
        }
        groups = named.get("group_subtasks", {})
        for group, members in groups.items():
            if isinstance(members, list):
                groups[group] = [
                    called(each) if isinstance(each, str) else each for each in members
                ]
        return {**content, **named}

    def config_of(self, task: str) -> TaskConfig:
        """A task's configuration; an empty one where none was written."""
        return self.configs.get(task, TaskConfig())

    @property
    def called(self) -> EvaluationConfig:
        """What the evaluation was called with, under either name for it."""
        return self.config_general or self.config

    @property
    def model(self) -> str:
        """What tables call the model."""
        stated = (self.model_name, (self.called.model_extra or {}).get("model_name"))
        given = (self.called.arguments.get(name) for name in settings.NAMING)
        return str(next(filter(None, (*stated, *given, self.called.model)), "model"))

    def deciding(self) -> dict[str, Any]:
        """What decides the numbers of all its tasks."""
        naming = {name: self.called.arguments.get(name) for name in settings.NAMING}
        return {
            **settings.without(self.model_extra or {}, settings.FILE_ASIDE),
            **{name: value for name, value in naming.items() if value != self.model},
            **self.called.deciding(),
            "chat_template": self.chat_template_sha or self.chat_template,
            "system_instruction": self.system_instruction,
            "fewshot_as_multiturn": self.fewshot_as_multiturn or None,
        }

    def deciding_of(self, task: str, length: int | None, *, is_ours: bool) -> dict[str, Any]:
        """What decides one task's numbers in the row of a length, beside what holds for all."""
        config, version = self.config_of(task), self.versions.get(task)
        fields, written = config.deciding(), config.stated.written
        return {
            **fields,
            "num_fewshot": self._shots(task, fields),
            "task_version": written.get("version") if version is None else version,
            "task_hash": None if is_ours else self.hashes.get(task),
            **config.stated.deciding(self._said(task, length), is_ours=is_ours),
        }

    def _shots(self, task: str, fields: Mapping[str, Any]) -> Any:
        """The few-shot count: as it took effect, of the task, and of old versions for all tasks."""
        stated = (
            *(self.shots.get(task), fields.get("num_fewshot")),
            (self.called.model_extra or {}).get("num_fewshot"),
            self.config_of(task).stated.written.get("num_fewshot"),
        )
        return next((count for count in stated if count is not None), None)

    def _said(self, task: str, length: int | None) -> dict[str, Any]:
        """What a task's metadata may repeat: arguments, the model's name, the length of the row."""
        arguments = self.called.arguments
        model = dict.fromkeys(("pretrained", "tokenizer"), arguments.get("pretrained", self.model))
        return {**dict.fromkeys(settings.LENGTHS, length), **model, **arguments}

    @property
    def packages(self) -> dict[str, str]:
        """Versions of the packages that it names."""
        names = ("lm_eval", "transformers", "git")
        versions = (self.lm_eval_version, self.transformers_version, self.git_hash)
        return {name: v for name, v in zip(names, versions, strict=True) if v is not None}
