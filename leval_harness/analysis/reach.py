"""How far does it really read? One line per model and method, and the losses that it rests on."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from leval_harness.analysis.entries import Analysis, Entry, grouped
from leval_harness.analysis.labels import length_label, task_label
from leval_harness.analysis.retrieval import Retrieval, retrievals
from leval_harness.results import Results, ResultsError
from leval_tasks.statistics.clustered import Estimate, Floats, estimate_ratio
from leval_tasks.statistics.paired import Difference, compare_perplexities
from leval_tasks.statistics.reach import MARGIN, Reach, Step, reach_of, steps_of

LOSS, KEY_LOSS = "loss", "key_loss"
OWN = "own"
"""Stands for the model itself where no reference model determined the key tokens."""


@dataclass(frozen=True, slots=True)
class Point:
    """The same tokens of the same texts at one length.

    Attributes:
        length: tokens that the model sees in all.
        loss: nats a token, over all texts.
        low, high: ends of its 95% interval by document; None below three texts.
        step: what changed from the next shorter length; None for the shortest.
        against: difference to the block's baseline at this length, on the texts that both read;
            None for the baseline itself and without such texts.
        key: nats a token on the key tokens, those that a long context helps; None where the backend
            does not report each token or there are none.
        key_against: difference of these to the baseline's, where a reference model determined the
            key tokens of both.
    """

    length: int
    loss: float
    low: float | None
    high: float | None
    step: Step | None = None
    against: Difference | None = None
    key: Estimate | None = None
    key_against: Difference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachLine:
    """How far one model reads under one method.

    Attributes:
        block: title of the rows that it may be compared with.
        model: its name.
        method: the method's label.
        shipped: tokens that the checkpoint's config claims as it is.
        claimed: tokens that it claims under the method.
        no_loss: the largest length without a loss, by the texts; None where no text was read.
        gain: the largest length up to which each longer context still helped.
        texts: documents of all `reach_*` tasks together.
        tokens: scored in them, at each length.
        key_tokens: of these, those that a long context helps.
        referred: whether a reference model determined them.
        tasks: names of those tasks.
        points: by length, ascending.
        retrieval: by RULER's tasks; None where none was run.
    """

    block: str
    model: str
    method: str
    shipped: int | None = None
    claimed: int | None = None
    no_loss: Reach | None = None
    gain: Reach | None = None
    texts: int = 0
    tokens: int = 0
    key_tokens: int = 0
    referred: bool = False
    tasks: tuple[str, ...] = ()
    points: tuple[Point, ...] = ()
    retrieval: Retrieval | None = None


def reach_lines(analysis: Analysis) -> list[ReachLine]:
    """A line for each model and method that was run with a `reach_*` task, or with RULER's.

    A limited number of questions has a block of its own: its retrieval is joined to the model's
    line by loss where there is only one.
    """
    lines = []
    keys = grouped(_entries(analysis, KEY_LOSS), lambda entry: (entry.block, entry.label))
    for block, of_block in grouped(_entries(analysis, LOSS), lambda entry: entry.block).items():
        by_method = grouped(of_block, lambda entry: entry.label)
        curves = {label: _curve(part, analysis.results) for label, part in by_method.items()}
        of_keys = {
            label: _key_losses(keys.get((block, label), []), analysis.results)
            for label in by_method
        }
        baseline = analysis.baselines.get(block, "")
        for label, part in by_method.items():
            if curve := curves[label]:
                rival = baseline if label != baseline else None
                line = _line(block, label, part, curve, curves.get(rival))
                lines.append(_with_keys(line, of_keys[label], of_keys.get(rival, {})))
    return _joined(lines, retrievals(analysis))


def _entries(analysis: Analysis, family: str) -> list[Entry]:
    """Finished scores of one family of metrics of the `reach_*` tasks."""
    reach = (entry for entry in analysis.entries if entry.family == "reach")
    return [entry for entry in reach if entry.score.family == family and entry.score.finished]


def _line(
    block: str, label: str, entries: Sequence[Entry], curve: "_Curve", base: "_Curve | None"
) -> ReachLine:
    shipped = [e.score.shipped_length for e in entries if e.score.shipped_length]
    claimed = [e.score.claimed_length for e in entries if e.score.claimed_length]
    sums = curve.nats, curve.tokens, curve.lengths
    points = []
    for nats, length, step in zip(curve.nats, curve.lengths, [None, *steps_of(*sums)], strict=True):
        loss = estimate_ratio(nats, curve.tokens, None)
        paired = curve.paired(base, length) if base else None
        against = compare_perplexities(*paired) if paired is not None else None
        points.append(Point(length, loss.value, loss.low, loss.high, step, against))
    return ReachLine(
        block=block,
        model=entries[0].run.model,
        method=label,
        shipped=min(shipped, default=None),
        claimed=min(claimed, default=None),
        no_loss=reach_of(*sums, MARGIN) if len(points) > 1 else None,
        gain=reach_of(*sums, -MARGIN) if len(points) > 1 else None,
        texts=curve.documents.size,
        tokens=int(curve.tokens.sum()),
        tasks=tuple(dict.fromkeys(entry.task for entry in entries)),
        points=tuple(points),
    )


def _with_keys(
    line: ReachLine, keys: "Mapping[int, _KeyLosses]", base: "Mapping[int, _KeyLosses]"
) -> ReachLine:
    """The line with the losses on key tokens."""
    points, most, references = [], 0, set[str]()
    for point in line.points:
        if found := keys.get(point.length):
            most = int(found.tokens.sum())
            references |= found.references
            paired = found.paired(base.get(point.length))
            against = compare_perplexities(*paired) if paired is not None else None
            estimate = estimate_ratio(found.nats, found.tokens, None)
            point = replace(point, key=estimate, key_against=against)
        points.append(point)
    referred = bool(references) and OWN not in references
    return replace(line, points=tuple(points), key_tokens=most, referred=referred)


def _joined(
    lines: Sequence[ReachLine], retrieved: Mapping[tuple[str, str], tuple[Entry, Retrieval]]
) -> list[ReachLine]:
    """Lines by loss with their retrieval, and lines with retrieval alone."""
    by_loss = grouped(lines, lambda line: (line.model, line.method))
    by_probes = grouped(retrieved, lambda key: (retrieved[key][0].run.model, key[1]))
    joined, used = [], set()
    for line in lines:
        keys = by_probes.get((line.model, line.method), [])
        own = (line.block, line.method)
        alone = len(keys) == 1 and len(by_loss[line.model, line.method]) == 1
        key = own if own in retrieved else keys[0] if alone else None
        used.add(key)
        joined.append(replace(line, retrieval=retrieved[key][1]) if key else line)
    return joined + [
        ReachLine(block=block, model=entry.run.model, method=label, retrieval=found)
        for (block, label), (entry, found) in retrieved.items()
        if (block, label) not in used
    ]


def reach_gaps(analysis: Analysis, lines: Sequence[ReachLine]) -> list[str]:
    """What was run and is in no line of `reach_lines`, or is not compared, and why."""
    entries = _entries(analysis, LOSS)
    by_place = {(line.block, line.method): line for line in lines if line.points}
    several = len({entry.block for entry in entries}) > 1
    gaps = []
    for (block, label), part in grouped(entries, lambda e: (e.block, e.label)).items():
        name = f"{label} in '{block}'" if several else label
        if missing := _left_out(part, analysis.results):
            gaps.append(f"Not counted: {name}: {'; '.join(missing)}")
        baseline, line = analysis.baselines.get(block, ""), by_place.get((block, label))
        base = by_place.get((block, baseline))
        if line is None or base is None or line is base:
            continue
        if not any(point.against for point in line.points):
            gaps.append(
                f"Not compared: {name} and {baseline}: no text of both at one length with the same "
                "number of tokens"
            )
        elif line.texts != base.texts:
            gaps.append(
                f"{name} and {baseline} are compared on the texts of both ({line.texts} and "
                f"{base.texts} were read)"
            )
    return gaps


def _left_out(entries: Sequence[Entry], results: Results) -> list[str]:
    """Which of one method's tasks and lengths its curve does not hold, and why."""
    by_task = grouped(entries, lambda entry: entry.task)
    lengths = _common_lengths(by_task)
    missing = []
    for task, part in by_task.items():
        if any(results.ratios(entry.score) is None for entry in part):
            missing.append(f"{task_label(task)}, whose samples were not logged")
        elif lengths and not _sums_of_task(part, lengths, results):
            missing.append(f"{task_label(task)}, of which no text was read at every length")
    others = {e.score.at for e in entries if e.score.at is not None} - set(lengths)
    if others:
        named = ", ".join(length_label(length) for length in sorted(others))
        missing.append(f"{named}, at which not every task was asked")
    return missing


