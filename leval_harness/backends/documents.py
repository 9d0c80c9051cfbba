"""In what order documents that begin alike are read, so that each token is read once."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

REPEATED = 0.01
"""Share of tokens that may be read again so that more documents continue one prefix together."""

WORTH_A_BATCH = 64
"""Tokens that take about as long to read as it takes to answer one batch more, at the least.

A batch of answers is a forward pass for each generated token, and a pass of one token takes as long
as several tokens in a pass of many."""

Batch = tuple[list[int], tuple[int, ...]]
"""Token ids that are read first, and the indices of the documents that begin with them. A batch
without documents is a prefix that later batches continue."""


class Group(NamedTuple):
    """Neighbours in sorted order, which all begin with the same tokens.

    Attributes:
        begin: place of the first one in sorted order.
        end: place after the last one.
        prefix: tokens that are already read when the group's turn comes.
    """

    begin: int
    end: int
    prefix: int


def common_prefix(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Return how many leading items are equal."""
    shorter = min(len(first), len(second))
    if first[:shorter] == second[:shorter]:
        return shorter
    pairs = enumerate(zip(first, second, strict=False))
    return next(index for index, (a, b) in pairs if a != b)


def batches(
    documents: Sequence[list[int]],
    longest_prefix: Sequence[int],
    least: int = 1,
    worth_a_batch: int = 0,
) -> Iterator[Batch]:
    """Yield batches of documents in reading order, prefixes before what continues them.

    Sorted by their tokens, documents that begin alike are neighbours. Starting with all of them, a
    group of neighbours is one batch if reading each document from the group's common prefix on
    reads few tokens more than once (`REPEATED`). Else the common prefix is read by itself, the group
    is divided where neighbours share no more than it, and the parts are treated likewise. Parts in
    which little could be shared beyond the prefix are one batch together.

    Args:
        documents: token ids of each.
        longest_prefix: most tokens of each document that may be read as a prefix.
        least: tokens by which a prefix is longer than the one that it continues.
        worth_a_batch: tokens that a part must save to be treated by itself. With 0 every part is,
            which suits documents that are read one by one anyway.

    Yields:
        Token ids of a prefix, and the indices of the documents that begin with it.
    """
    order = sorted(range(len(documents)), key=documents.__getitem__)
    # shared[i]: leading tokens that the documents at places i and i + 1 can both continue
    shared = []
    for left, right in pairwise(order):
        alike = common_prefix(documents[left], documents[right])
        shared.append(min(alike, longest_prefix[left], longest_prefix[right]))
    waiting = []  # a stack, because recursion would be as deep as prefixes are nested
    if order:
        waiting.append(Group(0, len(order), prefix=0))
    while waiting:
        group = waiting.pop()
        overlaps = shared[group.begin : group.end - 1]
        common = min(overlaps, default=group.prefix)
        prefix = common
        if common < group.prefix + least:
            prefix = group.prefix  # a longer one would save too little
        rows = tuple(order[group.begin : group.end])
        repeated_tokens = repeated(overlaps, prefix)
        prefix_tokens = prefix - group.prefix
        tokens_after_prefix = sum(len(documents[row]) - prefix for row in rows)
        distinct_tokens = prefix_tokens + tokens_after_prefix - repeated_tokens
        prefix_ids = documents[rows[0]][:prefix]
        if repeated_tokens <= REPEATED * distinct_tokens:
            yield prefix_ids, rows
            continue
        together: list[int] = []
        parts = []
        for part in divided(group, overlaps, common, prefix):
            if repeated(shared[part.begin : part.end - 1], prefix) < worth_a_batch:
                together += order[part.begin : part.end]
            else:
                parts.append(part)
        if together or prefix > group.prefix:
            yield prefix_ids, tuple(together)
        waiting += reversed(parts)


def repeated(overlaps: Sequence[int], prefix: int) -> int:
    """Return the tokens that are read more than once where documents continue one prefix.

    Args:
        overlaps: leading tokens that each document shares with the next one.
        prefix: tokens of the prefix.
    """
    return sum(overlap - prefix for overlap in overlaps)


def divided(group: Group, overlaps: Sequence[int], common: int, prefix: int) -> list[Group]:
    """Return the parts of a group, cut where neighbours share no more than `common` tokens.

    Args:
        group: the group.
        overlaps: leading tokens that each of its documents shares with the next one.
        common: the least of them.
        prefix: tokens that are read before the parts.
    """
    cuts = [group.begin]
    for place, overlap in enumerate(overlaps, start=group.begin + 1):
        if overlap == common:
            cuts.append(place)
    cuts.append(group.end)
    return [Group(begin, end, prefix) for begin, end in pairwise(cuts)]


def sized(widths: Mapping[int, int], most_rows: int, most_tokens: int) -> Iterator[list[int]]:
    """Divide rows into batches, the narrow ones first.

    Args:
        widths: row -> its own tokens, those after the shared prefix.
        most_rows: rows of a batch.
        most_tokens: tokens of a batch of several rows, padding included. A wider row is alone.
    """
    batch: list[int] = []
    for row in sorted(widths, key=widths.__getitem__):
        rows = len(batch) + 1
        if batch and (rows > most_rows or rows * widths[row] > most_tokens):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
