"""From one task or group of a results file to its scores."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from leval_harness.old_results.fields import finite
from leval_harness.old_results.lm_eval import DocumentsRead, Figure, ResultsFile
from leval_harness.old_results.recompute import (
    NOT_MEASURED,
    NotRecomputableError,
    recompute,
)
from leval_harness.old_results.run_record import Run
from leval_harness.old_results.sample_lines import NOTES
from leval_harness.old_results.samples import Samples
from leval_harness.old_results.scores import Score
from leval_harness.old_results.settings import canonical
from leval_tasks.closed.catalog import TASKS
from leval_tasks.metrics import FAMILY_OF, SIGN, length_of

PRIMARY = ("exact_match", "ood_accuracy", "acc_norm", "acc", "score", "f1")
"""Metrics of which the first one is the main number of a task of ours."""

NO_METRIC = "bypass"
"""Stands where answers were kept and not scored."""

ROUNDING = 1e-9


def task_scores(
    run: Run, index: int, task: str, file: ResultsFile, samples: Samples | None
) -> list[Score]:
    """The scores of one task, one for each metric and filter.

    A figure that must not be shown is `malformed`, and its note says why.

    Args:
        run: whose results they are.
        index: its place in `Results.runs`.
        task: a key of the file's `results`.
        file: the results file.
        samples: of the task; None where none were logged.
    """
    base = _score_without_metric(run, index, task, file, samples)
    return _scores_of(base, file, samples)


def _score_without_metric(
    run: Run, index: int, task: str, file: ResultsFile, samples: Samples | None
) -> Score:
    """What the scores of a task have in common."""
    stated = file.config_of(task).metadata
    data = stated.data or DocumentsRead()
    counts = (file.evaluated(task), stated.documents)
    questions, clusters = (None if n is None else int(n) for n in counts)
    if samples is not None:
        questions, clusters = samples.questions.size, np.unique(samples.clusters).size
    mean_of = samples.mean_of if samples else lambda note: None
    length = stated.length("context_length") or run.context_length
    chance = chance_level(task, stated.chance)
    limit = file.limit_of(task, run.limit)
    fewer = run.has_fewer_documents(task, stated.partial) or file.lacks_questions(task)
    partial = limit is not None or fewer
    separating = _settings(run, task, file, length, data)
    known = questions if partial or task not in FAMILY_OF else None  # ours state what is partial
    if limit is None and known is not None:
        separating["questions_asked"] = f"{known:g}"
        if task in FAMILY_OF and file.lacks_questions(task):  # `--samples`, which no file repeats
            separating |= canonical({"task_hash": file.hashes.get(task)})
        if samples is None and "task_hash" not in separating and file.is_part(task):
            separating["questions_asked"] += f" of run {index}"  # nobody knows which ones
    return Score(
        run=index,
        task=task,
        context_length=length,
        settings=separating,
        n=questions,
        clusters=clusters,
        cut=mean_of("truncated"),
        unparsed=mean_of("unparsed"),
        at_limit=mean_of("reached_limit"),
        thinking_cut=mean_of("thinking_unfinished") or None,
        prompt_tokens=mean_of("prompt_tokens"),
        kept_tokens=mean_of("kept_tokens"),
        chance=chance,
        limit=limit,
        partial=partial,
        sample=data.sample is True or data.source == "sample",
        source=(data.source or "")[:100],
        data=data.fingerprint(),
        python=(data.python_version or "")[:30],
        softmax=(stated.softmax or "")[:30],
        shipped_length=stated.length("shipped_length"),
        claimed_length=stated.length("claimed_length"),
    )


def _settings(
    run: Run, task: str, file: ResultsFile, length: int | None, data: DocumentsRead
) -> dict[str, str]:
    """The settings of the run that decide the task's numbers, and over them the task's own."""
    own = file.separating(task, length, is_ours=task in FAMILY_OF)
    if any(each.metric.isdecimal() for each in file.figures(task)):
        own.pop("max_seq_lengths", None)  # the columns
    merged = {**run.settings, **canonical(own)}
    generates = merged.get("output_type", "generate_until") == "generate_until"
    if not generates or "gen_kwargs" in own:
        merged.pop("task_gen_kwargs", None)
    if not generates:
        merged.pop("gen_kwargs", None)
    if run.context_length is not None and length is not None and run.context_length < length:
        merged["max_length"] = f"{run.context_length}"  # shorter than the texts
    if fingerprint := data.fingerprint():
        merged["data"] = fingerprint
    return merged


def chance_level(task: str, stated: float | None) -> float | None:
    """Expected score of guessing, as a fraction; None where the task does not define one.

    `stated` is what the results file has; without it, what holds whatever the gold answers are.
    """
    if task not in TASKS or not TASKS[task].rule.guess:
        return None
    return TASKS[task].rule.chance(()) if stated is None else stated


def _scores_of(base: Score, file: ResultsFile, samples: Samples | None) -> list[Score]:
    """A score for each figure of a task or group; where there is none, one that says why.

    `base` is what they have in common.
    """
    figures = list(file.figures(base.task))
    figures = [each for each in figures if each.metric not in NOTES]
    if figures and all(each.metric == NO_METRIC for each in figures):
        note = "answers were kept and not scored (--predict_only)"
        return [replace(base, status="unscored", note=note)]
    measured = [each for each in figures if not _is_absent(each, samples)]
    metrics = [each.metric for each in measured]
    main = next((metric for metric in (*PRIMARY, *metrics) if metric in metrics), "")
    scores = [_score(base, each, main, file, samples) for each in measured]
    return scores or [replace(base, status="malformed", note="no metric in the results file")]


def _is_absent(each: Figure, samples: Samples | None) -> bool:
    """Whether no question has the metric: a length or a position that was not asked for."""
    if length_of(each.metric) is not None and each.value == NOT_MEASURED:
        return True
    if samples is None or each.metric in samples.damaged:
        return False
    ratios = samples.ratios(each.metric, each.filter)
    return ratios is not None and not ratios.questions.size


def _score(
    base: Score, each: Figure, main: str, file: ResultsFile, samples: Samples | None
) -> Score:
    """The score of one figure; `main` is the metric whose score is the task's main number."""
    metric, known, number, again = each.metric, each.known, finite(each.value), None
    higher = file.direction(base.task, each)
    why_not = _refusal(base, each, file, samples)
    if samples is not None:
        how = str(file.config_of(base.task).of_metric(metric).get("aggregation") or "")
        with suppress(NotRecomputableError):
            again = recompute(base.task, metric, each.filter, how, samples)
    confirmed = number is not None and again is not None and again.agrees(number)
    if not why_not and again is not None and again.is_certain and not confirmed:
        why_not = f"the samples give {again}, the results file says {number:.8g}"
    bounds = ratios = None
    if samples is not None and confirmed:
        ratios = samples.ratios(metric, each.filter)
        bounds = samples.bounds(metric, each.filter)
        bounds = bounds[::-1] if bounds and higher is False else bounds  # 1 is all wrong
    is_curve = SIGN in metric and (known.unit == "perplexity" or metric.startswith(f"loss{SIGN}"))
    return replace(
        base,
        metric=metric,
        chosen=each.filter,
        context_length=length_of(metric) or base.context_length,
        share=known.unit == "share" and (number is None or 0 <= number <= 1),
        from_samples=confirmed,
        if_wrong=bounds[0] if bounds else None,
        if_right=bounds[1] if bounds else None,
        n=base.n if ratios is None else ratios.questions.size,
        primary=FAMILY_OF.get(base.task) != "effective_context"
        and (base.task not in FAMILY_OF or metric == main or is_curve),
        higher_is_better=higher,
        status="malformed" if why_not else "done",
        note=why_not,
        value=None if why_not else number,
        stderr=None if why_not else finite(each.stderr),
    )


