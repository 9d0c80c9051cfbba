"""lm-eval's results file as a typed object; any field may be missing, or of another type."""

import json
import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, NamedTuple

from pydantic import ConfigDict, Field, FiniteFloat, model_validator

from leval_harness.old_results import settings
from leval_harness.old_results.fields import (
    EMPTY_IF_NULL,
    Flag,
    Number,
    Object,
    Outside,
    Text,
    digest,
    finite,
)
from leval_tasks.metrics import Metric, metric_of
from resonance_vllm.settings import LENIENT

NAMING = ("pretrained", "model", "path", "base_url")
"""Arguments that may name a model; the first one there is names it."""


def _split_arguments(text: str) -> list[str]:
    """The arguments in `key=value,...`; a comma counts where the next bracket opens, or none is."""
    parts, end, is_inside = [], len(text), False
    for at in range(len(text) - 1, -1, -1):
        if text[at] in "{}[]":
            is_inside = text[at] in "}]"
        elif text[at] == "," and not is_inside:
            parts.append(text[at + 1 : end])
            end = at
    return [text[:end], *reversed(parts)]


def _value(text: str) -> Any:
    """The value that a text stands for, read as JSON; else the text."""
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
    except (ValueError, RecursionError):
        return text


class EvaluationConfig(Outside):
    """`config`: the arguments of the evaluation."""

    model: Text = None
    model_args: Any = None
    model_dtype: Text = None
    model_revision: Text = None
    model_sha: Text = None
    limit: Any = None
    gen_kwargs: Any = None
    random_seed: Any = None

    model_config = ConfigDict(extra="allow")

    @staticmethod
    def _mapping(value: Any) -> dict[str, Any] | None:
        """A mapping that may be written as JSON; None for anything else."""
        if isinstance(value, str) and value.lstrip().startswith("{"):
            value = _value(value)
        return value if isinstance(value, dict) else None

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """`model_args`, which lm-eval writes as a mapping or as `key=value,...`.

        What is neither stands under the name `model_args`, so that it still separates runs.
        """
        given = self.model_args
        if isinstance(given, str):
            parts = (part.partition("=") for part in _split_arguments(given))
            named = {n.strip(): _value(text) if sign else True for n, sign, text in parts}
            return {name: value for name, value in named.items() if name}
        if isinstance(given, dict):
            return {name: self._mapping(value) or value for name, value in given.items()}
        return {} if given is None else {"model_args": given}

    @property
    def questions(self) -> float | None:
        """The limit of questions for each task, or their share below 1; None for no limit."""
        limit = finite(_value(self.limit) if isinstance(self.limit, str) else self.limit)
        return limit if limit and limit > 0 else None

    @property
    def dtype(self) -> str:
        """As loaded; with the requested one where that differs."""
        requested = str(self.arguments.get("dtype") or "").removeprefix("torch.")
        loaded = (self.model_dtype or requested).removeprefix("torch.")
        return loaded if requested in ("", "auto", loaded) else f"{loaded}, requested {requested}"

    @property
    def ropes(self) -> list[Any]:
        """`rope_parameters` of the model's arguments and of vLLM's `hf_overrides`, where given."""
        overrides = self.arguments.get("hf_overrides")
        inside = overrides.get("rope_parameters") if isinstance(overrides, dict) else None
        given = (self.arguments.get("rope_parameters"), self._mapping(inside) or inside)
        return [each for each in given if each is not None]

    @property
    def rope(self) -> dict[str, Any]:
        """The first `rope_parameters` that are a mapping; empty where there are none."""
        return next((given for given in self.ropes if isinstance(given, dict)), {})


