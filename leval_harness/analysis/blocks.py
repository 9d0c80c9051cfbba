"""Which runs may be ranked against each other, and what each is called."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from leval_harness.results import Run, Score
from leval_harness.results.fields import digest
from leval_harness.results.settings import FILES, FOLLOW_LENGTH, LONGEST_TITLE, METHOD, titled

PRECISE_SOFTMAX = ("", "float32", "float64")
"""Precisions that need no mark; empty where a task takes no softmax."""

Item = TypeVar("Item")
Labels = Mapping[tuple[str, int], str]
"""`(setting, run) -> how the run's block says it`; empty where it is unset."""


def block_titles(scores: Sequence[Score], runs: Sequence[Run]) -> list[str]:
    """A block's title for each score: the model, and whatever sets its runs of one task apart.

    A setting that differs between tasks alone (perplexity has no generation arguments) sets no runs
    apart that a reader could take for one another.
    """
    scores, runs = _with_checkpoints(scores, runs)
    labels, twins = _labels(scores, runs), _twins(scores, runs)
    varying = {name: None for name, _ in labels}
    titles: list[str] = []
    meant: dict[str, list[str]] = {}
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
            parts.append(f"partial: {partial_text(score, run)}")
        titles.append(unlike(" · ".join(parts), parts, meant))
    return titles


def unlike(name: str, means: Item, meant: dict[str, Item]) -> str:
    """A name that stands for one thing alone; of two that read alike the second gets a digest.

    `meant` remembers what the names before stand for.
    """
    if meant.setdefault(name, means) == means:
        return name
    return unlike(f"{name} #{digest(repr(means))}", means, meant)


def _checkpoints(runs: Sequence[Run]) -> dict[int, str]:
    """What stands for the files of runs whose sweep gave several checkpoints one name.

    A checkpoint fine-tuned to each method is what its config calls one model. One name in two
    sweeps is not, nor a method with two checkpoints, nor a folder whose files were changed.
    """
    named: dict[tuple[object, str], list[int]] = defaultdict(list)
    for at, run in enumerate(runs):
        if run.checkpoint and FILES in run.settings:
            named[run.folder.parent, run.model].append(at)
    found: dict[int, str] = {}
    for group in named.values():
        of_method, of_place = defaultdict(set), defaultdict(set)
        for at in group:
            files = runs[at].settings[FILES]
            of_method[runs[at].method].add(files)
            of_place[runs[at].checkpoint].add(files)
        if all(len(files) == 1 for files in (*of_method.values(), *of_place.values())):
            every = sorted(set().union(*of_method.values()))
            found |= dict.fromkeys(group, every[0] if len(every) == 1 else digest(repr(every)))
    return found


def _with_checkpoints(
    scores: Sequence[Score], runs: Sequence[Run]
) -> tuple[list[Score], list[Run]]:
    """The same, with one digest where a sweep has a checkpoint for each method of a model."""
    files = _checkpoints(runs)

    def settings(at: int, own: Mapping[str, str]) -> Mapping[str, str]:
        return {**own, FILES: files[at]} if at in files else own

    return (
        [replace(score, settings=settings(score.run, score.settings)) for score in scores],
        [replace(run, settings=settings(at, run.settings)) for at, run in enumerate(runs)],
    )


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


def partial_text(score: Score, run: Run) -> str:
    """How a partial run was limited."""
    if score.limit is not None and score.limit < 1:  # as lm-eval reads it
        return f"the first {100 * score.limit:g}% of each task's questions"
    if score.limit is not None:
        return f"the first {score.limit:g} questions of each task"
    return f"{counted(run.num_docs, 'document')} of each task" if run.num_docs else "limited"


def counted(number: float, noun: str) -> str:
    """`1 document`, `3 documents`."""
    return f"{number:g} {noun}{'' if number == 1 else 's'}"


def method_labels(scores: Sequence[Score], runs: Sequence[Run], blocks: Sequence[str]) -> list[str]:
    """Method of each score, with its parameters where runs of a block mean two methods by a name.

    Two different runs that would share a place get their number.
    """
    methods = _methods(scores, runs, blocks)
    places: dict[tuple[object, ...], set[int]] = defaultdict(set)
    for score, block in zip(scores, blocks, strict=True):
        length = score.at or score.context_length
        place = methods[score.run, block], length, score.task, score.metric, score.chosen
        places[block, *place].add(score.run)
    clashing = {run for sharing in places.values() if len(sharing) > 1 for run in sharing}
    meant: dict[str, tuple[str, int | None]] = {}
    labels = []
    for score, block in zip(scores, blocks, strict=True):
        method, number = methods[score.run, block], score.run if score.run in clashing else None
        label = method if number is None else f"{method} (run {number})"
        labels.append(unlike(label, (method, number), meant))
    return labels


def _methods(
    scores: Sequence[Score], runs: Sequence[Run], blocks: Sequence[str]
) -> dict[tuple[int, str], str]:
    """`(run, block) -> method`; of one name with several parameters, with those that differ."""
    found: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for score, block in zip(scores, blocks, strict=True):
        if score.status == "done":
            found[block, runs[score.run].method][score.settings.get(METHOD, "")] = None
    names = {}
    for score, block in zip(scores, blocks, strict=True):
        method, text = runs[score.run].method, score.settings.get(METHOD, "")
        others = found[block, method]
        said = _parameters(text, list(others)) if len(others) > 1 and text in others else ""
        names[score.run, block] = f"{method} ({said})" if said else method
    return names


def _parameters(text: str, others: Sequence[str]) -> str:
    """Those of a method in which it differs from others of its name."""
    try:
        each = {other: json.loads(other) for other in others if other}
    except ValueError:  # shortened
        return f"#{digest(text)}"
    own, every = each.get(text, {}), [each.get(other, {}) for other in others]
    differing = [name for name in own if any(one.get(name) != own[name] for one in every)]
    said = ", ".join(f"{name} {own[name]}" for name in differing)
    return said if 0 < len(said) <= LONGEST_TITLE else f"#{digest(text)}"