def reach_text(reach: Reach | None) -> str:
    """`8K, not 16K`, `at least 8K`, `nowhere` or `cannot tell`; a dash for None."""
    if reach is None:
        return "–"
    if reach.low is None:
        return "cannot tell"
    if reach.low == 0:
        return "nowhere"
    shown = length_label(reach.low)
    if reach.known is None:
        return f"at least {shown}"
    return shown if reach.refused is None else f"{shown}, not {length_label(reach.refused)}"


@dataclass(frozen=True, slots=True)
class _Curve:
    """Losses of the texts that were read at every length.

    Attributes:
        lengths: tokens that the model sees in all, ascending; `K + 1` of them.
        documents: task and document of each text, `[G]`.
        nats: of each text at each length, `[K + 1, G]`.
        tokens: of each text, the same at each length, `[G]`.
    """

    lengths: tuple[int, ...]
    documents: npt.NDArray[Any]
    nats: Floats
    tokens: Floats

    def paired(self, other: "_Curve", length: int) -> Floats | None:
        """Own nats, the other's and tokens, of each text that both read, `[3, G]`.

        None where there is none, or where a text has another number of tokens in the other.
        """
        if length not in self.lengths or length not in other.lengths:
            return None
        _, own, theirs = np.intersect1d(self.documents, other.documents, return_indices=True)
        tokens = self.tokens[own]
        if not own.size or not np.array_equal(tokens, other.tokens[theirs]):
            return None
        nats = self.nats[self.lengths.index(length)][own]
        return np.stack([nats, other.nats[other.lengths.index(length)][theirs], tokens])