class DocumentsRead(Outside):
    """What a task of ours recorded about its documents."""

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
    """A task's metadata: what ours record, and everything as it was `written`."""

    data: Annotated[DocumentsRead | None, LENIENT] = None
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

    @model_validator(mode="before")
    @classmethod
    def _kept_as_written(cls, content: Any) -> Any:
        if not isinstance(content, Mapping):  # still separates a task from others
            content = {} if content is None else {"metadata": content}
        return {**content, "written": content}

    def length(self, name: str) -> int | None:
        """Tokens: `shipped_length`, `claimed_length`, or the `context_length` of the prompts."""
        stated = getattr(self, name, None) or finite((self.prompt or {}).get(name))
        return int(stated) if stated and stated > 0 else None

    def separating(self, run: Mapping[str, Any], *, is_ours: bool) -> dict[str, Any]:
        """What separates; lm-eval repeats the `run`'s arguments in here, which do not count."""
        if is_ours or (self.settings is not None and self.data is not None):
            prompt = self.prompt or {}
            recorded = settings.recorded_settings(self.settings or {})
            return recorded | {name: prompt[name] for name in settings.PROMPT if name in prompt}
        stated = settings.without(self.written, settings.METADATA_ASIDE)
        return {name: each for name, each in stated.items() if run.get(name) != each}


class TaskConfig(Outside):
    """A task's configuration."""

    metadata: TaskMetadata = TaskMetadata()
    metric_list: Any = None

    model_config = ConfigDict(extra="allow")

    def separating(self) -> dict[str, Any]:
        """Every field that separates, under the names that cells have for them."""
        fields = settings.without(self.model_extra or {}, settings.TASK_ASIDE)
        if "generation_kwargs" in fields:
            fields["gen_kwargs"] = fields.pop("generation_kwargs")
        return fields | ({"metric_list": self.metric_list} if self.metric_list else {})

    def of_metric(self, metric: str) -> dict[str, Any]:
        """The entry of a metric in the task's `metric_list`; empty if it has none."""
        listed = self.metric_list if isinstance(self.metric_list, list) else []
        entries = (each for each in listed if isinstance(each, dict))
        return next((each for each in entries if each.get("metric") == metric), {})


class SampleCounts(Outside):
    """Questions that a task has, and those that were evaluated."""

    original: Number = None
    effective: Number = None


class Figure(NamedTuple):
    """One number of a task or a group, with its standard error and what is known of its metric."""

    metric: str
    filter: str
    value: Any
    stderr: Any
    known: Metric


