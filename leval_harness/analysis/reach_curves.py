"""Losses of the same texts at growing lengths, and what two methods' have in common."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from leval_harness.analysis.analyse import grouped
from leval_harness.analysis.entries import Entry
from leval_harness.analysis.task_titles import length_label, task_label
from leval_harness.results import Results
from leval_harness.results.ratios import Floats, Ratios

LOSS, KEY_LOSS = "loss", "key_loss"
OWN = "own"
"""Whose key tokens they are where no reference model told them."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Losses of the texts that were read at every length.

    Attributes:
        lengths: tokens in all that the model sees, ascending; `K + 1` of them.
        documents: task and document of each text, `[G]`.
        nats: of each text at each length, `[K + 1, G]`.
        tokens: of each text, the same at each length, `[G]`.
    """

    lengths: tuple[int, ...]
    documents: npt.NDArray[Any]
    nats: Floats
    tokens: Floats

    def paired(self, other: "Curve", length: int) -> Floats | None:
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


def curve_of(entries: Sequence[Entry], results: Results) -> Curve | None:
    """The losses of one method: all tasks of these entries together, at the lengths of all.

    None where nothing was read at all of them; what is left out, `left_out` says.
    """
    by_task = grouped(entries, lambda entry: entry.task)
    lengths = _common(by_task)
    parts: list[list[Any]] = []
    for task, part in by_task.items():
        if lengths and (columns := _of_task(part, lengths, results)):
            names, *numbers = columns
            parts.append([_named(task, names), *numbers])
    if not parts:
        return None
    documents, tokens, *nats = (np.concatenate(each) for each in zip(*parts, strict=True))
    return Curve(lengths, documents, np.vstack(nats), tokens)


def left_out(entries: Sequence[Entry], results: Results) -> list[str]:
    """Which of one method's tasks and lengths its curve does not hold, and why."""
    by_task = grouped(entries, lambda entry: entry.task)
    lengths = _common(by_task)
    said = []
    for task, part in by_task.items():
        if any(results.ratios(entry.score) is None for entry in part):
            said.append(f"{task_label(task)}, whose samples were not logged")
        elif lengths and not _of_task(part, lengths, results):
            said.append(f"{task_label(task)}, of which no text was read at every length")
    others = {e.score.at for e in entries if e.score.at is not None} - set(lengths)
    if others:
        named = ", ".join(length_label(length) for length in sorted(others))
        said.append(f"{named}, at which not every task was asked")
    return said


def _common(by_task: Mapping[str, Sequence[Entry]]) -> tuple[int, ...]:
    """The lengths at which every task was asked, ascending."""
    common = set.intersection(*({e.score.at for e in part} for part in by_task.values()))
    return tuple(sorted(length for length in common if length is not None))


def _of_task(entries: Sequence[Entry], lengths: Sequence[int], results: Results) -> list[Any]:
    at = {entry.score.at: results.ratios(entry.score) for entry in entries}
    return _aligned([at[length] for length in lengths])


def _named(task: str, documents: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Texts by task and document: those of two tasks may bear one name."""
    return np.array([f"{task} {document}" for document in documents])


def _aligned(ratios: Sequence[Ratios | None]) -> list[Any]:
    """Documents, their tokens, and their nats at each length, of what was read at all of them."""
    known = [each for each in ratios if each is not None]
    if len(known) < len(ratios):
        return []
    sums = [each.by_cluster() for each in known]
    documents = sums[0][0]
    for other, _, _ in sums[1:]:
        documents = np.intersect1d(documents, other)
    picked = [np.searchsorted(names, documents) for names, _, _ in sums]
    sizes = [size[at] for (_, _, size), at in zip(sums, picked, strict=True)]
    if not documents.size or any(not np.array_equal(sizes[0], size) for size in sizes):
        return []
    return [documents, sizes[0], *(n[at] for (_, n, _), at in zip(sums, picked, strict=True))]


@dataclass(frozen=True, slots=True)
class KeyLosses:
    """Key tokens at one length, text by text.

    Attributes:
        documents, nats, tokens: of each text, `[G]`.
        told_by: the reference models whose key tokens they are, `own` for the model itself.
    """

    documents: npt.NDArray[Any]
    nats: Floats
    tokens: Floats
    told_by: frozenset[str]

    def paired(self, other: "KeyLosses | None") -> Floats | None:
        """Own nats, the other's and tokens, `[3, G]`, of the texts with key tokens.

        None unless a reference model told both the same ones.
        """
        if other is None or self.told_by != other.told_by or OWN in self.told_by:
            return None
        same = np.array_equal(self.documents, other.documents)
        if not same or not np.array_equal(self.tokens, other.tokens):
            return None
        counted = self.tokens > 0
        found = np.stack([self.nats, other.nats, self.tokens])[:, counted]
        return found if counted.any() else None


def key_losses(entries: Sequence[Entry], results: Results) -> dict[int | None, KeyLosses]:
    """By length, all tasks of these entries together."""
    sums = {}
    for length, part in grouped(entries, lambda entry: entry.score.at).items():
        by_text = [
            (_named(entry.task, names), *numbers)
            for entry in part
            if (ratios := results.ratios(entry.score)) is not None
            for names, *numbers in [ratios.by_cluster()]
        ]
        if by_text:
            documents, nats, tokens = (np.concatenate(each) for each in zip(*by_text, strict=True))
            told_by = frozenset(e.score.settings.get("key_tokens", OWN) for e in part)
            sums[length] = KeyLosses(documents, nats, tokens, told_by)
    return sums
