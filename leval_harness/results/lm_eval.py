"""lm-eval's results file, read as what others write: typed, and patient with what is in it."""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import ConfigDict, Field, FiniteFloat, model_validator

from leval_border.settings import LENIENT
from leval_harness.results import settings
from leval_harness.results.fields import (
    EMPTY_IF_NULL,
    LONGEST_METRIC,
    LONGEST_TASK,
    Object,
    Outside,
    Text,
    finite,
    short_name,
)
from leval_harness.results.lm_eval_call import EvaluationConfig
from leval_harness.results.lm_eval_task import SampleCounts, TaskConfig
from leval_harness.secrets import without_credentials
from leval_tasks.closed.catalog import OLD_NAMES

BY_TASK = (
    "results", "groups", "configs", "n-samples", "higher_is_better", "n-shot", "versions",
    "group_subtasks", "task_hashes",
)  # fmt: skip
"""Fields of a results file with an entry a task."""

BESIDE = {"alias", "name", "sample_len", "sample_count"}
"""What lm-eval writes of a task beside its figures."""

OUR_SCORE = "exact_match_strict,"
"""Begins a figure that our closed-ended tasks have and no others."""


def _was_ours(name: str, content: Mapping[str, Any]) -> bool:
    """Whether an old name stands for our task: lm-eval may come to have others of such names."""

    def entry(field: str) -> Mapping[str, Any]:
        by_task = content.get(field)
        found = by_task.get(name) if isinstance(by_task, Mapping) else None
        return found if isinstance(found, Mapping) else {}

    metadata = entry("configs").get("metadata")
    read_documents = isinstance(metadata, Mapping) and isinstance(metadata.get("data"), Mapping)
    return read_documents or any(key.startswith(OUR_SCORE) for key in entry("results"))


def _named_as_today(content: Mapping[str, Any]) -> dict[str, Any]:
    old = {name: today for name, today in OLD_NAMES.items() if _was_ours(name, content)}

    def called(name: str) -> str:
        return short_name(old.get(name, name) or "(no name)", LONGEST_TASK)

    named = {
        field: {called(key): each for key, each in content[field].items()}
        for field in BY_TASK
        if isinstance(content.get(field), Mapping)
    }
    groups = named.get("group_subtasks", {})
    for group, members in groups.items():
        if isinstance(members, list):
            groups[group] = [called(each) if isinstance(each, str) else each for each in members]
    return {**content, **named, **_in_both(named)}


def _in_both(named: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """`groups` and `results`, each group in both: some files have it in one of them alone."""
    if "results" not in named:
        return {}
    results, groups = named["results"], named.get("groups", {})
    members = named.get("group_subtasks", {})
    found = {name: each for name, each in results.items() if members.get(name)} | groups
    missing = {name: each for name, each in found.items() if name not in results}
    return {"groups": found, "results": results | missing}


class Figure(NamedTuple):
    """One number of a task or a group, with its standard error; `chosen` is the filter."""

    metric: str
    chosen: str
    value: Any
    stderr: Any


def figures_of(values: Mapping[str, Any]) -> Iterator[Figure]:
    """The numbers of a task: `metric,filter` of today's lm-eval, `metric` alone of old ones."""
    for key, value in values.items():
        metric, comma, chosen = key.partition(",")
        if not comma and (key in BESIDE or not isinstance(value, int | float | None)):
            continue
        measured = metric.removesuffix("_stderr")
        if measured != metric and f"{measured}{comma}{chosen}" in values:
            continue
        yield Figure(
            short_name(metric, LONGEST_METRIC),
            short_name(chosen, LONGEST_METRIC),
            value,
            values.get(f"{metric}_stderr{comma}{chosen}"),
        )


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
        return {**without_credentials(rest, keep_names=False), **numbers}

    @model_validator(mode="before")
    @classmethod
    def _names_of_today(cls, content: Any) -> Any:
        """Our tasks under the names that they have today, and every name of a bounded length."""
        return _named_as_today(content) if isinstance(content, Mapping) else content

    def config_of(self, task: str) -> TaskConfig:
        """A task's configuration; an empty one where none was written."""
        return self.configs.get(task, TaskConfig())

    def members_of(self, group: str) -> list[str]:
        """Names of the tasks and groups that stand directly in a group."""
        listed = self.group_subtasks.get(group)
        members = listed if isinstance(listed, list) else []
        return [each for each in members if isinstance(each, str)]

    def direction(self, task: str, metric: str) -> Any:
        """Whether higher is better, as the file says it of a task or the task of a metric."""
        stated = self.higher_is_better.get(task)
        stated = stated.get(metric) if isinstance(stated, dict) else stated
        return self.config_of(task).direction(metric) if stated is None else stated

    def asked(self, task: str) -> float | None:
        """How many questions were asked; None where nothing says it.

        Given `--samples`, some versions count in one place those that were not asked as well.
        """
        values = self.results.get(task)
        scored = finite(values.get("sample_len")) if isinstance(values, dict) else None
        known = (self._counts(task).effective, scored)
        return min((count for count in known if count is not None), default=None)

    def _counts(self, task: str) -> SampleCounts:
        return self.counts.get(task) or SampleCounts()

    def left_out(self, task: str) -> bool:
        """Whether questions of a task were not asked, or some have no answer."""
        failed = (v for key, v in self.results[task].items() if key.startswith("failed,"))
        skipped = self.config_of(task).stated.skipped_documents
        return self.asks_some(task) or bool(skipped) or bool(finite(next(failed, None)))

    def asks_some(self, task: str) -> bool:
        """Whether fewer questions of a task were asked than it has."""
        asked, original = self.asked(task), self._counts(task).original
        return asked is not None and original is not None and asked < original

    def limit_of(self, task: str, limit: float | None) -> float | None:
        """A limit of the run as far as it may have left out questions of a task.

        None where it is as large as the task and the file says that every question was asked.
        """
        asked, original = self.asked(task), self._counts(task).original
        if limit is None or not asked or not original or asked < original:
            return limit
        most = math.ceil(limit * original) if limit < 1 else limit  # as lm-eval reads it
        return None if most >= original else limit

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
