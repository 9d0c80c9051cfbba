"""Recompute what the results files claim from the samples that were logged."""

import math
import statistics
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from leval_leaderboard.results.discover import samples_file
from leval_leaderboard.results.fields import ResultsError, finite, pair, read_model
from leval_leaderboard.results.lm_eval import ResultsFile
from leval_leaderboard.results.lm_eval_task import TaskConfig
from leval_leaderboard.results.load import Results
from leval_leaderboard.results.metrics import MEANS, NO_METRIC, NOT_MEASURED, length_of
from leval_leaderboard.results.sample_lines import (
    document_of,
    gold_of,
    logged_metrics,
    parsed_lines,
    responses_of,
    rows_of_first_filter,
)
from leval_leaderboard.results.samples import LISTINGS
from leval_leaderboard.results.scores import FAMILY_OF
from leval_tasks.closed.catalog import TASKS
from leval_tasks.closed.definition import SCORES
from leval_tasks.metric_names import SIGN
from leval_tasks.perplexity.metrics import aggregations
from leval_tasks.statistics import clustered_stderr, linearised_ratio

Values = Mapping[tuple[str, str], Sequence[Any]]
"""`(filter, metric)` -> value of each question, None where it has none."""

Possible = list[float | str]
"""What a figure may be, `N/A` included: one value of our tasks, several of others'."""

NOT_AVAILABLE = "N/A"


class NotRecomputableError(ValueError):
    """A figure that the logged samples do not determine; the message says why."""


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

    def compare(self, name: str, stated: Any, again: Callable[[], Possible]) -> None:
        """Note whether a figure is one of those that the samples give."""
        try:
            possible = again()
        except NotRecomputableError as error:
            self.not_recomputed.append(f"{name}: {error}")
            return
        self.checked += 1
        if not any(_agree(value, stated) for value in possible):
            given = " or ".join(v if isinstance(v, str) else f"{v:.8g}" for v in possible)
            self.differences.append(
                f"{name}: samples give {given}, the results file says {stated!r}"
            )


def _agree(value: float | str, stated: Any) -> bool:
    number = finite(stated)
    if isinstance(value, str) or number is None:
        return value == stated
    return math.isclose(value, number, rel_tol=1e-6, abs_tol=1e-9)


def verify(results: Results) -> Verification:
    """Recompute every aggregate from its samples, and every closed-ended answer's score.

    Rows that `load_results` already refused are reported as differences.
    """

    def name(index: int, task: str, what: str) -> str:
        run = results.runs[index]
        return f"{run.model}, {run.method}, {task}, {what} ({run.run_id})"

    outcome = Verification()
    refused: set[tuple[int, str, str]] = set()
    for score in results.scores:
        where = name(score.run, score.task, score.metric)
        if score.status == "malformed":
            refused.add((score.run, score.task, score.metric))
            outcome.differences.append(f"{where}: {score.note}")
        elif score.members:
            continue  # computed again from the figures of its tasks
        elif score.status == "done" and (score.run, score.task) not in results.samples:
            outcome.not_recomputed.append(f"{where}: no samples were logged")
    for index, run in enumerate(results.runs):
        for promised in run.hashes:
            try:
                run.check_unaltered(run.folder / promised)
            except ResultsError as error:
                outcome.differences.append(f"{name(index, 'every task', 'files')}: {error}")
        for path in run.results if run.status == "done" else ():
            file = read_model(ResultsFile, path)
            for task in file.results:
                samples = results.samples.get((index, task))
                if samples is not None and samples.path == samples_file(path, task):
                    about = partial(name, index, task)
                    _verify_task(task, file, samples.path, about, refused, index, outcome)
            _verify_groups(file, partial(name, index), outcome)
    return outcome


