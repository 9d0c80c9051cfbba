"""Which runs may be ranked against each other, and what each is called."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from leval_leaderboard.results import Run, Score
from leval_leaderboard.results.settings import FOLLOW_LENGTH, METHOD, titled

PRECISE_SOFTMAX = ("", "float32", "float64")
"""Precisions that need no mark; empty where a task takes no softmax."""

Labels = Mapping[tuple[str, int], str]
"""`(setting, run) -> how the run's block says it`; empty where it is unset."""


def block_titles(scores: Sequence[Score], runs: Sequence[Run]) -> list[str]:
    """A block's title for each score: the model, and whatever sets its runs of one task apart.

    A setting that differs between tasks alone (perplexity has no generation arguments) sets no runs
    apart that a reader could take for one another.
    """
    labels, twins = _labels(scores, runs), _twins(scores, runs)
    varying = {name: None for name, _ in labels}
    titles = []
    for score in scores:
        run = runs[score.run]
        parts = [run.model]
        labelled = twins.get(score.run, score.run)
        parts += [said for name in varying if (said := labels.get((name, labelled), ""))]
        if score.sample:
            parts.append("bundled sample, not the real documents")
        if score.softmax not in PRECISE_SOFTMAX:
            parts.append(f"softmax: {score.softmax}")
        if score.partial:
            parts.append(f"partial: {partial_text(run)}")
        titles.append(" · ".join(parts))
    return titles


def _labels(scores: Iterable[Score], runs: Sequence[Run]) -> Labels:
    """What sets runs of a model apart: of each setting, its values in the tasks where it differs.

    All tasks of a run are labelled alike, so that they stay in one row.
    """
    values: dict[tuple[object, ...], dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    placed = {(score.run, _place(score), score.metric): score for score in scores}
    names = {name for score in placed.values() for name in score.settings} - {METHOD}
    for score in placed.values():
        if score.status != "done":
            continue
        for name in names:
            at = (score.metric, score.context_length) if name in FOLLOW_LENGTH else ()
            place = (runs[score.run].model, name, (score.task, at))
            values[place][score.settings.get(name, "")].add(score.run)
    disputed: dict[tuple[str, int], set[str]] = defaultdict(set)
    varying: set[tuple[object, str]] = set()
    for (model, setting, _), of_task in values.items():
        if len(of_task) > 1:
            varying.add((model, str(setting)))
            for text, of_runs in of_task.items():
                for run in of_runs:
                    disputed[str(setting), run].add(text)
    labels = {}
    for name in sorted({name for _, name in varying}):
        for score in placed.values():
            if (runs[score.run].model, name) in varying:
                texts = disputed.get((name, score.run)) or {score.settings.get(name, "")}
                said = [titled(name, text) for text in sorted(texts) if text]
                labels[name, score.run] = " and ".join(said)
    return labels


def _twins(scores: Iterable[Score], runs: Sequence[Run]) -> dict[int, int]:
    """For a run without numbers one with them that was asked for alike: they share a block."""

    def asked(run: Run) -> tuple[object, ...]:
        kept = {name: text for name, text in run.settings.items() if name != METHOD}
        return run.model, tuple(sorted(kept.items()))

    done = {asked(runs[score.run]): score.run for score in scores if score.status == "done"}
    stopped = {score.run for score in scores if score.status != "done"}
    finished = set(done.values())
    return {run: done[asked(runs[run])] for run in stopped - finished if asked(runs[run]) in done}


def _place(score: Score) -> tuple[object, ...]:
    return score.task, score.context_length, score.status


def partial_text(run: Run) -> str:
    """How a partial run was limited."""
    if run.limit is not None:
        return f"the first {run.limit:g} questions of each task"
    return f"{counted(run.num_docs, 'document')} of each task" if run.num_docs else "limited"


def counted(number: float, noun: str) -> str:
    """`1 document`, `3 documents`."""
    return f"{number:g} {noun}{'' if number == 1 else 's'}"


def method_labels(scores: Sequence[Score], runs: Sequence[Run], blocks: Sequence[str]) -> list[str]:
    """Method of each score; two different runs that would share a place get their number."""
    places: dict[tuple[object, ...], set[int]] = defaultdict(set)
    for score, block in zip(scores, blocks, strict=True):
        run = runs[score.run]
        method, length = run.method, score.at or score.context_length
        places[block, method, length, score.task, score.metric, score.chosen].add(score.run)
    clashing = {run for sharing in places.values() if len(sharing) > 1 for run in sharing}
    return [
        runs[score.run].method + (f" (run {score.run})" if score.run in clashing else "")
        for score in scores
    ]
