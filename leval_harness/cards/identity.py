"""Who is spoken of, and by whom: what a results folder cannot know and the user says."""

import hashlib
import logging
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from leval_border.errors import SettingError, not_allowed, one_of
from leval_harness.results import Run
from leval_tasks.closed.catalog import OLD_NAMES

logger = logging.getLogger(__name__)

RELATIONSHIPS = ("first_party", "third_party", "collaborative", "other")
"""Of who evaluates to who made the model, in the words of Every Eval Ever."""

SOURCE = "leval-harness"
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Says:
    """What the user says of cards.

    Attributes:
        organization: who made the results.
        relationship: one of `RELATIONSHIPS`.
        models: name in the results -> `organization/name` on the Hub.
        benchmarks: task -> `dataset id:task id` of a benchmark on the Hub.
        source_url: where the results can be seen.
    """

    organization: str = UNKNOWN
    relationship: str = "other"
    models: Mapping[str, str] = field(default_factory=dict)
    benchmarks: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    source_url: str = ""

    def model_id(self, run: Run) -> str:
        """A run's model as the Hub calls it; its name in the results where nobody said."""
        return self.models.get(run.model, run.model)

    def of_results(self, models: Iterable[str], tasks: Collection[str]) -> "Says":
        """The same with our tasks under the names that they have today, where they had others.

        Raises:
            SettingError: a model or a task that is none of the results'; with the near ones.
        """
        for name in self.models:
            one_of("--model-id", name, sorted(models))
        named = {}
        for name, where in self.benchmarks.items():
            today = OLD_NAMES.get(name, name)
            if name not in tasks and today in tasks:
                logger.warning("--benchmark: %s is called %s today", name, today)
                name = today
            named[one_of("--benchmark", name, sorted(tasks))] = where
        return replace(self, benchmarks=named)


def read_says(
    organization: str,
    relationship: str,
    models: Sequence[str] = (),
    benchmarks: Sequence[str] = (),
    source_url: str = "",
) -> Says:
    """The same from a command line: `NAME=ORG/MODEL`, `TASK=DATASET:TASK_ID`.

    Raises:
        SettingError: something of another form; the message names it.
    """
    one_of("relationship", relationship, RELATIONSHIPS)
    named, known = {}, {}
    for text in models:
        name, _, model = text.rpartition("=")
        if not name or model.count("/") != 1 or not all(model.split("/")):
            raise SettingError(not_allowed("--model-id", text, "NAME=ORGANIZATION/MODEL"))
        named[name] = model
    for text in benchmarks:
        task, _, where = text.partition("=")
        dataset, _, part = where.partition(":")
        if not (task and part and dataset.count("/") == 1 and all(dataset.split("/"))):
            raise SettingError(
                not_allowed("--benchmark", text, "TASK=ORGANIZATION/DATASET:TASK_ID")
            )
        known[task] = (dataset, part)
    if source_url and not source_url.startswith(("https://", "http://")):
        raise SettingError(not_allowed("--source-url", source_url, "an http or https address"))
    return Says(organization or UNKNOWN, relationship, named, known, source_url)


def record_id(run: Run) -> str:
    """A version-4 UUID made of what a run is, so that a card written again replaces itself."""
    name = f"{run.run_id} {run.content} {run.model} {run.method}"
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass"))
    return str(uuid.UUID(bytes=digest.digest()[:16], version=4))


def part_of_path(name: str) -> str:
    """A name as one part of a path; never empty, never one with a meaning of its own."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in name)
    return kept.strip(".-")[:100] or UNKNOWN
