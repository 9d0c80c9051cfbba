"""The figures of a results file, computed again from the values that the samples log."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from leval_leaderboard.results.fields import finite, pair
from leval_leaderboard.results.samples import parsed_lines
from leval_tasks.statistics import linearised_ratio

Values = Mapping[tuple[str, str], Sequence[Any]]
OURS = ("leval_", "ppl_", "posgen_")


class NotRecomputableError(ValueError):
    """A figure that the logged samples do not determine; the message says why."""


def logged_values(path: Path) -> Values:
    """`(filter, metric) -> value of each question` of a samples file, None where it has none."""
    values: dict[tuple[str, str], list[Any]] = {}
    for row in parsed_lines(path):
        names = row.get("metrics") if row else None
        if row and isinstance(names, list):
            for name in names:
                if isinstance(name, str):
                    values.setdefault((str(row.get("filter")), name), []).append(row.get(name))
    return values


def figures(task: str, metric: str, chosen: str, values: Values) -> list[float | None]:
    """What a figure may be: one value for our tasks, one for each usual aggregation for others.

    Args:
        task: name of the task.
        metric: name of the figure, a standard error included.
        chosen: name of the filter.
        values: from `logged_values`.

    Returns:
        Values of which one must be in the results file; None stands for lm-eval's `N/A`.

    Raises:
        NotRecomputableError: the samples do not log what it was made of.
    """
    logged = values.get((chosen, metric))
    if logged is None:
        if metric.endswith("_stderr"):
            return [_stderr_of_mean(values.get((chosen, metric.removesuffix("_stderr"))))]
        raise NotRecomputableError("the samples do not log it")
    if metric.endswith("_stderr") and task.startswith(OURS):
        return _our_stderr(metric, logged)
    known = [value for value in logged if value is not None]
    numbers = [number for value in known if (number := finite(value)) is not None]
    if known and len(numbers) == len(known):
        return [math.fsum(numbers) / len(numbers)]
    pairs = [both for value in known if (both := pair(value)) is not None]
    if not known or len(pairs) != len(known):
        raise NotRecomputableError("its values in the samples are neither numbers nor ratios")
    ratio = math.fsum(top for top, _ in pairs) / math.fsum(bottom for _, bottom in pairs)
    signs = (1,) if task.startswith(OURS) else (1, -1)  # lm-eval's own tasks log likelihoods
    return [_of_ratio(metric, sign * ratio) for sign in signs]


def _of_ratio(metric: str, ratio: float) -> float:
    if "perplexity" in metric:
        return math.exp(ratio) if ratio < 700 else math.inf
    return ratio / math.log(2) if metric.startswith("bits_per_byte") else ratio


def _our_stderr(metric: str, values: Sequence[Any]) -> list[float | None]:
    """Standard errors of our tasks, by document: what is written today, and what once was."""
    from leval_tasks.perplexity.metrics import aggregations

    try:
        if metric == "exact_match_stderr":
            scores: dict[str, list[float]] = {}
            for cluster, score in values:
                scores.setdefault(str(cluster), []).append(float(score))
            pairs = [(math.fsum(group), float(len(group))) for group in scores.values()]
            value: Any = float(linearised_ratio(*np.array(pairs).T)[1])
        else:
            pairs = [(float(top), float(bottom)) for top, bottom in values if bottom]
            value = aggregations(metric.removesuffix("_stderr"))[1](values)
    except (TypeError, ValueError, OverflowError) as error:
        raise NotRecomputableError(f"its values in the samples are damaged ({error})") from error
    known = isinstance(value, float) and not math.isnan(value)
    return [value, value * _sandwich_over_cr2(pairs)] if known else [None]


def _sandwich_over_cr2(pairs: Sequence[tuple[float, float]]) -> float:
    """From CR2 to the sandwich with the factor G/(G-1), which older results files hold."""
    totals, sizes = np.array(pairs).T
    ratio, stderr, _ = linearised_ratio(totals, sizes)
    squares = ((totals - ratio * sizes) ** 2).sum() * len(pairs) / (len(pairs) - 1)
    return float(np.sqrt(squares) / sizes.sum() / stderr) if stderr else 1.0


def _stderr_of_mean(values: Sequence[Any] | None) -> float:
    """lm-eval's standard error of a mean, `s / sqrt(n)`; other ones it draws by bootstrap."""
    numbers = [number for value in values or () if (number := finite(value)) is not None]
    if len(numbers) < 2 or len(numbers) != len(values or ()):
        raise NotRecomputableError("a standard error of something other than a mean of numbers")
    mean = math.fsum(numbers) / len(numbers)
    squares = math.fsum((number - mean) ** 2 for number in numbers)
    return math.sqrt(squares / (len(numbers) - 1) / len(numbers))


def group_figures(values: Sequence[tuple[float, float]]) -> list[float]:
    """A group's figure from `(figure, questions)` of its tasks: the mean, by task or question."""
    plain = math.fsum(figure for figure, _ in values) / len(values)
    total = math.fsum(size for _, size in values)
    return [plain, math.fsum(f * size for f, size in values) / total] if total else [plain]
