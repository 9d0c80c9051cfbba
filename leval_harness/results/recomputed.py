"""What a figure of a results file may be, from the values that were logged of each question."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from leval_harness.results.fields import finite, pair
from leval_harness.results.lm_eval_task import TaskConfig
from leval_harness.results.metrics import MEANS, NOT_MEASURED, length_of, parts_of
from leval_harness.results.samples import LISTINGS
from leval_harness.results.scores import FAMILY_OF
from leval_tasks.metric_names import SIGN
from leval_tasks.perplexity.metrics import aggregations
from leval_tasks.statistics.clustered import clustered_stderr, linearised_ratio

Values = Mapping[tuple[str, str], Sequence[Any]]
"""`(filter, metric)` -> value of each question, None where it has none."""

Possible = list[float | str]
"""What a figure may be, `N/A` included: one value of our tasks, several of others'."""

NOT_AVAILABLE = "N/A"


class NotRecomputableError(ValueError):
    """A figure that the logged samples do not determine; the message says why."""


def agree(value: float | str, stated: Any) -> bool:
    """Whether a figure is the one that a results file states, but for rounding."""
    number = finite(stated)
    if isinstance(value, str) or number is None:
        return value == stated
    return math.isclose(value, number, rel_tol=1e-6, abs_tol=1e-9)


def task_figure(
    task: str, config: TaskConfig, metric: str, values: Values, chosen: str, stated: Any
) -> Possible:
    """What a figure of a task under a filter, or its standard error, may be.

    Raises:
        NotRecomputableError: nothing was logged that gives it, or what is `stated` is something
            else and the task may aggregate as only its own code knows.
    """
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
    if is_ours or how == "mean" or any(agree(value, stated) for value in possible):
        return possible
    raise NotRecomputableError(f"the task aggregates it by {how or 'its own code'}")


def _mean_of_parts(task: str, metric: str, values: Values, chosen: str) -> Possible:
    """A closed-ended score whose parts weigh the same, however many questions have each."""
    logged = [values.get((chosen, part)) or [] for part in parts_of(task, metric)]
    known = [[number for v in each if (number := finite(v)) is not None] for each in logged]
    means = [statistics.fmean(each) for each in known if each]
    return [statistics.fmean(means)] if means else []


def _aggregated(metric: str, logged: Sequence[Any], is_ours: bool) -> Possible:
    """What the questions' values give, by their form: numbers, `[sum, count]`, listings."""
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


def group_figure(key: str, parts: Sequence[Any]) -> Possible:
    """A group's figure from those of its tasks: the mean, by task or by question.

    Args:
        key: its name in the results file, `metric,filter`.
        parts: what the file has for each task of the group.

    Raises:
        NotRecomputableError: a standard error, or no task has this figure.
    """
    if "_stderr," in key:
        raise NotRecomputableError("lm-eval's pooled standard error of a group, in no table here")
    known = [part for part in parts if isinstance(part, dict) and finite(part.get(key)) is not None]
    if not known:
        raise NotRecomputableError("no task of the group has this figure")
    figures = [part[key] for part in known]
    sizes = [finite(part.get("sample_len")) or 0.0 for part in known]
    plain = statistics.fmean(figures)
    return [plain, statistics.fmean(figures, sizes)] if math.fsum(sizes) else [plain]