def _curve(entries: Sequence[Entry], results: Results) -> _Curve | None:
    """The losses of one method at the lengths that all tasks of these entries have, or None."""
    by_task = grouped(entries, lambda entry: entry.task)
    lengths = _common_lengths(by_task)
    parts: list[list[Any]] = []
    for task, part in by_task.items():
        if lengths and (columns := _sums_of_task(part, lengths, results)):
            names, *numbers = columns
            parts.append([_texts(task, names), *numbers])
    if not parts:
        return None
    documents, tokens, *nats = (np.concatenate(each) for each in zip(*parts, strict=True))
    return _Curve(lengths, documents, np.vstack(nats), tokens)


def _common_lengths(by_task: Mapping[str, Sequence[Entry]]) -> tuple[int, ...]:
    """The lengths at which every task was asked, ascending."""
    common = set.intersection(*({e.score.at for e in part} for part in by_task.values()))
    return tuple(sorted(length for length in common if length is not None))


def _texts(task: str, documents: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Texts by task and document: two tasks may use one name."""
    return np.array([f"{task} {document}" for document in documents])


def _sums_of_task(entries: Sequence[Entry], lengths: Sequence[int], results: Results) -> list[Any]:
    """Documents that were read at all lengths, their tokens, and their nats at each length."""
    by_length = {entry.score.at: results.ratios(entry.score) for entry in entries}
    ratios = [each for length in lengths if (each := by_length[length]) is not None]
    if len(ratios) < len(lengths):
        return []
    sums = [each.by_cluster() for each in ratios]
    documents = sums[0][0]
    for other, _, _ in sums[1:]:
        documents = np.intersect1d(documents, other)
    picked = [np.searchsorted(names, documents) for names, _, _ in sums]
    sizes = [size[at] for (_, _, size), at in zip(sums, picked, strict=True)]
    if not documents.size or any(not np.array_equal(sizes[0], size) for size in sizes):
        return []
    return [documents, sizes[0], *(n[at] for (_, n, _), at in zip(sums, picked, strict=True))]


@dataclass(frozen=True, slots=True)
class _KeyLosses:
    """Key tokens at one length, text by text.

    Attributes:
        documents, nats, tokens: of each text with key tokens, `[G]`.
        references: the reference models that determined the key tokens, `own` for the model itself.
    """

    documents: npt.NDArray[Any]
    nats: Floats
    tokens: Floats
    references: frozenset[str]

    def paired(self, other: "_KeyLosses | None") -> Floats | None:
        """Own nats, the other's and tokens, `[3, G]`.

        None unless a reference model determined the same key tokens for both.
        """
        if other is None or self.references != other.references or OWN in self.references:
            return None
        same = np.array_equal(self.documents, other.documents)
        if not same or not np.array_equal(self.tokens, other.tokens):
            return None
        return np.stack([self.nats, other.nats, self.tokens])


def _key_losses(entries: Sequence[Entry], results: Results) -> dict[int, _KeyLosses]:
    """By length, all tasks of these entries together."""
    sums = {}
    for length, part in grouped(entries, lambda entry: entry.score.at).items():
        by_text = [
            (_texts(entry.task, names), *numbers)
            for entry in part
            if (ratios := results.ratios(entry.score)) is not None and ratios.questions.size
            for names, *numbers in [ratios.by_cluster()]
        ]
        if by_text:
            documents, nats, tokens = (np.concatenate(each) for each in zip(*by_text, strict=True))
            references = frozenset(e.score.settings.get("key_tokens", OWN) for e in part)
            sums[length] = _KeyLosses(documents, nats, tokens, references)
    return sums


def paired_losses(
    method: Sequence[Entry], baseline: Sequence[Entry], results: Results
) -> Iterator[tuple[str, int, Floats]]:
    """What both methods read of each task, and of all tasks together, at each length.

    Args:
        method: its `loss@…` of one block, or its `key_loss@…`.
        baseline: the same of the other method.
        results: with the samples.

    Yields:
        The task, or an empty text for all of them; the length; nats of the method, of the baseline
        and tokens of each text, `[3, G]`.

    Raises:
        ResultsError: a text has another number of tokens in the baseline.
    """
    sides = [grouped(side, lambda entry: entry.task) for side in (method, baseline)]
    tasks = [task for task in sides[0] if task in sides[1]]
    for task in (*tasks, *([""] if len(tasks) > 1 else [])):
        own, theirs = ([e for t in ([task] if task else tasks) for e in side[t]] for side in sides)
        find = _paired_curves if own[0].score.family == LOSS else _paired_keys
        for length, part in find(own, theirs, results):
            yield task, length, part


def _paired_curves(
    method: Sequence[Entry], baseline: Sequence[Entry], results: Results
) -> Iterator[tuple[int, Floats]]:
    own, theirs = (_curve(side, results) for side in (method, baseline))
    if own is None or theirs is None:
        return
    for length in own.lengths:
        if (part := own.paired(theirs, length)) is not None:
            yield length, part
        elif length in theirs.lengths and set(own.documents) & set(theirs.documents):
            raise ResultsError(
                f"{method[0].task} at {length_label(length)}: a text has another number of tokens "
                "in the baseline; compare runs of one tokenizer and the same settings"
            )


def _paired_keys(
    method: Sequence[Entry], baseline: Sequence[Entry], results: Results
) -> Iterator[tuple[int, Floats]]:
    own, theirs = (_key_losses(side, results) for side in (method, baseline))
    for length in sorted(own):
        if (part := own[length].paired(theirs.get(length))) is not None:
            yield length, part
