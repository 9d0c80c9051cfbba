"""In what order documents that begin alike are read, so that each token is read once."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

REPEATED = 0.01
"""Share of tokens that may be read again so that more rows are answered in one batch."""


Batch = tuple[list[int], tuple[int, ...]]
"""Token ids that are read first, and the numbers of the documents that begin with them; later batches
may go on from a prefix without any."""


def common_prefix(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Return how many leading items are equal."""
    if first[: len(second)] == second[: len(first)]:
        return min(len(first), len(second))
    return next(at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)


def batches(documents: Sequence[list[int]], most: Sequence[int], least: int = 1) -> Iterator[Batch]:
    """Yield batches of prompts in reading order, prefixes before what continues them.

    Documents that go on together for long are divided, so that of all tokens at most `REPEATED` are
    read again.

    Args:
        documents: token ids.
        most: of each text, the tokens that a shared prefix may have.
        least: tokens by which a prefix may be longer than the one before it.
    """
    order = sorted(
        range(len(documents)), key=documents.__getitem__
    )  # equal beginnings side by side
    alike = [
        min(common_prefix(documents[a], documents[b]), most[a], most[b]) for a, b in pairwise(order)
    ]
    todo = [(0, len(order), 0)] if order else []
    while todo:
        first, last, start = todo.pop()
        inner = alike[first : last - 1]
        shared = min(inner, default=start)
        cuts = [at + 1 for at in range(first, last - 1) if alike[at] == shared]
        shared = shared if shared >= start + least else start
        rows = tuple(order[first:last])
        prefix = documents[rows[0]][:shared]
        again = sum(inner) - shared * len(inner)
        read = sum(len(documents[row]) - shared for row in rows) - again + shared - start
        if again <= REPEATED * read:
            yield prefix, rows
            continue
        if shared > start:
            yield prefix, ()
        parts = [(a, b, shared) for a, b in pairwise([first, *cuts, last])]
        todo += reversed(parts)


def sized(widths: Mapping[int, int], most: int, tokens: int) -> Iterator[list[int]]:
    """Divide rows, whose `widths` are own tokens, into batches, the narrow ones first.

    A batch has at most `most` rows, and several of them at most `tokens`, padding included.
    """
    batch: list[int] = []
    for row in sorted(widths, key=widths.__getitem__):
        size = len(batch) + 1
        if batch and (size > most or size * widths[row] > tokens):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
