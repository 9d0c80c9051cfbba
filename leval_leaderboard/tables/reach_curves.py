"""Losses of the same texts at growing lengths, and what two methods' have in common."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from leval_leaderboard.results import Results
from leval_leaderboard.results.ratios import Floats, Ratios
from leval_leaderboard.tables.analysis import grouped
from leval_leaderboard.tables.entries import Entry

LOSS, KEY_LOSS = "loss", "key_loss"
OWN = "own"
"""Whose key tokens they are where no reference model told them."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Losses of the texts that were read at every length.

    Attributes:
        lengths: tokens in all that the model sees, ascending; `K + 1` of them.
        documents: what stands for each text, `[G]`.
        nats: of each text at each length, `[K + 1, G]`.
        tokens: of each text, the same at each length, `[G]`.
    """

    lengths: tuple[int, ...]
    documents: Floats
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
    """The losses of one method: all tasks of these entries together, at the lengths of all."""
    by_task = grouped(entries, lambda entry: entry.task)
    common = set.intersection(*({e.score.at for e in part} for part in by_task.values()))
    lengths = tuple(sorted(length for length in common if length is not None))
    parts: list[list[Floats]] = []
    for part in by_task.values():
        at = {entry.score.at: results.ratios(entry.score) for entry in part}
        found = [at[length] for length in lengths]
        if lengths and (columns := _aligned(found)):
            parts.append(columns)
    if not parts:
        return None
    documents, tokens, *nats = (np.concatenate(each) for each in zip(*parts, strict=True))
    return Curve(lengths, documents, np.vstack(nats), tokens)


def _aligned(ratios: Sequence[Ratios | None]) -> list[Floats]:
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

    documents: Floats
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
        found = [results.ratios(entry.score) for entry in part]
        by_text = [each.by_cluster() for each in found if each is not None]
        if by_text:
            documents, nats, tokens = (np.concatenate(each) for each in zip(*by_text, strict=True))
            told_by = frozenset(e.score.settings.get("key_tokens", OWN) for e in part)
            sums[length] = KeyLosses(documents, nats, tokens, told_by)
    return sums
