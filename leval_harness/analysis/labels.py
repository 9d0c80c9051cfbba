"""Names of what is shown: blocks of comparable runs, methods, tasks and lengths.

A block holds the rows that may be ranked against each other: one model in one setting.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from leval_harness.layout import SHORT_WINDOWS
from leval_harness.old_results import Run, Score
from leval_harness.old_results.fields import digest
from leval_harness.old_results.posgen import SUBTASKS
from leval_harness.old_results.settings import FILES, FOLLOW_LENGTH, LONGEST_TITLE, METHOD, titled
from leval_tasks.closed.catalog import TASKS

CLOSED = {name: task.title for name, task in TASKS.items() if task.in_group}
"""The six tasks of the paper's Table 2, in its order; only all six have an average."""

BESIDE = {name: task.title for name, task in TASKS.items() if not task.in_group}
"""Closed-ended tasks that are in no average."""

POSGEN = {f"posgen_{subtask}": title for subtask, title in SUBTASKS.items()}

_TEXTS = {
    "govreport": "GovReport",
    "proofpile": "Proof-pile",
    "pg19": "PG19",
    "pydocs": "Python docs",
}
_LABELS = {
    **{f"ppl_{name}": title for name, title in _TEXTS.items()},
    **CLOSED,
    **BESIDE,
    **POSGEN,
}

METHOD_NAMES = {
    "default": "RoPE",
    "linear": "Linear scaling",
    "ntk_aware": "NTK-aware",
    "dynamic": "Dynamic NTK",
    "yarn": "YaRN",
    "llama3": "Llama 3 scaling",
    "longrope": "LongRoPE",
    "proportional": "Proportional RoPE",
    "self_extend": "SelfExtend",
    "dual_chunk": "Dual chunk attention",
    "rerope": "ReRoPE",
    "log_n": "Log-n scaling",
    "cope": "CoPE",
    "yarn_wavelength": "YaRN by wavelength",
}
"""RoPE methods as readers write them."""

LOSS_UNITS = {
    "word_perplexity": "nats/word",
    "byte_perplexity": "nats/byte",
    "bits_per_byte": "nats/byte",
    "paper_perplexity": "nats/token, mean of windows",
    "perplexity": "nats/answer",
}
"""Unit of the differences of losses that are no nats a token, by family."""

PRECISE_SOFTMAX = ("", "float32", "float64")
"""Precisions that need no mark; empty where a task computes no softmax."""

Item = TypeVar("Item")


def task_label(task: str) -> str:
    """Short name of a task for a column head."""
    return _LABELS.get(task, task)


def method_title(settings: str | None, label: str = "") -> str:
    """A name for readers, such as `Resonance YaRN ×2`, made from the RoPE settings (JSON).

    Empty where they do not give one. A method without settings is the checkpoint as shipped.
    """
    if not settings and label == "rope":
        return "RoPE (as shipped)"
    try:
        rope = json.loads(settings) if settings else {}
    except ValueError:  # a long text was shortened
        return ""
    kind = rope.get("rope_type") if isinstance(rope, dict) else None
    if not isinstance(kind, str):
        return ""
    base = kind.removeprefix("resonance").removeprefix("_")
    name = METHOD_NAMES.get(base, "" if base else "RoPE")
    if not name:
        return ""
    if kind != base:
        name = f"Resonance {name}"
    elif base == "default":
        name += " (no scaling)"
    factor = rope.get("factor")
    # Dynamic NTK of factor 1 follows the length of a text.
    scales = isinstance(factor, int | float) and factor != 1
    return f"{name} ×{factor:g}" if scales else name


def method_titles(scores: Sequence[Score], labels: Sequence[str]) -> dict[str, str]:
    """Label of each method -> its name for readers; a label whose name is not its own stays."""
    names: dict[str, str] = {}
    for score, label in zip(scores, labels, strict=True):
        name = method_title(score.settings.get(METHOD), label)
        if names.setdefault(label, name) != name:  # two models, two factors
            names[label] = name.partition(" ×")[0]
    taken = [*names.values(), *names]
    return {
        label: name if name and taken.count(name) == 1 else label for label, name in names.items()
    }