class ResultsFile(Outside):
    """`results_*.json` of lm-eval."""

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
    chat_template_sha: Text = None
    chat_template: Any = None
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
    def _with_groups(cls, content: Any) -> Any:
        """Each group both in `groups` and in `results`."""
        if not isinstance(content, Mapping):
            return content
        names = ("results", "groups", "group_subtasks")
        results, groups, members = (
            found if isinstance(found := content.get(name), Mapping) else {} for name in names
        )
        members = {
            group: [each for each in tasks if isinstance(each, str)]
            for group, tasks in members.items()
            if isinstance(tasks, list)
        }
        groups = {**{n: each for n, each in results.items() if members.get(n)}, **groups}
        known = {"results": {**groups, **results}, "groups": groups, "group_subtasks": members}
        return {**content, **(known if "results" in content else {"group_subtasks": members})}

    def figures(self, task: str) -> Iterator[Figure]:
        """The numbers of a task or a group: its entries `metric,filter`."""
        found = self.results.get(task)
        values: dict[str, Any] = found if isinstance(found, dict) else {}
        for key, value in values.items():
            metric, comma, chosen = key.partition(",")
            measured = metric.removesuffix("_stderr")
            if comma and (measured == metric or f"{measured},{chosen}" not in values):
                stderr = values.get(f"{metric}_stderr,{chosen}")
                yield Figure(metric, chosen, value, stderr, metric_of(metric, task))

    def config_of(self, task: str) -> TaskConfig:
        """A task's configuration; an empty one where none was written."""
        return self.configs.get(task, TaskConfig())

    def direction(self, task: str, figure: Figure) -> bool | None:
        """Whether higher is better: as the file states it for a task or a metric, else as is known.

        None as well for a loss that a file calls better the higher it is: one of the two is wrong.
        """
        stated, known = self.higher_is_better.get(task), figure.known
        stated = stated.get(figure.metric) if isinstance(stated, dict) else stated
        if stated is None:
            stated = self.config_of(task).of_metric(figure.metric).get("higher_is_better")
        if not isinstance(stated, bool):
            return known.higher_is_better
        return None if stated and known.kind == "loss" and not known.higher_is_better else stated

    def below(self, group: str) -> set[str]:
        """Names of the tasks and groups in a group, at any depth."""
        found: set[str] = set()
        ahead = [group]
        while ahead:
            new = {*self.group_subtasks.get(ahead.pop(), ())} - found - {group}
            found |= new
            ahead += new
        return found

    def _counts(self, task: str) -> SampleCounts:
        return self.counts.get(task) or SampleCounts()

    def evaluated(self, task: str) -> float | None:
        """How many questions were evaluated; None where the file does not state it.

        With `--samples`, some versions count others too in one of the two places.
        """
        values = self.results.get(task)
        scored = finite(values.get("sample_len")) if isinstance(values, dict) else None
        known = (self._counts(task).effective, scored)
        return min((count for count in known if count is not None), default=None)

    def is_part(self, task: str) -> bool:
        """Whether fewer questions of a task were evaluated than it has."""
        evaluated, original = self.evaluated(task), self._counts(task).original
        return evaluated is not None and original is not None and evaluated < original

    def lacks_questions(self, task: str) -> bool:
        """Whether questions of a task were left out, or some have no answer."""
        return self.is_part(task) or bool(self.config_of(task).metadata.skipped_documents)

    def limit_of(self, task: str, limit: float | None) -> float | None:
        """A limit of the run; None where it is as large as the task and all were evaluated."""
        evaluated, original = self.evaluated(task), self._counts(task).original
        if limit is None or not evaluated or not original or evaluated < original:
            return limit
        most = math.ceil(limit * original) if limit < 1 else limit  # as lm-eval reads it
        return None if most >= original else limit

    @property
    def model(self) -> str:
        """The name of the model in tables."""
        given = (self.config.arguments.get(name) for name in NAMING)
        return str(next(filter(None, (self.model_name, *given, self.config.model)), "model"))

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the numbers of all tasks, in the fields of a cell's identity."""
        config, arguments = self.config, self.config.arguments
        named = {name: arguments[name] for name in NAMING if name in arguments}
        revision = config.model_sha or config.model_revision or arguments.get("revision")
        return {
            **(self.model_extra or {}),
            **{name: value for name, value in named.items() if value != self.model},
            **(config.model_extra or {}),
            "model": {
                "backend": config.model,
                "dtype": config.dtype,
                "commit": revision,
                "args": arguments,
            },
            "rope_parameters": config.rope,
            "rope_precision": arguments.get("rope_precision"),
            "further_rope_parameters": [each for each in config.ropes if each != config.rope],
            "gen_kwargs": config.gen_kwargs,
            "seed": config.random_seed,
            "unread_limit": None if config.questions else config.limit,
            "apply_chat_template": self.chat_template_sha or self.chat_template,
            "fewshot_as_multiturn": self.fewshot_as_multiturn or None,
        }

    def separating(self, task: str, length: int | None, *, is_ours: bool) -> dict[str, Any]:
        """What separates one task's numbers in the row of a length, besides the identity."""
        config, version = self.config_of(task), self.versions.get(task)
        fields, metadata, arguments = config.separating(), config.metadata, self.config.arguments
        shots = self.shots.get(task, fields.get("num_fewshot"))
        model = dict.fromkeys(("pretrained", "tokenizer"), arguments.get("pretrained", self.model))
        run = {**dict.fromkeys(settings.LENGTHS, length), **model, **arguments}
        return {
            **fields,
            "num_fewshot": shots,
            "task_version": metadata.written.get("version") if version is None else version,
            "task_hash": None if is_ours else self.hashes.get(task),
            **metadata.separating(run, is_ours=is_ours),
        }

    @property
    def packages(self) -> dict[str, str]:
        """Versions of the packages that the file names."""
        names = ("lm_eval", "transformers", "git")
        versions = (self.lm_eval_version, self.transformers_version, self.git_hash)
        return {name: v for name, v in zip(names, versions, strict=True) if v is not None}
