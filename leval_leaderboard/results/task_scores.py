"""One task of a results file as scores."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from leval_leaderboard.results.chance import chance_level
from leval_leaderboard.results.fields import finite
from leval_leaderboard.results.lm_eval import DocumentsRead, ResultsFile
from leval_leaderboard.results.runs import Run
from leval_leaderboard.results.samples import NOT_SCORES, LoggedSamples
from leval_leaderboard.results.scores import Score, lower_is_better

PRIMARY = ("exact_match", "ood_accuracy", "acc_norm", "acc", "score", "f1")
"""Metrics of which a task's first one is its main number."""

OF_SOME_QUESTIONS = ("first", "second", "third")
"""Topic retrieval asks for one of three topics in turn: each question has one of these."""


def task_scores(
    run: Run, index: int, task: str, file: ResultsFile, samples: LoggedSamples | None
) -> list[Score]:
    """The scores of one task, one a metric; what must not be shown is `malformed`.

    Args:
        run: the run.
        index: its place in `Results.runs`.
        task: a key of the file's `results`.
        file: the results file.
        samples: what the task logged.
    """
    values = file.results[task]
    counts = file.counts_of(task)
    base = _common(run, index, task, file, samples)
    metrics = _metrics(values)
    better = file.higher_is_better.get(task)
    better = better if isinstance(better, dict) else {}
    main = next((m for m in PRIMARY if m in metrics), next(iter(metrics), ""))
    scores = []
    for metric, (value, stderr) in metrics.items():
        number = finite(value)
        score = replace(
            base,
            metric=metric,
            primary=metric == main or ("perplexity" in metric and "@" in metric),
            higher_is_better=better.get(metric) is not False and not lower_is_better(metric),
        )
        problem = _problem(base.task, metric, number, samples, counts.effective)
        if problem:
            score = replace(score, status="malformed", note=problem)
        else:
            score = replace(score, value=number, stderr=finite(stderr))
        scores.append(score)
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


def _common(
    run: Run, index: int, task: str, file: ResultsFile, samples: LoggedSamples | None
) -> Score:
    """What the scores of a task share; what the file states is not computed again."""
    config = file.config_of(task)
    counts = file.counts_of(task)
    stated = config.metadata
    data = stated.data or DocumentsRead(sample=stated.data_dir == "sample")
    left_out = stated.partial
    if left_out is None:  # older results
        left_out = run.num_docs is not None and task.startswith("leval_")
    original, effective = counts.original, counts.effective
    limited = original is not None and effective is not None and effective < original
    score = Score(
        run=index,
        task=task[:200],
        n=None if effective is None else int(effective),
        clusters=None if stated.documents is None else int(stated.documents),
        chance=chance_level(task, stated.chance, ()),
        partial=run.limit is not None or left_out or limited,
        sample=data.sample is True or data.source == "sample",
        source=(data.source or "")[:100],
        data=data.fingerprint(),
        python=(data.python_version or "")[:30],
        softmax=(stated.softmax or "")[:30],
    )
    if samples is None:
        return score
    means = {name: _mean(values) for name, values in samples.flags.items()}
    return replace(
        score,
        n=len(samples.questions),
        clusters=len(set(samples.clusters)),
        cut=means["truncated"],
        unparsed=means["unparsed"],
        prompt_tokens=means["prompt_tokens"],
        kept_tokens=means["kept_tokens"],
        chance=chance_level(task, stated.chance, samples.golds),
    )


def _mean(values: list[float]) -> float | None:
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else None


def _problem(
    task: str, metric: str, number: float | None, samples: LoggedSamples | None, asked: float | None
) -> str:
    """Why a number must not be shown, or nothing."""
    if number is None:
        return "not a finite number"
    ours = task.startswith(("leval_", "posgen_"))
    if ours and "@" not in metric and not -1e-9 <= number <= 1 + 1e-9:
        return f"{number:g} is outside 0..1"
    if "perplexity" in metric and number < 1 - 1e-9:
        return f"a perplexity of {number:g} is below 1"
    if samples is None:
        return ""
    if samples.bad:
        return f"{samples.bad} lines of the samples file are not JSON"
    if asked is not None and asked != len(samples.questions):
        return f"{asked:g} samples were scored, {len(samples.questions)} are logged"
    if ours and metric in samples.metrics:
        return _problem_of_samples(metric, number, samples)
    return ""


def _problem_of_samples(metric: str, number: float, samples: LoggedSamples) -> str:
    pairs = [pair for pair in samples.metrics[metric] if pair is not None]
    if len(pairs) != len(samples.questions) and metric not in OF_SOME_QUESTIONS:
        return "a sample's score is not a number"
    if any(bottom == 1.0 and not 0 <= top <= 1 for top, bottom in pairs):
        return "a sample's score is outside 0..1"
    again = sum(top for top, _ in pairs) / sum(bottom for _, bottom in pairs)
    if all(bottom == 1.0 for _, bottom in pairs) and abs(again - number) > 1e-6:
        return f"the samples give {again:.6g}, the results file says {number:.6g}"
    return ""