def length_label(length: float | None) -> str:
    """Context length as papers write it: 8192 -> `8K`, 10000 -> `10,000`."""
    if length is None or length != length:
        return "–"
    whole = int(length)
    return f"{whole // 1024}K" if whole % 1024 == 0 else f"{whole:,}"


def counted(number: float, noun: str) -> str:
    """`1 document`, `3 documents`."""
    return f"{number:.12g} {noun}{'' if number == 1 else 's'}"


def distinct(name: str, meaning: Item, meanings: dict[str, Item]) -> str:
    """A name that has one meaning; a name with a second meaning gets a digest appended.

    `meanings` maps the names given so far to their meanings; the returned name is added.
    """
    if meanings.setdefault(name, meaning) == meaning:
        return name
    return distinct(f"{name} #{digest(repr(meaning))}", meaning, meanings)


def block_titles(scores: Sequence[Score], runs: Sequence[Run]) -> list[str]:
    """A block's title for each score: the model, and the settings that differ between its runs.

    A setting that differs only between tasks (perplexity has no generation arguments) does not
    separate runs.
    """
    files = _common_checkpoints(runs)
    runs = [
        replace(run, settings={**run.settings, FILES: files[at]}) if at in files else run
        for at, run in enumerate(runs)
    ]
    scores = [
        replace(score, settings={**score.settings, FILES: files[score.run]})
        if score.run in files
        else score
        for score in scores
    ]
    labels, counterparts = _setting_labels(scores, runs), _counterparts(scores, runs)
    varying = dict.fromkeys(name for name, _ in labels)
    titles: list[str] = []
    meanings: dict[str, list[str]] = {}
    for score in scores:
        run = runs[score.run]
        labelled = counterparts.get(score.run, score.run)
        own = {name: text for name in varying if (text := labels.get((name, labelled)))}
        more = []
        if score.sample:
            more.append("bundled sample, not the real documents")
        if score.softmax not in PRECISE_SOFTMAX:
            more.append(f"softmax: {score.softmax}")
        if score.partial:
            more.append(f"partial: {_partial_text(score, run)}")
        by_documents = score.partial and score.limit is None and run.num_docs
        said = {"num_docs", "questions_asked"} if by_documents else set()
        parts = [run.model, *(text for name, text in own.items() if name not in said), *more]
        meaning = [run.model, *own.values(), *more]
        titles.append(distinct(" · ".join(parts), meaning, meanings))
    return titles


def _partial_text(score: Score, run: Run) -> str:
    """How a partial run was limited; a limit below 1 is a share of the questions, as in lm-eval."""
    if score.limit is not None and score.limit < 1:
        return f"the first {100 * score.limit:g}% of each task's questions"
    if score.limit is not None:
        return f"the first {score.limit:g} questions of each task"
    return f"{counted(run.num_docs, 'document')} of each task" if run.num_docs else "limited"


def _common_checkpoints(runs: Sequence[Run]) -> dict[int, str]:
    """Run -> the digest that replaces its files', where checkpoints of a sweep share a name.

    A config may call checkpoints that were fine-tuned to each method one model. Two sweeps that use
    one name, a method with two checkpoints, and a folder whose files changed stay separate. Each
    checkpoint has short windows of its own.
    """
    named: dict[tuple[object, str], list[int]] = defaultdict(list)
    for at, run in enumerate(runs):
        if run.checkpoint and FILES in run.settings:
            named[run.folder.parent, run.model].append(at)
    found: dict[int, str] = {}
    for group in named.values():
        by_method, by_folder = defaultdict(set), defaultdict(set)
        for at in group:
            files = runs[at].settings[FILES]
            if runs[at].method != SHORT_WINDOWS:
                by_method[runs[at].method].add(files)
            by_folder[runs[at].checkpoint].add(files)
        if all(len(files) == 1 for files in (*by_method.values(), *by_folder.values())):
            every = sorted(set().union(*by_folder.values()))
            found |= dict.fromkeys(group, every[0] if len(every) == 1 else digest(repr(every)))
    return found


