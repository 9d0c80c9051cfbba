"""Recompute what the results files claim from the samples that were logged."""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from leval_leaderboard.results.fields import finite, read_model
from leval_leaderboard.results.lm_eval import ResultsFile, TaskConfig
from leval_leaderboard.results.load import Results
from leval_leaderboard.results.recompute import (
    OURS,
    NotRecomputableError,
    Values,
    figures,
    group_figures,
    logged_values,
)
from leval_leaderboard.results.rescore import judged_metrics
from leval_leaderboard.results.samples import rows_of_first_filter
from leval_tasks.closed.catalog import TASKS
from leval_tasks.closed.definition import ClosedTask

MEANS = ("acc", "acc_norm", "exact_match")
"""Metrics that lm-eval averages where a task does not say otherwise."""


@dataclass
class Verification:
    """What verification found.

    `differences` is empty where everything agrees; `not_recomputed` names each figure that the
    samples do not determine, and why.
    """

    checked: int = 0
    rescored: int = 0
    not_recomputed: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)

    def compare(self, name: str, stated: Any, again: Callable[[], list[float | None]]) -> None:
        """Note whether a figure is one of those that the samples give."""
        try:
            possible = again()
        except NotRecomputableError as error:
            self.not_recomputed.append(f"{name}: {error}")
            return
        self.checked += 1
        if not any(_agree(value, stated) for value in possible):
            given = " or ".join("N/A" if v is None else f"{v:.8g}" for v in possible)
            self.differences.append(
                f"{name}: samples give {given}, the results file says {stated!r}"
            )


def _agree(value: float | None, stated: Any) -> bool:
    number = finite(stated)
    if value is None or number is None:
        return value is None and stated == "N/A"
    return math.isclose(value, number, rel_tol=1e-6, abs_tol=1e-9)


def verify(results: Results) -> Verification:
    """Recompute every aggregate from its samples, and every closed-ended answer's score.

    Args:
        results: what `load_results` read; rows it already refused are reported as differences.
    """
    outcome = Verification()
    refused: set[tuple[int, str, str]] = set()
    for score in results.scores:
        where = _name(results, score.run, score.task, score.metric)
        if score.status == "malformed":
            refused.add((score.run, score.task, score.metric))
            outcome.differences.append(f"{where}: {score.note}")
        elif score.status == "done" and (score.run, score.task) not in results.samples:
            outcome.not_recomputed.append(f"{where}: no samples were logged")
    logged: dict[int, list[str]] = {}
    for run, task in results.samples:
        logged.setdefault(run, []).append(task)
    for index, tasks in sorted(logged.items()):
        if results.runs[index].status == "done":
            _verify_run(results, index, tasks, refused, outcome)
    return outcome


def _name(results: Results, index: int, task: str, metric: str) -> str:
    run = results.runs[index]
    return f"{run.model}, {run.method}, {task}, {metric} ({run.run_id})"


def _verify_run(
    results: Results,
    index: int,
    tasks: Sequence[str],
    refused: set[tuple[int, str, str]],
    outcome: Verification,
) -> None:
    """Every figure of every task of one run whose samples are there, and of its groups."""

    def named(task: str, what: str) -> str:
        return _name(results, index, task, what)

    seen: dict[Path, ResultsFile] = {}
    for task in tasks:
        path = results.samples[index, task].path
        where = path.with_name(f"results_{path.stem.removeprefix(f'samples_{task}_')}.json")
        file = seen[where] = seen.get(where) or read_model(ResultsFile, where)
        config = file.config_of(task)
        values = logged_values(path)
        for figure in _figures_of(file.results.get(task)):
            if (index, task, figure[0]) not in refused:
                name = named(task, figure[0])
                _verify_figure(name, task, figure, values, config, outcome)
        if task in TASKS:
            _rescore(functools.partial(named, task), TASKS[task], path, config, outcome)
    for file in seen.values():
        _verify_groups(named, file, outcome)


def _figures_of(values: Any) -> Iterator[tuple[str, str, Any]]:
    """`(metric, filter, value)` of every figure, standard errors included."""
    for key, value in values.items() if isinstance(values, dict) else ():
        metric, _, chosen = key.partition(",")
        twice = metric.endswith("_stderr_stderr")  # lm-eval's of ours, which it never has
        if chosen and not (twice and value == "N/A"):
            yield metric, chosen, value


def _verify_figure(
    name: str,
    task: str,
    figure: tuple[str, str, Any],
    values: Values,
    config: TaskConfig,
    outcome: Verification,
) -> None:
    """One figure; another project's task may aggregate in ways that only its code knows."""
    (metric, chosen, stated), ours = figure, task.startswith(OURS)
    if stated == "N/A" and (chosen, metric) not in values:
        return  # lm-eval's word for a standard error that it did not compute

    def again() -> list[float | None]:
        possible = figures(task, metric, chosen, values)
        measured = metric.removesuffix("_stderr")
        how = config.aggregation(measured) or ("mean" if measured in MEANS else "")
        if ours or how == "mean" or any(_agree(value, stated) for value in possible):
            return possible
        raise NotRecomputableError(f"the task aggregates it by {how or 'its own code'}")

    outcome.compare(name, stated, again)


def _verify_groups(
    named: Callable[[str, str], str], file: ResultsFile, outcome: Verification
) -> None:
    """A group's figures from those of its tasks."""
    for group, members in file.group_subtasks.items():
        if not isinstance(members, list) or not members:
            continue
        parts = [part for name in members if isinstance(part := file.results.get(name), dict)]
        for metric, chosen, stated in _figures_of(file.groups.get(group)):
            if finite(stated) is not None:
                key = f"{metric},{chosen}"
                outcome.compare(named(group, metric), stated, functools.partial(_group, key, parts))


def _group(key: str, parts: list[dict[str, Any]]) -> list[float | None]:
    if "_stderr," in key:
        raise NotRecomputableError("lm-eval's pooled standard error of a group, in no table here")
    known = [
        (figure, finite(part.get("sample_len")) or 0.0)
        for part in parts
        if (figure := finite(part.get(key))) is not None
    ]
    if not known:
        raise NotRecomputableError("no task of the group has this figure")
    return list(group_figures(known))


def _rescore(
    named: Callable[[str], str],
    task: ClosedTask,
    path: Path,
    config: TaskConfig,
    outcome: Verification,
) -> None:
    """Judge the logged answers again with the official rule; every metric that follows must fit."""
    end_of_thinking = (config.metadata.settings or {}).get("end_of_thinking")
    end_of_thinking = end_of_thinking if isinstance(end_of_thinking, str) else ""
    without = 0
    for row in rows_of_first_filter(path):
        expected = judged_metrics(task, row, end_of_thinking)
        if expected is None:
            without += 1
            continue
        outcome.rescored += 1
        for metric, value in expected.items():
            logged = row.get(metric)
            if metric in row and logged != value:
                name = named(f"question {row.get('doc_id')}"[:50])
                outcome.differences.append(
                    f"{name}: the answer gives {metric} {value}, logged is {logged!r}"[:500]
                )
    if without:
        outcome.not_recomputed.append(
            f"{named('answers')}: {without} questions have no logged answer to score again"
        )