def _refusal(base: Score, each: Figure, file: ResultsFile, samples: Samples | None) -> str:
    """Why a figure must not be shown; empty where nothing contradicts it."""
    number, is_ours = finite(each.value), base.task in FAMILY_OF
    is_share = is_ours and each.known.unit == "share"
    if number is None:
        return "not a finite number"
    if is_share and not -ROUNDING <= number <= 1 + ROUNDING:
        return f"{number:g} is outside 0..1"
    if each.known.unit == "perplexity" and number < 1 - ROUNDING:
        return f"a perplexity of {number:g} is below 1"
    if samples is None:
        return ""
    if samples.bad:
        return f"{samples.bad} lines of the samples file are not JSON"
    evaluated = file.evaluated(base.task)
    if evaluated is not None and evaluated != base.n:
        return f"{evaluated:g} samples were scored, {base.n} are logged"
    if is_ours and each.metric in samples.damaged:
        return "a sample's score is not a number"
    ratios = samples.ratios(each.metric, each.filter) if is_share else None
    if ratios and ((ratios.numerator < 0) | (ratios.numerator > ratios.denominator)).any():
        return "a sample's score is outside 0..1"
    return ""


def group_scores(group: str, file: ResultsFile, members: Sequence[Score]) -> list[Score]:
    """The scores of a group of tasks, with the settings of its `members`, a score of each.

    Empty where lm-eval computed no figure for the group, or none of its tasks is there. Which tasks
    they are, and how the group makes one figure of theirs, separates too.
    """
    if not members or not any(file.figures(group)):
        return []
    members = sorted(members, key=lambda member: member.task)
    names = dict.fromkeys(name for member in members for name in member.settings)
    lengths = {member.context_length for member in members}
    own = file.separating(group, None, is_ours=False)
    settings = {
        **{name: _joined([each.settings.get(name, "unset") for each in members]) for name in names},
        "group_tasks": " + ".join(member.task for member in members),
        "group_settings": {name: each for name, each in own.items() if each not in (None, {})},
    }
    base = Score(
        run=members[0].run,
        task=group,
        context_length=lengths.pop() if len(lengths) == 1 else None,
        members=len(members),
        settings=canonical(settings),
        limit=next((each.limit for each in members if each.limit is not None), None),
        partial=any(member.partial for member in members),
        sample=any(member.sample for member in members),
    )
    return _scores_of(base, file, None)


