"""One task of a results file as scores."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from leval_leaderboard.results.fields import LONGEST_METRIC, finite, short_name
from leval_leaderboard.results.lm_eval import ResultsFile
from leval_leaderboard.results.lm_eval_task import DocumentsRead, SampleCounts
from leval_leaderboard.results.metrics import (
    NO_METRIC,
    NOT_MEASURED,
    direction,
    figure,
    is_of_nats,
    is_share,
    length_of,
)
from leval_leaderboard.results.ratios import Ratios
from leval_leaderboard.results.runs import Run
from leval_leaderboard.results.sample_lines import gold_of, parsed_lines, rows_of_first_filter
from leval_leaderboard.results.samples import NOT_SCORES, Samples
from leval_leaderboard.results.scores import FAMILY_OF, Score
from leval_leaderboard.results.settings import canonical
from leval_tasks.closed.catalog import TASKS
from leval_tasks.closed.definition import SCORES

PRIMARY = ("exact_match", "ood_accuracy", "acc_norm", "acc", "score", "f1")
"""Metrics of which the first one is the main number of a task of ours."""

ONLY_ANSWERS = "answers were kept and not scored (--predict_only)"


class Figure(NamedTuple):
    """One number of a results file."""

    metric: str
    chosen: str
    value: Any
    stderr: Any


def task_scores(
    run: Run, index: int, task: str, file: ResultsFile, samples: Samples | None
) -> list[Score]:
    """The scores of one task, one a metric and filter; what must not be shown is `malformed`.

    `index` is the run's place in `Results.runs`, `task` a key of the file's `results`.
    """
    base = _common(run, index, task, file, samples)
    return _scores(base, file.results[task], file, samples)


def group_scores(group: str, file: ResultsFile, members: Sequence[Score]) -> list[Score]:
    """The scores of a group of tasks; settings are those of its members, a score of each.

    None where lm-eval computed no figure for the group, or none of its tasks is there.
    """
    values = file.groups.get(group)
    if not members or not isinstance(values, dict) or not any(figures_of(values)):
        return []
    names = dict.fromkeys(name for member in members for name in member.settings)
    settings = {
        name: " + ".join(sorted({member.settings.get(name, "unset") for member in members}))
        for name in names
    }
    lengths = {member.context_length for member in members}
    base = Score(
        run=members[0].run,
        task=group,
        context_length=lengths.pop() if len(lengths) == 1 else None,
        members=len(members),
        settings=canonical(settings),
        partial=any(member.partial for member in members),
        sample=any(member.sample for member in members),
    )
    return _scores(base, values, file, None)


def _scores(
    base: Score, values: Mapping[str, Any], file: ResultsFile, samples: Samples | None
) -> list[Score]:
    figures = [each for each in figures_of(values) if each.metric not in NOT_SCORES]
    if figures and all(each.metric in NO_METRIC for each in figures):
        return [replace(base, status="unscored", note=ONLY_ANSWERS)]
    asked = [each for each in figures if not _is_absent(each, samples)]
    main = next((m for m in PRIMARY if any(each.metric == m for each in asked)), "")
    main = main or (asked[0].metric if asked else "")
    scores = [_score(base, each, main, file, samples) for each in asked]
    return scores or [replace(base, status="malformed", note="no metric in the results file")]


def figures_of(values: Mapping[str, Any]) -> Iterator[Figure]:
    """The numbers of a task: `metric,filter` of today's lm-eval, `metric` alone of old ones."""
    is_old = not any("," in key for key in values)
    for key, value in values.items():
        metric, comma, chosen = key.partition(",")
        if not (comma or (is_old and isinstance(value, int | float))):
            continue
        base = metric.removesuffix("_stderr")
        if base != metric and f"{base}{comma}{chosen}" in values:
            continue
        yield Figure(
            short_name(metric, LONGEST_METRIC),
            short_name(chosen, LONGEST_METRIC),
            value,
            values.get(f"{metric}_stderr{comma}{chosen}"),
        )


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
    family, metric = FAMILY_OF.get(base.task), each.metric
    number, length = finite(each.value), length_of(metric)
    ratios = samples.ratios(metric, each.chosen) if samples else None
    again = None
    if ratios is not None and ratios.questions.size:
        how = file.config_of(base.task).aggregation(metric)
        again = figure(metric, how, ratios, is_ours=family is not None)
        if number is not None and not _equal(again[0], number):
            by_part = _mean_of_parts(base.task, metric, each.chosen, samples)
            again = again if by_part is None or not _equal(by_part, number) else None
    counts = file.counts.get(base.task) or SampleCounts()
    asked = _asked(file.results.get(base.task, {}), counts)
    problem = _problem(base, metric, each.chosen, number, samples, asked)
    problem = problem or _contradiction(number, again)
    better = file.higher_is_better.get(base.task, file.config_of(base.task).direction(metric))
    share = family in ("closed", "posgen") or (family is None and is_share(base.task, metric))
    share = share and (number is None or 0 <= number <= 1)
    at_one_length = "@" in metric and is_of_nats(metric)
    fits = again is not None and number is not None and _equal(again[0], number)
    bounds = samples.bounds(metric, each.chosen) if fits and samples is not None else None
    return replace(
        base,
        metric=metric,
        chosen=each.chosen,
        context_length=length or base.context_length,
        share=share,
        from_samples=fits,
        if_wrong=bounds[0] if bounds else None,
        if_right=bounds[1] if bounds else None,
        n=ratios.questions.size if fits and ratios is not None else base.n,
        primary=family is None or metric == main or (at_one_length and _is_curve(metric)),
        higher_is_better=direction(
            metric, better.get(metric) if isinstance(better, dict) else better
        ),
        status="malformed" if problem else "done",
        note=problem,
        value=None if problem else number,
        stderr=None if problem else finite(each.stderr),
    )


