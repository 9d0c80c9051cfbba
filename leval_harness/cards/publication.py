"""What the results do not hold and the user states: who made them, which model on the Hub."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from leval_harness.old_results import Run, Score
from leval_tasks.closed.catalog import TASKS
from leval_tasks.metrics import FAMILY_OF
from resonance_vllm.errors import SettingError, not_allowed, one_of

RELATIONSHIPS = ("first_party", "third_party", "collaborative", "other")
"""Of the evaluator to the maker of the model, in the terms of Every Eval Ever."""

SOURCE = "leval-harness"
LEVAL = "L4NLP/LEval"
"""Dataset of the closed-ended tasks on the Hub."""

ADAPTER = re.compile(r'"(?:peft|delta|lora_local_path)": "([^"]+)"')
"""Arguments of lm-eval's models that put an adapter on a base model."""

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Publication:
    """What the user states about results to publish.

    Attributes:
        organization: who made the results.
        relationship: one of `RELATIONSHIPS`.
        models: name in the results -> `organization/name` on the Hub.
        benchmarks: task, or `task:metric` -> dataset id and task id of a benchmark on the Hub.
        source_url: where the results can be seen.
    """

    organization: str = UNKNOWN
    relationship: str = "other"
    models: Mapping[str, str] = field(default_factory=dict)
    benchmarks: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    source_url: str = ""

    def model_id(self, run: Run) -> str:
        """A run's model as the Hub calls it, else its name in the results.

        A base model with an adapter is another model: its name is the adapter's.
        """
        name = model_name(run)
        return self.models.get(name, name)

    def benchmark(self, score: Score) -> tuple[str, str] | None:
        """Dataset and task on the Hub: L-Eval's own for its tasks, others as the user states."""
        for name in (f"{score.task}:{score.metric}", score.task):
            if name in self.benchmarks:
                return self.benchmarks[name]
        return (LEVAL, TASKS[score.task].key) if FAMILY_OF.get(score.task) == "closed" else None

    def check(self, runs: Iterable[Run], tasks: Collection[str]) -> None:
        """Raise SettingError for a model or a task that the results do not have."""
        models = sorted({model_name(run) for run in runs})
        for name in self.models:
            one_of("--model-id", name, models)
        for name in self.benchmarks:
            one_of("--benchmark", name, sorted(tasks))


def model_name(run: Run) -> str:
    """A run's model in the results: that of its adapter if it has one."""
    adapter = ADAPTER.search(run.settings.get("model_args", ""))
    return adapter[1] if adapter else run.model


def read_publication(
    organization: str = "",
    relationship: str = "other",
    models: Sequence[str] = (),
    benchmarks: Sequence[str] = (),
    source_url: str = "",
) -> Publication:
    """A publication from a command line: `NAME=ORG/MODEL`, `TASK[:METRIC]=DATASET:TASK_ID`.

    Raises:
        SettingError: a text of another form; the message names it.
    """
    one_of("relationship", relationship, RELATIONSHIPS)
    model_ids, known = {}, {}
    for text in models:
        name, _, model = text.rpartition("=")
        if not name or model.count("/") != 1 or not all(model.split("/")):
            raise SettingError(not_allowed("--model-id", text, "NAME=ORGANIZATION/MODEL"))
        model_ids[name] = model
    for text in benchmarks:
        task, _, where = text.partition("=")
        dataset, _, part = where.partition(":")
        if not (task and part and dataset.count("/") == 1 and all(dataset.split("/"))):
            raise SettingError(
                not_allowed("--benchmark", text, "TASK[:METRIC]=ORGANIZATION/DATASET:TASK_ID")
            )
        known[task] = (dataset, part)
    if source_url and not source_url.startswith(("https://", "http://")):
        raise SettingError(not_allowed("--source-url", source_url, "an http or https address"))
    return Publication(organization or UNKNOWN, relationship, model_ids, known, source_url)


def path_part(name: str) -> str:
    """A name as one part of a path: never empty, `.` or `..`."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in name)
    return kept.strip(".-")[:100] or UNKNOWN