def _joined(texts: Sequence[str]) -> str:
    """A setting of several tasks: each one's, in the order of the tasks, unless all agree."""
    return texts[0] if len(set(texts)) == 1 else " + ".join(texts)


def stand_for(scores: dict[str, list[Score]], file: ResultsFile) -> None:
    """Let a group's figure stand in tables for its tasks, that of the outermost one for groups.

    Our own groups stand for nothing: their tasks are the columns, with an average of them.
    """
    taken: set[str] = set()
    for group in file.groups:
        if not scores.get(group):
            continue
        if group in FAMILY_OF:
            scores[group] = [replace(each, primary=False) for each in scores[group]]
            continue
        inside = file.below(group) - taken
        taken |= inside
        for name in inside:
            scores[name] = [
                replace(each, primary=False, group=each.group or group)
                for each in scores.get(name, ())
            ]


def in_one_unit(scores: list[Score]) -> list[Score]:
    """Take no metric for a share that has a number above 1 anywhere.

    A number of at most 1 of it may be a share all the same: the two are not ranked together.
    """

    def of(score: Score) -> tuple[str, str, str]:
        return score.task, score.metric, score.chosen

    raw = {of(score) for score in scores if score.share is False and score.value is not None}
    return [
        replace(score, share=False, settings={**score.settings, "scale": "at most 1"})
        if score.share and of(score) in raw
        else score
        for score in scores
    ]
