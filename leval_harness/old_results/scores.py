"""One number of one run."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from leval_harness.old_results.run_record import TELEMETRY, Run
from leval_tasks.metrics import UNKNOWN, Metric, length_of, metric_of, split


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One metric of one task of one run; a run without numbers has one without a metric per task.

    `run` is a place in `Results.runs`, which holds everything that is known of the whole run.
    Values are as in the results file; a `share` is shown in percent. What is not known is None:
    also the value of what is not `done` (`status` and `note` say why), and the direction of a
    metric. `primary` numbers are those of the tables.

    chosen: the filter, as lm-eval calls what extracts the answer.
    context_length: tokens that the task's questions were fitted to, else those of the run.
    settings: what else decides the number; the same object for all metrics of a task.
    share: whether the value is a share from 0 to 1; None where there is no value.
    group: the group of tasks whose figure stands for this one in tables.
    members: of a group's own figure, how many of its tasks were run.
    from_samples: whether the logged samples give this very number.

    n, clusters: questions, and what they are clustered by (documents).
    cut, unparsed: share of the questions whose document was shortened, whose answer was not found.
    at_limit: share of the answers that the generation limit ended.
    thinking_cut: share of the answers that ended before their thinking did; `if_wrong` and
        `if_right` are the value if all of them were wrong, if all of them were right.
    prompt_tokens, kept_tokens: mean of a question.
    chance: expected score of a guess.
    limit: largest number of questions, or their share, where the limit left some out.
    partial: not all questions of the task were evaluated.
    sample, source, data, python: whether the bundled sample was read, where documents came from,
        a fingerprint of their files, and the version of Python whose documentation they are.
    softmax: precision of a perplexity's softmax.
    shipped_length, claimed_length: tokens that the checkpoint's config claims as shipped, and under
        the run's method.
    """

    run: int
    task: str
    metric: str = ""
    chosen: str = ""
    context_length: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    share: bool | None = None
    group: str = ""
    members: int = 0
    from_samples: bool = False
    primary: bool = True
    status: str = "done"
    note: str = ""
    value: float | None = None
    stderr: float | None = None
    n: int | None = None
    clusters: int | None = None
    cut: float | None = None
    unparsed: float | None = None
    at_limit: float | None = None
    thinking_cut: float | None = None
    if_wrong: float | None = None
    if_right: float | None = None
    prompt_tokens: float | None = None
    kept_tokens: float | None = None
    chance: float | None = None
    higher_is_better: bool | None = True
    limit: float | None = None
    partial: bool = False
    sample: bool = False
    source: str = ""
    data: str = ""
    python: str = ""
    softmax: str = ""
    shipped_length: int | None = None
    claimed_length: int | None = None

    @classmethod
    def without_numbers(cls, run: Run, index: int) -> "list[Score]":
        """A score without a metric for each task of a run that has no numbers."""
        return [
            cls(
                run=index,
                task=task,
                status=run.status,
                note=run.reason,
                limit=run.limit,
                partial=run.limit is not None or run.has_fewer_documents(task),
                context_length=run.context_length,
                settings=run.settings,
            )
            for task in run.tasks or ("",)
        ]

    @property
    def meaning(self) -> Metric:
        """What the table of metrics knows of its metric."""
        return metric_of(self.metric, self.task)

    @property
    def family(self) -> str:
        """The metric without the context length in its name; `score` where that is all of it."""
        return "score" if length_of(self.metric) else split(self.metric)[0]

    @property
    def at(self) -> int | None:
        """The context length in the metric's name."""
        return split(self.metric)[1]

    @property
    def percent(self) -> float:
        """The factor between a value and what is shown: 100 for a share, else 1."""
        return 100.0 if self._is_share else 1.0

    @property
    def _is_share(self) -> bool:
        return self.meaning.kind != "loss" if self.share is None else self.share

    @property
    def decimals(self) -> int:
        """Digits after the point in tables."""
        known = self.meaning
        return known.decimals if self._is_share or known.unit != "share" else UNKNOWN.decimals

    @property
    def higher(self) -> bool:
        """Whether a higher number is better; callers check that the direction is known."""
        return self.higher_is_better is not False

    @property
    def finished(self) -> bool:
        """Whether there is a number."""
        return self.status == "done" and self.value is not None

    def record(self, run: Run) -> dict[str, Any]:
        """With its run as one flat record, a row of `Results.frame`."""
        of_run = ("model", "method", "seconds", "tokens_per_second")
        of_score = (each.name for each in fields(self) if each.name not in NOT_IN_RECORDS)
        return {
            **{name: getattr(self, name) for name in of_score},
            **{name: getattr(run, name) for name in of_run},
            **{name: run.telemetry.get(name) for name in TELEMETRY},
            "baseline": run.baseline or "",
            "created": run.created,
            "command": run.command,
        }


NOT_IN_RECORDS = {
    "settings", "from_samples", "group", "members", "share", "shipped_length", "claimed_length",
}  # fmt: skip


def frame_of(records: Iterable[Mapping[str, Any]]) -> Any:
    """A pandas frame, a row a record; a missing number is NaN, a missing text empty."""
    import numpy as np
    import pandas as pd

    return pd.DataFrame(list(records)).fillna(np.nan)