def _is_curve(metric: str) -> bool:
    """Whether each length of a metric is a main number."""
    return "perplexity" in metric or metric.startswith("loss@")


def _mean_of_parts(task: str, metric: str, chosen: str, samples: Samples | None) -> float | None:
    """A score whose parts weigh the same, where not every part has as many questions."""
    parts = TASKS[task].rule.parts if task in TASKS and metric in SCORES else ()
    found = [samples.ratios(part, chosen) for part in parts] if samples else []
    means = [each.numerator.mean() for each in found if each is not None and each.questions.size]
    return float(np.mean(means)) if means else None


def _common(run: Run, index: int, task: str, file: ResultsFile, samples: Samples | None) -> Score:
    """What the scores of a task share; what the file states is not computed again."""
    stated, counts = file.config_of(task).stated, file.counts.get(task) or SampleCounts()
    data = stated.data or DocumentsRead(sample=stated.data_dir == "sample")
    original, asked = counts.original, _asked(file.results[task], counts)
    limited = original is not None and asked is not None and asked < original
    left_out = bool(stated.skipped_documents) or bool(finite(_failed(file.results[task])))
    questions, clusters = (None if n is None else int(n) for n in (asked, stated.documents))
    if samples is not None:
        questions, clusters = samples.questions.size, np.unique(samples.clusters).size
    means = samples.means if samples else {}
    length = stated.context_length or run.context_length
    partial = run.is_partial(task, stated.partial) or limited or left_out
    decided = _settings(run, task, file, length, data)
    known = questions if partial or task not in FAMILY_OF else None  # ours say what is partial
    if run.limit is None and known is not None:
        decided["questions_asked"] = f"{known:g}"
    return Score(
        run=index,
        task=task,
        context_length=length,
        settings=decided,
        n=questions,
        clusters=clusters,
        cut=means.get("truncated"),
        unparsed=means.get("unparsed"),
        at_limit=means.get("reached_limit"),
        thinking_cut=means.get("thinking_unfinished") or None,
        prompt_tokens=means.get("prompt_tokens"),
        kept_tokens=means.get("kept_tokens"),
        chance=chance_level(task, stated.chance, _golds(samples)),
        partial=partial,
        sample=data.sample is True or data.source == "sample",
        source=(data.source or "")[:100],
        data=data.fingerprint(),
        python=(data.python_version or "")[:30],
        softmax=(stated.softmax or "")[:30],
        shipped_length=_length(stated.shipped_length),
        claimed_length=_length(stated.claimed_length),
    )


def _asked(values: Mapping[str, Any], counts: SampleCounts) -> float | None:
    """How many questions were asked; some versions count those that were not, given `--samples`."""
    known = (counts.effective, finite(values.get("sample_len")))
    return min((count for count in known if count is not None), default=None)


def _length(stated: float | None) -> int | None:
    return int(stated) if stated and stated > 0 else None


def _settings(
    run: Run, task: str, file: ResultsFile, length: int | None, data: DocumentsRead
) -> dict[str, str]:
    """What decides the task's numbers: what holds for the run, and over it what the task states."""
    own = file.deciding_of(task, length, is_ours=task in FAMILY_OF)
    if any(length_of(each.metric) for each in figures_of(file.results[task])):
        own.pop("max_seq_lengths", None)  # the columns
    merged = {**run.settings, **canonical(own)}
    generates = merged.get("output_type", "generate_until") == "generate_until"
    if not generates or "gen_kwargs" in own:
        merged.pop("task_gen_kwargs", None)
    if not generates:
        merged.pop("gen_kwargs", None)
    if run.context_length is not None and run.context_length != length:
        merged["max_length"] = f"{run.context_length}"
    if fingerprint := data.fingerprint():
        merged["data"] = fingerprint
    return merged


def _failed(values: Mapping[str, Any]) -> object:
    return next((value for key, value in values.items() if key.startswith("failed,")), None)


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


def _equal(again: float, number: float) -> bool:
    return math.isclose(again, number, rel_tol=1e-6, abs_tol=1e-6)


def _problem(
    base: Score,
    metric: str,
    chosen: str,
    number: float | None,
    samples: Samples | None,
    asked: float | None,
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
    if metric in samples.damaged and base.task in FAMILY_OF:
        return "a sample's score is not a number"
    ratios = samples.ratios(metric, chosen) if are_fractions else None
    if ratios is not None and _outside(ratios).any():
        return "a sample's score is outside 0..1"
    return ""


def _outside(ratios: Ratios) -> Any:
    return (ratios.denominator == 1) & ((ratios.numerator < 0) | (ratios.numerator > 1))


def _contradiction(number: float | None, again: tuple[float, bool] | None) -> str:
    """What the samples say against a number that they determine."""
    if number is None or again is None:
        return ""
    value, must_be = again
    if must_be and not _equal(value, number):
        return f"the samples give {value:.6g}, the results file says {number:.6g}"
    return ""
