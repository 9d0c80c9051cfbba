"""Notes below tables: how numbers were computed, and what is needed to judge or repeat them."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from leval_harness.analysis import Analysis, Entry
from leval_harness.analysis.entries import UNKNOWN_DIRECTION
from leval_harness.analysis.labels import PRECISE_SOFTMAX, counted, task_label
from leval_harness.old_results import Run, Score
from leval_harness.old_results.posgen import PosGenResult
from leval_harness.old_tables.published import CEILING, PUBLISHED_MODULUS
from leval_tasks.closed.catalog import TASKS
from leval_tasks.statistics.paired import ASSUMED, CANNOT_TELL, SIGNIFICANT


def table_notes(
    entries: Sequence[Entry], analysis: Analysis, average: bool = True
) -> tuple[str, ...]:
    """Notes below a table of these entries, those that apply.

    `average` is False where the paper's six tasks are not complete.
    """
    done = [entry for entry in entries if entry.score.status == "done"]
    scores = [entry.score for entry in done]
    intervals = {entry.interval for entry in done}
    baselines = sorted({analysis.baselines[entry.block] for entry in entries} - {""})
    differences = [entry.difference for entry in done if entry.difference]
    notes = {
        "sample: made with the bundled sample, which only shows that everything runs; its scores "
        "say nothing about L-Eval": any(score.sample for score in scores),
        "± where no samples were logged: lm-eval's own standard error": "reported" in intervals,
        "±: standard error, clustered by document (CR2)": intervals & {"clustered", "exact"},
        f"{SIGNIFICANT}: differs from the baseline ({', '.join(baselines)}) on the same "
        "questions: sign-flip over documents, McNemar's exact test where each question is its "
        "own document; Holm-corrected within the task, 5% level": baselines and differences,
        **dict.fromkeys(_too_few(done), True),
        f"{CANNOT_TELL} where an interval of the difference leaves out zero: {ASSUMED}": any(
            each.mark == CANNOT_TELL and each.beside_zero for each in differences
        ),
        "No average: fewer than six tasks": not average,
        "Truncated: share of the questions whose document was shortened, %; No answer found: share "
        "of the answers in which no option or number was found, %": any(
            score.cut is not None for score in scores
        ),
        "Hit max tokens: share of the answers that the generation limit ended, %": any(
            score.at_limit is not None for score in scores
        ),
        "Thinking cut: share of the answers that ended before their thinking did, %; in square "
        "brackets the score if all of these were wrong, and if all were right": any(
            score.thinking_cut for score in scores
        ),
        "Semi-recursive: a model that never uses the far token is right in (1 + 1/modulus)/2 of "
        f"all places, {CEILING} with modulus {PUBLISHED_MODULUS}": any(
            score.task == "posgen_semi_recursive" for score in scores
        ),
        chance_note(): any(score.chance is not None for score in scores),
        "softmax: not float32, or not known to be: bfloat16 shifts a perplexity by some tenths of "
        "a percent": any(score.softmax not in PRECISE_SOFTMAX for score in scores),
        "partial: run with a limit, never ranked beside full runs": any(
            score.partial for score in scores
        ),
        "In brackets: the exact 95% interval; all answers are right, or all wrong": any(
            entry.interval == "exact" and entry.score.finished and entry.score.stderr is None
            for entry in done
        ),
        "Without ±: no standard error is known: too few documents, all with one score, or a metric "
        "that has none": any(entry.interval == "none" and entry.score.finished for entry in done),
        **dict.fromkeys(_not_ranked(done), True),
        **dict.fromkeys(_unpaired(done), True),
        **dict.fromkeys(_in_groups(scores, analysis), True),
    }
    return tuple(note for note, applies in notes.items() if applies)


def chance_note() -> str:
    """What a guess would score in each closed-ended task, in words."""
    titles: dict[tuple[bool, str, str], list[str]] = {}
    sentences = []
    for task in TASKS.values():
        level = task.rule.chance(())
        if level is not None:
            share = f" ({100 * level:.0f}%)" if level else ""
            titles.setdefault((not level, task.rule.guess, share), []).append(task.title)
        elif task.rule.guess:
            sentences.append(task.rule.guess.format(title=task.title))
    phrases = [
        f"{guess} for {' and '.join(names)}{share}"
        for (_, guess, share), names in sorted(titles.items(), key=lambda item: item[0][0])
    ]
    return " ".join([f"Chance: {', '.join(phrases)}.", *sentences])


def _not_ranked(entries: Sequence[Entry]) -> list[str]:
    """A note for each reason why numbers are not ranked."""
    names: dict[str, dict[str, None]] = defaultdict(dict)
    for entry in entries:
        if entry.unranked == UNKNOWN_DIRECTION:
            names[entry.unranked][entry.score.metric] = None
        elif entry.unranked:
            names[entry.unranked][f"{task_label(entry.task)} ({entry.score.metric})"] = None
    return [f"Not ranked, since {reason}: {', '.join(sorted(of))}" for reason, of in names.items()]


def _unpaired(entries: Sequence[Entry]) -> list[str]:
    """A note of what has other questions than the baseline."""
    others = [f"{e.label} ({task_label(e.task)})" for e in entries if e.other_questions]
    listed = ", ".join(dict.fromkeys(others))
    return [f"Other questions than the baseline's, by their hashes: {listed}"] if others else []


def _in_groups(scores: Sequence[Score], analysis: Analysis) -> list[str]:
    """A note of each group whose tasks and groups are left out of the table."""
    shown = {score.task for score in scores}
    left_out: dict[str, set[str]] = defaultdict(set)
    for entry in analysis.entries:
        if entry.score.group in shown:
            left_out[entry.score.group].add(entry.task)
    return [
        f"{group}: its own figure; {counted(len(names), 'task')} and groups in it are in the CSV "
        "alone"
        for group, names in sorted(left_out.items())
    ]


def _too_few(entries: Sequence[Entry]) -> list[str]:
    """A note for each number of documents that is too small for any difference, with its tasks."""
    unclear: dict[tuple[int, float, float], dict[str, None]] = defaultdict(dict)
    for entry in entries:
        if (found := entry.difference) and entry.mark == CANNOT_TELL:
            place = entry.score.clusters or 0, found.smallest_p, found.threshold
            unclear[place][task_label(entry.task)] = None
    return [
        f"{CANNOT_TELL}: inconclusive (n = {documents}), the smallest possible p is {p:.3g} and "
        f"the threshold {threshold:.3g}: {', '.join(tasks)}"
        for (documents, p, threshold), tasks in unclear.items()
    ]


def provenance_notes(
    runs: Sequence[Run] | Sequence[PosGenResult],
    seeds: Iterable[object],
    scale: Iterable[str],
    took: str,
) -> tuple[str, ...]:
    """Commands, versions and seeds of some runs, each once, then their scale, machines and time.

    `took` says behind the time of all of them what it is.
    """
    known: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        for name, version in run.versions.items():
            if isinstance(version, str):
                known[name].add(version)
    notes = [f"Made by: {command}" for command in sorted({run.command for run in runs} - {""})]
    listed = [f"{name} {' and '.join(sorted(each))}" for name, each in sorted(known.items())]
    notes += [f"Versions: {', '.join(listed)}"] if listed else []
    texts = {str(seed) for seed in seeds if seed not in (None, "")}
    named = sorted(texts, key=lambda each: (len(each), each))  # 10 after 9
    notes += [f"Seeds: {', '.join(named)}"] if named else []
    seconds = [run.seconds for run in runs if run.seconds is not None]
    scale = [*scale, *sorted({run.machine for run in runs} - {""})]
    scale += [f"{spent(sum(seconds))}{took}"] if seconds else []
    return (*notes, f"Scale: {', '.join(scale)}")


def spent(seconds: float) -> str:
    """`12 minutes`, `1 minute`; `40 seconds` below a minute."""
    short = seconds < 60
    return counted(round(seconds if short else seconds / 60), "second" if short else "minute")


def run_provenance(runs: Sequence[Run], documents: str) -> tuple[str, ...]:
    """The same for lm-eval runs; their scale is models, precision and documents."""
    models = sorted({run.model for run in runs})
    precisions = sorted({run.settings.get("dtype", "") for run in runs} - {""})
    seeds = (run.settings.get("seed") for run in runs)
    scale = (*models, *precisions, documents)
    return provenance_notes(runs, seeds, scale, f" for all {len(runs)} runs")