def _verify_task(
    task: str,
    file: ResultsFile,
    path: Path,
    named: Callable[[str], str],
    refused: Container[tuple[int, str, str]],
    index: int,
    outcome: Verification,
) -> None:
    config, values = file.config_of(task), _logged_values(path)
    for metric, chosen, stated in _figures_of(file.results[task]):
        not_computed = stated == NOT_AVAILABLE and (chosen, metric) not in values
        if not (not_computed or (index, task, metric) in refused or metric in NO_METRIC):
            again = partial(_task_figure, task, config, metric, values, chosen, stated)
            outcome.compare(named(metric), stated, again)
    if task in TASKS and not any(metric in NO_METRIC for _, metric in values):
        _rescore(task, config, path, named, outcome)


def _verify_groups(
    file: ResultsFile, named: Callable[[str, str], str], outcome: Verification
) -> None:
    for group, members in file.group_subtasks.items():
        for metric, chosen, stated in _figures_of(file.groups.get(group)):
            if isinstance(members, list) and members and finite(stated) is not None:
                parts = [file.results.get(member) for member in members]
                again = partial(_group_figure, f"{metric},{chosen}", parts)
                outcome.compare(named(group, metric), stated, again)


def _logged_values(path: Path) -> Values:
    values: dict[tuple[str, str], list[Any]] = {}
    for row in filter(None, parsed_lines(path)):
        for name in logged_metrics(row):
            value = row.get(name)
            asked = length_of(name) is None or value != NOT_MEASURED
            values.setdefault((str(row.get("filter")), name), []).extend([value] if asked else [])
    return values


def _figures_of(values: Any) -> Iterator[tuple[str, str, Any]]:
    """`(metric, filter, value)` of every figure, standard errors included."""
    for key, value in values.items() if isinstance(values, dict) else ():
        metric, _, chosen = key.partition(",")
        twice = metric.endswith("_stderr_stderr")  # lm-eval's of ours, which it never has
        if chosen and not (twice and value == NOT_AVAILABLE):
            yield metric, chosen, value


def _task_figure(
    task: str, config: TaskConfig, metric: str, values: Values, chosen: str, stated: Any
) -> Possible:
    """What a figure may be; another project's task may aggregate as only its code knows."""
    is_ours = task in FAMILY_OF or SIGN in metric
    measured = metric.removesuffix("_stderr")
    if length_of(measured) is not None and not values.get((chosen, measured)):
        return [NOT_MEASURED, NOT_AVAILABLE]  # a length that was not asked
    logged = values.get((chosen, metric))
    if logged is not None:
        possible = _aggregated(metric, logged, is_ours)
        possible += _mean_of_parts(task, metric, values, chosen)
    elif metric != measured:
        possible = [_stderr_of_mean(values.get((chosen, measured), ()))]
    else:
        raise NotRecomputableError("the samples do not log it")
    how = config.aggregation(measured) or ("mean" if measured in MEANS else "")
    if is_ours or how == "mean" or any(_agree(value, stated) for value in possible):
        return possible
    raise NotRecomputableError(f"the task aggregates it by {how or 'its own code'}")


def _mean_of_parts(task: str, metric: str, values: Values, chosen: str) -> Possible:
    """A closed-ended score whose parts weigh the same, however many questions have each."""
    parts = TASKS[task].rule.parts if task in TASKS and metric in SCORES else ()
    logged = [values.get((chosen, part)) or [] for part in parts]
    known = [[number for v in each if (number := finite(v)) is not None] for each in logged]
    means = [statistics.fmean(each) for each in known if each]
    return [statistics.fmean(means)] if means else []


def _aggregated(metric: str, logged: Sequence[Any], is_ours: bool) -> Possible:
    if metric.endswith("_stderr") and is_ours:
        return _our_stderr(metric, logged)
    known = [value for value in logged if value is not None]
    if metric in LISTINGS and is_ours:
        return [float(sum(len(value) for value in known if isinstance(value, list)))]
    if is_ours and [0.0, 0] in known:  # a text of which nothing was counted says nothing
        known = [value for value in known if value != [0.0, 0]]
        if not known:
            return [NOT_AVAILABLE]
    numbers = [number for value in known if (number := finite(value)) is not None]
    if known and len(numbers) == len(known):
        return [statistics.fmean(numbers)]
    pairs = [both for value in known if (both := pair(value)) is not None]
    if not known or len(pairs) != len(known):
        raise NotRecomputableError("its values in the samples are neither numbers nor ratios")
    value, _ = aggregations(metric)
    if is_ours:
        return [value(pairs)]
    return [value(pairs), value([(-top, bottom) for top, bottom in pairs])]  # log likelihoods


