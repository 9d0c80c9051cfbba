"""A figure of a results file, computed again from the logged samples.

Loading uses it to refuse a figure that its samples contradict, `--verify` to check every figure.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from leval_harness.old_results.fields import finite
from leval_harness.old_results.samples import Samples
from leval_tasks.aggregation import aggregations, stderr_of_mean
from leval_tasks.closed.catalog import TASKS
from leval_tasks.closed.definition import SCORES
from leval_tasks.closed.rules import mean_of_parts
from leval_tasks.metrics import FAMILY_OF, NOT_AVAILABLE, length_of, metric_of
from leval_tasks.statistics.clustered import Ratios

NOT_MEASURED = -1.0
"""What RULER writes for a length without questions."""

STATED = {
    "mean": "mean",
    "perplexity": "perplexity",
    "weighted_perplexity": "perplexity",
    "bits_per_byte": "bits",
}
"""Aggregation in a task's `metric_list` -> the one of `leval_tasks.metrics.Metric`."""


class NotRecomputableError(ValueError):
    """The logged samples do not determine a figure; the message says why."""


class Recomputed(NamedTuple):
    """What the samples give for a figure.

    Attributes:
        possible: the values that the figure may have.
        is_certain: whether it must have one of them; False where the task may aggregate otherwise.
    """

    possible: tuple[float | str, ...]
    is_certain: bool = True

    def agrees(self, stated: object) -> bool:
        """Whether a results file states one of the values, but for rounding."""
        number = finite(stated)
        return any(
            value == stated
            if isinstance(value, str) or number is None
            else math.isclose(value, number, rel_tol=1e-6, abs_tol=1e-9)
            for value in self.possible
        )

    def __str__(self) -> str:
        return " or ".join(v if isinstance(v, str) else f"{v:.8g}" for v in self.possible)


def recompute(task: str, metric: str, chosen: str, stated_how: str, samples: Samples) -> Recomputed:
    """A task's figure, or its standard error, from its samples.

    Args:
        task: its name.
        metric: name of the figure, which ends in `_stderr` for a standard error.
        chosen: the filter.
        stated_how: aggregation that the task's configuration names; empty if it names none.
        samples: of the task.

    Raises:
        NotRecomputableError: the samples do not determine it.
    """
    measured, is_ours = metric.removesuffix("_stderr"), task in FAMILY_OF
    known = metric_of(measured, task)
    if metric in samples.notes:
        return Recomputed((float(np.nanmean(samples.notes[metric])),))
    ratios = samples.ratios(measured, chosen)
    if ratios is None:
        raise NotRecomputableError("the samples do not log it")
    if not ratios.questions.size:
        if measured in samples.damaged:
            raise NotRecomputableError("its values in the samples are neither numbers nor ratios")
        return Recomputed(
            (NOT_AVAILABLE, NOT_MEASURED) if length_of(measured) else (NOT_AVAILABLE,)
        )
    aggregation = STATED.get(stated_how, known.aggregation if is_ours or not stated_how else "own")
    if metric != measured and not is_ours:
        return Recomputed((_stderr_of_mean(ratios, samples),), aggregation == "mean")
    # a metric of any name that lm-eval aggregates as a loss holds log-likelihoods
    is_negated = not is_ours and aggregation in ("perplexity", "bits") and known.kind != "loss"
    numerators = -ratios.numerator if is_negated else ratios.numerator
    pairs = list(zip(numerators.tolist(), ratios.denominator.tolist(), strict=True))
    value, stderr = aggregations(aggregation)
    if metric != measured and known.kind == "loss":
        return Recomputed((stderr(pairs),))
    if metric != measured:
        of_clusters = zip(ratios.clusters.tolist(), ratios.numerator.tolist(), strict=True)
        return Recomputed((stderr_of_mean(of_clusters),))
    if parts := TASKS[task].rule.parts if task in TASKS and metric in SCORES else ():
        has = {part: samples.has(part, chosen) for part in parts}
        places = np.flatnonzero(samples.has(metric, chosen))
        parts_of = [tuple(part for part in parts if has[part][at]) for at in places]
        return Recomputed((mean_of_parts(ratios.numerator.tolist(), parts_of),))
    return Recomputed((value(pairs),), aggregation != "own")


def _stderr_of_mean(ratios: Ratios, samples: Samples) -> float:
    """lm-eval's standard error of a mean, `s / sqrt(n)`; others it draws by bootstrap."""
    n = ratios.questions.size
    if n < 2 or n != samples.questions.size or not ratios.are_scores:
        raise NotRecomputableError("a standard error of something other than a mean of numbers")
    return float(stats.sem(ratios.numerator))


def group_figure(key: str, parts: Sequence[Any]) -> Recomputed:
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
    by_size = (statistics.fmean(figures, sizes),) if math.fsum(sizes) else ()
    return Recomputed((plain, *by_size))
