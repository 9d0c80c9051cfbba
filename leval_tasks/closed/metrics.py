"""From judged answers to the metrics of a question, and from those to the task's figures."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from leval_tasks.closed.definition import SCORES, ClosedTask
from leval_tasks.closed.rules import mean, mean_of_parts, parts_known
from leval_tasks.statistics.standard_error import clustered_stderr

NOT_AVAILABLE = "N/A"
"""What lm-eval prints where there is no figure."""

OF_PROMPTS = {
    "truncated": False, "prompt_tokens": False, "document_tokens": False, "kept_tokens": True,
}  # fmt: skip
"""Metrics of how a question was asked, and whether more of it is better."""


class PartScore(float):
    """A score that still knows which parts its question has."""

    parts: tuple[str, ...] = ()

    @classmethod
    def of(cls, value: float, parts: tuple[str, ...]) -> "PartScore":  # noqa: D102
        made = cls(value)
        made.parts = parts
        return made


def metrics_of_question(
    task: ClosedTask, judged: Mapping[str, float | None], doc: Mapping[str, Any]
) -> dict[str, Any]:
    """What a question counts with, each under the name of its metric.

    Args:
        task: whose question it is.
        judged: what the responses are worth, from `ClosedTask.judged`.
        doc: the question; `cluster` is what its standard error is clustered by, and `prompt` how
            it was asked.
    """
    known = parts_known({name: judged[name] for name in task.rule.parts})
    prompt = doc.get("prompt") or {}
    return {
        "exact_match": judged["exact_match"],
        # after exact_match: its aggregate replaces lm-eval's own field of this name
        "exact_match_stderr": (doc["cluster"], judged["exact_match"]),
        **judged,
        **{name: PartScore.of(float(judged[name] or 0.0), known) for name in SCORES},
        "truncated": float(prompt.get("truncated", False)),
        "prompt_tokens": prompt.get("prompt_tokens", 0),
        "document_tokens": prompt.get("document_tokens", 0),
        "kept_tokens": prompt.get("kept_head", 0) + prompt.get("kept_tail", 0),
    }


def directions(task: ClosedTask) -> dict[str, bool]:
    """Each metric of a task, and whether more of it is better."""
    return {**task.metrics(), "exact_match_stderr": False, **OF_PROMPTS}


def aggregations(task: ClosedTask) -> dict[str, Callable[..., float | str]]:
    """How each metric of a task becomes its figure."""
    return {
        **dict.fromkeys(directions(task), mean_of_known),
        **dict.fromkeys(SCORES, mean_of_scores),
        "exact_match_stderr": stderr_field,
    }


def mean_of_known(values: Sequence[float | None]) -> float | str:
    """Mean of the values that a metric has, `N/A` where no question has one."""
    known = [value for value in values if value is not None]
    return mean(known) if known else NOT_AVAILABLE


def mean_of_scores(values: Sequence[float]) -> float:
    """Mean of a score, in which topic retrieval's positions weigh the same."""
    return mean_of_parts(values, [getattr(value, "parts", ()) for value in values])


def stderr_field(items: Sequence[tuple[str, float]]) -> float | str:
    """Clustered standard error in lm-eval's form: `N/A` where it cannot be told."""
    value = clustered_stderr(items)
    return NOT_AVAILABLE if math.isnan(value) else value
