"""Recompute what the results files claim from the samples that were logged."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from leval_leaderboard.results.fields import finite
from leval_leaderboard.results.frames import Results
from leval_leaderboard.results.samples import parsed_lines
from leval_leaderboard.results.schema import Run

RULES = {
    "leval_coursera": "coursera",
    "leval_gsm": "gsm",
    "leval_quality": "quality",
    "leval_toefl": "toefl",
    "leval_codeu": "codeu",
}
"""Tasks whose answers are scored again from the text by the official rule of that name."""


@dataclass
class Outcome:
    """What verification found; `differences` is empty where everything agrees."""

    checked: int = 0
    rescored: int = 0
    unchecked: int = 0
    differences: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


def verify(results: Results) -> Outcome:
    """Recompute every aggregate from its samples, and every closed-ended answer's score.

    Args:
        results: what `load_results` read; rows it already refused are reported as differences.
    """
    outcome = Outcome()
    sums = results.samples.groupby(["run", "task", "metric"], observed=True)[
        ["numerator", "denominator"]
    ].sum()
    for row in results.scores.itertuples():
        run = results.runs[row.run]
        name = f"{run.model}, {row.method}, {row.task}, {row.metric} ({run.run_id})"
        if row.status == "malformed":
            outcome.differences.append(f"{name}: {row.note}")
        elif row.status != "done":
            continue
        elif (row.run, row.task, row.metric) not in sums.index:
            outcome.unchecked += 1
        else:
            again = _again(str(row.metric), *sums.loc[(row.run, row.task, row.metric)])
            outcome.checked += 1
            if not math.isclose(again, row.value, rel_tol=1e-6, abs_tol=1e-9):
                outcome.differences.append(
                    f"{name}: samples give {again:.8g}, the results file says {row.value:.8g}"
                )
    _rescore(results, outcome)
    return outcome


def _again(metric: str, top: float, bottom: float) -> float:
    ratio = float(top) / float(bottom) if bottom else math.nan
    if "perplexity" in metric:
        return float(np.exp(ratio))
    return ratio / math.log(2) if metric.startswith("bits_per_byte") else ratio


def _rescore(results: Results, outcome: Outcome) -> None:
    """Score logged answers again with the official rule, where it can be named."""
    from leval_tasks.closed.scoring import judge

    for (index, task), path in results.sample_files.items():
        rule = RULES.get(task)
        if rule is None or results.runs[index].status != "done":
            continue
        seen: object = None
        for row in parsed_lines(path):
            if row is None:
                continue
            seen = row.get("filter") if seen is None else seen
            response, gold = response_of(row), gold_of(row)
            if row.get("filter") != seen or response is None or gold is None:
                continue
            outcome.rescored += 1
            score, logged = judge(rule, response, gold).score, finite(row.get("exact_match"))
            if logged is None or abs(score - logged) > 1e-9:
                outcome.differences.append(_said(results.runs[index], task, row, score, logged))


def _said(run: Run, task: str, row: dict[str, Any], score: float, logged: float | None) -> str:
    return (
        f"{run.model}, {run.method}, {task}, question {row.get('doc_id')} ({run.run_id}): the "
        f"answer scores {score:g}, logged is {logged}"
    )[:500]


def response_of(row: dict[str, Any]) -> str | None:
    """The model's own text: `resps` is a list (a request) of lists (repeats)."""
    value: object = row.get("resps")
    for _ in range(2):
        if isinstance(value, list) and value:
            value = value[0]
    return value if isinstance(value, str) else None


def gold_of(row: dict[str, Any]) -> str | None:
    """The gold answer of a sample of ours."""
    doc = row.get("doc")
    gold = doc.get("gold") if isinstance(doc, dict) else None
    return gold if isinstance(gold, str) else None