def _our_stderr(metric: str, logged: Sequence[Any]) -> Possible:
    """Standard errors of our tasks, by document: what is written today, and what once was."""
    try:
        if metric == "exact_match_stderr":
            scores: dict[str, list[float]] = {}
            for cluster, score in logged:
                scores.setdefault(str(cluster), []).append(float(score))
            pairs = [(math.fsum(group), float(len(group))) for group in scores.values()]
            value: float | str = clustered_stderr(
                (str(cluster), score) for cluster, score in logged
            )
        else:
            pairs = [(float(top), float(bottom)) for top, bottom in logged if bottom]
            value = aggregations(metric.removesuffix("_stderr"))[1](logged)
    except (TypeError, ValueError, OverflowError) as error:
        raise NotRecomputableError(f"its values in the samples are damaged ({error})") from error
    if isinstance(value, str) or math.isnan(value):
        return [NOT_AVAILABLE]
    return [value, value * _sandwich_over_cr2(pairs)]


def _sandwich_over_cr2(pairs: Sequence[tuple[float, float]]) -> float:
    """From CR2 to the sandwich with the factor G/(G-1), which older results files hold."""
    totals, sizes = np.array(pairs).T
    ratio, stderr, _ = linearised_ratio(totals, sizes)
    squares = ((totals - ratio * sizes) ** 2).sum() * len(pairs) / (len(pairs) - 1)
    return float(np.sqrt(squares) / sizes.sum() / stderr) if stderr else 1.0


def _stderr_of_mean(logged: Sequence[Any]) -> float:
    """lm-eval's standard error of a mean, `s / sqrt(n)`; other ones it draws by bootstrap."""
    numbers = [number for value in logged if (number := finite(value)) is not None]
    if len(numbers) < 2 or len(numbers) != len(logged):
        raise NotRecomputableError("a standard error of something other than a mean of numbers")
    return float(stats.sem(numbers))


def _group_figure(key: str, parts: Sequence[Any]) -> Possible:
    """A group's figure from those of its tasks: the mean, by task or by question."""
    if "_stderr," in key:
        raise NotRecomputableError("lm-eval's pooled standard error of a group, in no table here")
    known = [part for part in parts if isinstance(part, dict) and finite(part.get(key)) is not None]
    if not known:
        raise NotRecomputableError("no task of the group has this figure")
    figures = [part[key] for part in known]
    sizes = [finite(part.get("sample_len")) or 0.0 for part in known]
    plain = statistics.fmean(figures)
    return [plain, statistics.fmean(figures, sizes)] if math.fsum(sizes) else [plain]


def _rescore(
    name: str, config: TaskConfig, path: Path, named: Callable[[str], str], outcome: Verification
) -> None:
    """Judge the logged answers again with the official rule; every metric that follows must fit."""
    task = TASKS[name]
    end_of_thinking = (config.stated.settings or {}).get("end_of_thinking")
    end_of_thinking = end_of_thinking if isinstance(end_of_thinking, str) else ""
    opened = (config.stated.prompt or {}).get("opens_thinking") is True
    without = 0
    for row in rows_of_first_filter(parsed_lines(path)):
        gold, responses = gold_of(row), responses_of(row)
        if gold is None or len(responses) < task.prompts:
            without += 1
            continue
        number = document_of(row).get("question_id")
        number = number if isinstance(number, int) else 0
        outcome.rescored += 1
        judged = task.judged(responses, gold, number, end_of_thinking, opened=opened)
        for metric, value in judged.items():
            if metric in row and row[metric] != value:
                question = named(f"question {row.get('doc_id')}"[:50])
                outcome.differences.append(
                    f"{question}: the answer gives {metric} {value}, logged is {row[metric]!r}"[
                        :500
                    ]
                )
    if without:
        outcome.not_recomputed.append(
            f"{named('answers')}: {without} questions have no logged answer to score again"
        )
