"""One task of a results file as scores."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from leval_harness.results.fields import finite
from leval_harness.results.lm_eval import Figure, ResultsFile, figures_of
from leval_harness.results.metrics import (
    NO_METRIC,
    NOT_MEASURED,
    direction,
    figure,
    is_share,
    length_of,
    parts_of,
)
from leval_harness.results.refusals import refusal
from leval_harness.results.run_record import Run
from leval_harness.results.samples import NOT_SCORES, Samples
from leval_harness.results.scores import FAMILY_OF, Score
from leval_harness.results.task_facts import score_without_metric
from leval_tasks.metric_names import SIGN

PRIMARY = ("exact_match", "ood_accuracy", "acc_norm", "acc", "score", "f1")
"""Metrics of which the first one is the main number of a task of ours."""

ONLY_ANSWERS = "answers were kept and not scored (--predict_only)"


def task_scores(
    run: Run, index: int, task: str, file: ResultsFile, samples: Samples | None
) -> list[Score]:
    """The scores of one task, one a metric and filter; what must not be shown is `malformed`.

    `index` is the run's place in `Results.runs`, `task` a key of the file's `results`.
    """
    base = score_without_metric(run, index, task, file, samples)
    return scores_of(base, file.results[task], file, samples)


def scores_of(
    base: Score, values: Mapping[str, Any], file: ResultsFile, samples: Samples | None
) -> list[Score]:
    """A score a figure of a task or group; where there is none, one that says why.

    `base` is what they share.
    """
    figures = [each for each in figures_of(values) if each.metric not in NOT_SCORES]
    if figures and all(each.metric in NO_METRIC for each in figures):
        return [replace(base, status="unscored", note=ONLY_ANSWERS)]
    measured = [each for each in figures if not _is_absent(each, samples)]
    metrics = [each.metric for each in measured]
    main = next((metric for metric in (*PRIMARY, *metrics) if metric in metrics), "")
    scores = [_score(base, each, main, file, samples) for each in measured]
    return scores or [replace(base, status="malformed", note="no metric in the results file")]


def _is_absent(each: Figure, samples: Samples | None) -> bool:
    """Whether nothing was measured: a length that was not asked, a position without a question."""
    if length_of(each.metric) is not None and each.value == NOT_MEASURED:
        return True
    ratios = samples.ratios(each.metric, each.chosen) if samples else None
    nothing = ratios is not None and not ratios.questions.size
    return nothing and samples is not None and each.metric not in samples.damaged


def _score(
    base: Score, each: Figure, main: str, file: ResultsFile, samples: Samples | None
) -> Score:
    """The score of one figure; `main` is the metric whose score is the task's main number."""
    metric, number, ratios = each.metric, finite(each.value), None
    again = _from_samples(base.task, each, file, samples)
    fits = again is not None and number is not None and _equal(again[0], number)
    bounds, higher = None, direction(metric, file.direction(base.task, metric))
    if samples is not None and fits:
        ratios = samples.ratios(metric, each.chosen)
        bounds = samples.bounds(metric, each.chosen)
        bounds = bounds[::-1] if bounds and higher is False else bounds  # 1 is all wrong
    why_not = refusal(base, each, samples, file.asked(base.task))
    why_not = why_not or _contradiction(number, again)
    return replace(
        base,
        metric=metric,
        chosen=each.chosen,
        context_length=length_of(metric) or base.context_length,
        share=_is_share(base.task, metric, number),
        from_samples=fits,
        if_wrong=bounds[0] if bounds else None,
        if_right=bounds[1] if bounds else None,
        n=base.n if ratios is None else ratios.questions.size,
        primary=base.task not in FAMILY_OF or metric == main or _is_of_curve(metric),
        higher_is_better=higher,
        status="malformed" if why_not else "done",
        note=why_not,
        value=None if why_not else number,
        stderr=None if why_not else finite(each.stderr),
    )


def _is_share(task: str, metric: str, number: float | None) -> bool:
    family = FAMILY_OF.get(task)
    known = is_share(task, metric) if family is None else family in ("closed", "posgen")
    return known and (number is None or 0 <= number <= 1)


def _is_of_curve(metric: str) -> bool:
    """Whether a metric of ours is a main number at each length."""
    family, sign, _ = metric.partition(SIGN)
    return bool(sign) and ("perplexity" in family or family == "loss")


def _from_samples(
    task: str, each: Figure, file: ResultsFile, samples: Samples | None
) -> tuple[float, bool] | None:
    """What a figure is by its samples, and whether it must be that; None where they do not tell."""
    ratios = samples.ratios(each.metric, each.chosen) if samples else None
    if samples is None or ratios is None or not ratios.questions.size:
        return None
    how = file.config_of(task).aggregation(each.metric)
    again = figure(each.metric, how, ratios, is_ours=task in FAMILY_OF)
    number = finite(each.value)
    if number is None or _equal(again[0], number):
        return again
    by_part = _mean_of_parts(task, each, samples)
    return None if by_part is not None and _equal(by_part, number) else again


def _mean_of_parts(task: str, each: Figure, samples: Samples) -> float | None:
    """A score whose parts weigh the same, where not every part has as many questions."""
    found = [samples.ratios(part, each.chosen) for part in parts_of(task, each.metric)]
    means = [part.numerator.mean() for part in found if part is not None and part.questions.size]
    return float(np.mean(means)) if means else None


def _contradiction(number: float | None, again: tuple[float, bool] | None) -> str:
    """What the samples say against a number that they determine."""
    if number is None or again is None:
        return ""
    value, must_be = again
    if must_be and not _equal(value, number):
        return f"the samples give {value:.6g}, the results file says {number:.6g}"
    return ""


def _equal(again: float, number: float) -> bool:
    return math.isclose(again, number, rel_tol=1e-6, abs_tol=1e-6)
