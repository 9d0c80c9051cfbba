"""One task of a results file as scores."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from leval_leaderboard.results.fields import finite
from leval_leaderboard.results.lm_eval import DocumentsRead, ResultsFile, SampleCounts
from leval_leaderboard.results.runs import Run
from leval_leaderboard.results.samples import (
    NOT_SCORES,
    Samples,
    gold_of,
    parsed_lines,
    rows_of_first_filter,
)
from leval_leaderboard.results.scores import FAMILY_OF, Score, lower_is_better
from leval_tasks.closed.catalog import TASKS

PRIMARY = ("exact_match", "ood_accuracy", "acc_norm", "acc", "score", "f1")
"""Metrics of which a task's first one is its main number."""

OF_SOME_QUESTIONS = ("first", "second", "third")
"""Topic retrieval asks for one of three topics in turn: each question has one of these."""


def task_scores(
    run: Run, index: int, task: str, file: ResultsFile, samples: Samples | None
) -> list[Score]:
    """The scores of one task, one a metric; what must not be shown is `malformed`.

    `index` is the run's place in `Results.runs`, `task` a key of the file's `results`.
    """
    counts = file.counts.get(task) or SampleCounts()
    base = _common(run, index, task, file, samples)
    metrics = _metrics(file.results[task])
    better = file.higher_is_better.get(task)
    better = better if isinstance(better, dict) else {}
    main = next((m for m in PRIMARY if m in metrics), next(iter(metrics), ""))
    scores = []
    for metric, (value, stderr) in metrics.items():
        number = finite(value)
        problem = _problem(base, metric, number, samples, counts.effective)
        scores.append(
            replace(
                base,
                metric=metric,
                primary=metric == main or ("perplexity" in metric and "@" in metric),
                higher_is_better=better.get(metric) is not False and not lower_is_better(metric),
                status="malformed" if problem else "done",
                note=problem,
                value=None if problem else number,
                stderr=None if problem else finite(stderr),
            )
        )
    return scores or [replace(base, status="malformed", note="no metric in the results file")]


def _metrics(values: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """`metric -> (value, standard error)`, of the first filter that has it."""
    first_filter: dict[str, str] = {}
    metrics: dict[str, tuple[Any, Any]] = {}
    for key, value in values.items():
        metric, _, chosen = key.partition(",")
        if not chosen or metric.endswith("_stderr") or metric in NOT_SCORES:
            continue
        if first_filter.setdefault(metric, chosen) == chosen:
            metrics[metric[:100]] = (value, values.get(f"{metric}_stderr,{chosen}"))
    return metrics


def _common(run: Run, index: int, task: str, file: ResultsFile, samples: Samples | None) -> Score:
    """What the scores of a task share; what the file states is not computed again."""
    stated, counts = file.config_of(task).metadata, file.counts.get(task) or SampleCounts()
    data = stated.data or DocumentsRead(sample=stated.data_dir == "sample")
    original, asked = counts.original, counts.effective
    limited = original is not None and asked is not None and asked < original
    questions, clusters = (None if n is None else int(n) for n in (asked, stated.documents))
    if samples is not None:
        questions, clusters = samples.questions.size, np.unique(samples.clusters).size
    means = samples.means if samples else {}
    return Score(
        run=index,
        task=task[:200],
        n=questions,
        clusters=clusters,
        cut=means.get("truncated"),
        unparsed=means.get("unparsed"),
        prompt_tokens=means.get("prompt_tokens"),
        kept_tokens=means.get("kept_tokens"),
        chance=chance_level(task, stated.chance, _golds(samples)),
        partial=run.is_partial(task, stated.partial) or limited,
        sample=data.sample is True or data.source == "sample",
        source=(data.source or "")[:100],
        data=data.fingerprint(),
        python=(data.python_version or "")[:30],
        softmax=(stated.softmax or "")[:30],
    )


def _golds(samples: Samples | None) -> Iterable[str]:
    for row in rows_of_first_filter(parsed_lines(samples.path)) if samples else ():
        yield gold_of(row) or ""


def chance_level(task: str, stated: float | None, golds: Iterable[str]) -> float | None:
    """Expected score of guessing, as a fraction; None where the task does not define one.

    `stated` is what the results file says; the gold answers are read for older files, which do not.
    """
    if task not in TASKS or not TASKS[task].rule.guess:
        return None
    return TASKS[task].rule.chance(list(golds)) if stated is None else stated


def _problem(
    base: Score, metric: str, number: float | None, samples: Samples | None, asked: float | None
) -> str:
    """Why a number must not be shown, or nothing."""
    if number is None:
        return "not a finite number"
    are_fractions = FAMILY_OF.get(base.task) in ("closed", "posgen")
    if are_fractions and "@" not in metric and not -1e-9 <= number <= 1 + 1e-9:
        return f"{number:g} is outside 0..1"
    if "perplexity" in metric and number < 1 - 1e-9:
        return f"a perplexity of {number:g} is below 1"
    if samples is None:
        return ""
    if samples.bad:
        return f"{samples.bad} lines of the samples file are not JSON"
    if asked is not None and asked != base.n:
        return f"{asked:g} samples were scored, {base.n} are logged"
    return _problem_of_samples(metric, number, samples) if are_fractions else ""


def _problem_of_samples(metric: str, number: float, samples: Samples) -> str:
    ratios = samples.ratios(metric)
    if ratios is None:
        return ""
    if ratios.questions.size != samples.questions.size and metric not in OF_SOME_QUESTIONS:
        return "a sample's score is not a number"
    tops, bottoms = ratios.numerator, ratios.denominator
    if ((bottoms == 1) & ((tops < 0) | (tops > 1))).any():
        return "a sample's score is outside 0..1"
    again = tops.sum() / bottoms.sum() if tops.size else number
    if ratios.are_scores and abs(again - number) > 1e-6:
        return f"the samples give {again:.6g}, the results file says {number:.6g}"
    return ""