def _setting_labels(scores: Iterable[Score], runs: Sequence[Run]) -> Mapping[tuple[str, int], str]:
    """`(setting, run) -> its label in titles`, of the settings that separate runs of a model.

    A setting separates runs if it differs within a task. All tasks of a run get the same label, so
    that they stay in one row. The label is empty where the setting is unset.
    """
    values: dict[tuple[str, str, object], dict[str, set[int]]] = {}
    placed = {(s.run, s.task, s.context_length, s.status, s.metric): s for s in scores}.values()
    names = {name for score in placed for name in score.settings} - {METHOD}
    for score in placed:
        for name in names if score.status == "done" else ():
            at = (score.metric, score.context_length) if name in FOLLOW_LENGTH else ()
            of_task = values.setdefault((runs[score.run].model, name, (score.task, at)), {})
            of_task.setdefault(score.settings.get(name, ""), set()).add(score.run)
    differing: dict[tuple[str, int], set[str]] = defaultdict(set)
    varying: set[tuple[str, str]] = set()
    for (model, name, _), of_task in values.items():
        if len(of_task) > 1:
            varying.add((name, model))
            for text, of_runs in of_task.items():
                for run in of_runs:
                    differing[name, run].add(text)
    labels = {}
    for name in sorted({name for name, _ in varying}):
        for score in placed:
            if (name, runs[score.run].model) in varying:
                texts = differing.get((name, score.run)) or {score.settings.get(name, "")}
                labels[name, score.run] = " and ".join(titled(name, t) for t in sorted(texts) if t)
    return labels


def _counterparts(scores: Iterable[Score], runs: Sequence[Run]) -> dict[int, int]:
    """For a run without numbers, one with numbers and equal settings: they share a block."""

    def request(run: Run) -> tuple[object, ...]:
        kept = {name: text for name, text in run.settings.items() if name != METHOD}
        return run.model, tuple(sorted(kept.items()))

    done = {request(runs[score.run]): score.run for score in scores if score.status == "done"}
    stopped = {score.run for score in scores if score.status != "done"} - set(done.values())
    return {run: done[request(runs[run])] for run in stopped if request(runs[run]) in done}


def method_labels(scores: Sequence[Score], runs: Sequence[Run], blocks: Sequence[str]) -> list[str]:
    """Method of each score, with parameters where two methods of a block have the same name.

    Two different runs that would have the same place in a table get their number.
    """
    methods = _methods(scores, runs, blocks)
    places: dict[tuple[object, ...], set[int]] = defaultdict(set)
    for score, block in zip(scores, blocks, strict=True):
        length = score.at or score.context_length
        place = methods[score.run, block], length, score.task, score.metric, score.chosen
        places[block, *place].add(score.run)
    clashing = {run for sharing in places.values() if len(sharing) > 1 for run in sharing}
    meanings: dict[str, tuple[str, int | None]] = {}
    labels = []
    for score, block in zip(scores, blocks, strict=True):
        method, number = methods[score.run, block], score.run if score.run in clashing else None
        label = method if number is None else f"{method} (run {number})"
        labels.append(distinct(label, (method, number), meanings))
    return labels


def _methods(
    scores: Sequence[Score], runs: Sequence[Run], blocks: Sequence[str]
) -> dict[tuple[int, str], str]:
    """`(run, block) -> method`, with its parameters where the name stands for several of them."""
    found: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for score, block in zip(scores, blocks, strict=True):
        if score.status == "done":
            found[block, runs[score.run].method][score.settings.get(METHOD, "")] = None
    names = {}
    for score, block in zip(scores, blocks, strict=True):
        method, text = runs[score.run].method, score.settings.get(METHOD, "")
        others = found[block, method]
        differing = len(others) > 1 and text in others
        names[score.run, block] = f"{method} ({_parameters(text, others)})" if differing else method
    return names


def _parameters(text: str, others: Iterable[str]) -> str:
    """The parameters of a method (JSON) in which it differs from others of its name."""
    try:
        each = {other: json.loads(other) if other else {} for other in others}
    except ValueError:  # a long text was shortened
        return f"#{digest(text)}"
    own = each[text]
    differing = [name for name in own if any(one.get(name) != own[name] for one in each.values())]
    listed = ", ".join(f"{name} {own[name]}" for name in differing)
    return listed if 0 < len(listed) <= LONGEST_TITLE else f"#{digest(text)}"
