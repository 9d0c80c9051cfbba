"""Which runs may be ranked against each other, and what each is called."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from leval_leaderboard.results import Run, Score

BLOCK_SETTINGS = (
    "backend", "dtype", "revision", "rope_precision", "chat_template", "gen_kwargs", "seed",
    "task_gen_kwargs", "num_docs", "min_questions", "truncation", "stride", "num_fewshot",
)  # fmt: skip
"""Settings that must agree before two runs are ranked against each other."""

PRECISE_SOFTMAX = ("", "float32", "float64")
"""Precisions that need no mark; empty where a task takes no softmax."""


def block_titles(scores: Sequence[Score], runs: Sequence[Run]) -> list[str]:
    """A block's title for each score: the model, and whatever sets its runs of one task apart.

    A setting that differs between tasks alone (perplexity has no generation arguments) sets no runs
    apart that a reader could take for one another.
    """
    varying = _varying(scores, runs)
    titles = []
    for score in scores:
        run = runs[score.run]
        parts = [run.model]
        parts += [
            f"{name.replace('_', ' ')} {run.settings.get(name) or 'unset'}"
            for name in varying[run.model]
        ]
        if score.sample:
            parts.append("bundled sample, not the real documents")
        if score.softmax not in PRECISE_SOFTMAX:
            parts.append(f"softmax: {score.softmax}")
        if score.partial:
            parts.append(f"partial: {partial_text(run)}")
        titles.append(" · ".join(parts))
    return _split_by_data(scores, titles)


def _varying(scores: Iterable[Score], runs: Sequence[Run]) -> Mapping[str, list[str]]:
    """`model -> settings` that have several values among its runs of one task."""
    values: dict[tuple[str, str], set[tuple[str, str]]] = defaultdict(set)
    for score in scores:
        run = runs[score.run]
        for name in BLOCK_SETTINGS:
            values[run.model, name].add((score.task, run.settings.get(name, "")))
    varying: dict[str, list[str]] = defaultdict(list)
    for (model, name), of_tasks in values.items():
        if len(of_tasks) > len({task for task, _ in of_tasks}):
            varying[model].append(name)
    return varying


def _split_by_data(scores: Sequence[Score], titles: Sequence[str]) -> list[str]:
    """Set runs apart that would share a block although they asked about different documents.

    A run's label is made of the tasks in dispute alone, so all its tasks stay in one block.
    """
    asked: dict[tuple[str, str], set[str]] = defaultdict(set)
    with_data = [(score, title) for score, title in zip(scores, titles, strict=True) if score.data]
    for score, title in with_data:
        asked[title, score.task].add(score.data)
    labels: dict[int, set[str]] = defaultdict(set)
    for score, title in with_data:
        if len(asked[title, score.task]) > 1:
            labels[score.run].add(score.data)
    return [
        f"{title} · data {'+'.join(sorted(labels[score.run]))}" if score.run in labels else title
        for score, title in zip(scores, titles, strict=True)
    ]


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
        places[block, run.method, run.context_length, score.task, score.metric].add(score.run)
    clashing = {run for sharing in places.values() if len(sharing) > 1 for run in sharing}
    return [
        runs[score.run].method + (f" (run {score.run})" if score.run in clashing else "")
        for score in scores
    ]
