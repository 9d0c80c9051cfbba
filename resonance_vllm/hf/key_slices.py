"""Which slice of the cached keys each block of queries attends to, for one part of a remapping.

The queries of a block attend to intervals of keys that move with the query. All of them see the
middle of the slice, and only some see its ends: the middle needs no mask, which lets the fastest
kernels run.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from resonance_vllm.core.remapping import Part

_QUERIES = 512
"""Queries of a block."""
_UNMASKED = 128
"""Fewest keys in the middle of a slice that get a call without a mask."""


@dataclass(frozen=True)
class Keys:
    """The keys of a cache; the last of them are those of the queries.

    Attributes:
        key: `[rows, kv_heads, m, head_dim]`.
        value: `[rows, kv_heads, m, value_dim]`.
        first: The position of each row's first key, negative where padding precedes the text.
        pads: How many keys at the beginning of each row are padding.
    """

    key: Tensor
    value: Tensor
    first: tuple[int, ...]
    pads: tuple[int, ...]

    @property
    def case(self) -> Hashable:
        """Return what the slices of a forward pass depend on."""
        return self.first, self.pads, self.key.shape[2], self.key.dtype, self.key.device

    def positions(self, start: int, end: int) -> Tensor:
        """Return the positions of keys `[start, end)`, int64 `[rows, end - start]`; 0 of padding."""
        index = torch.arange(start, end, device="cpu")
        first = torch.tensor(self.first, device="cpu")
        return (first[:, None] + index).clamp(min=0)


class KeySlice(NamedTuple):
    """Keys that a block of queries attends to.

    Attributes:
        first_query: Index of the block's first query.
        last_query: Index after its last query.
        start: Index of the first key.
        end: Index after the last key.
        mask: Additive `[rows, 1, queries, keys]` where some queries do not see some of the keys.
    """

    first_query: int
    last_query: int
    start: int
    end: int
    mask: Tensor | None


def key_slices(
    query_positions: Tensor, keys: Keys, part: Part, window: int | None
) -> list[KeySlice]:
    """Return the slices of the keys that queries attend to in one part of a remapping.

    Args:
        query_positions: int64 `[rows, n]` on the CPU.
        keys: The cached keys.
        part: The part.
        window: Most keys that a query attends to; None is all.
    """
    starts, ends = _visible_keys(query_positions, keys, part, window)
    slices = []
    for first_query in range(0, starts.shape[1], _QUERIES):
        last_query = min(first_query + _QUERIES, starts.shape[1])
        block_starts = starts[:, first_query:last_query]
        block_ends = ends[:, first_query:last_query]
        sees_any = block_starts < block_ends
        if not sees_any.any():
            continue
        start = int(block_starts[sees_any].min())
        end = int(block_ends[sees_any].max())
        # All queries of the block see the keys of `[common_start, common_end)`.
        common_start = int(block_starts.max())
        common_end = int(block_ends.min())
        bounds = [start, end]
        all_see_all = (common_start, common_end) == (start, end)
        if all_see_all or common_end - common_start >= _UNMASKED:
            bounds = [start, common_start, common_end, end]
        for left, right in pairwise(bounds):
            if left >= right:
                continue
            mask = None
            if left < common_start or right > common_end:
                mask = _mask(block_starts, block_ends, left, right, keys.key)
            slices.append(KeySlice(first_query, last_query, left, right, mask))
    return slices


def _visible_keys(
    query_positions: Tensor, keys: Keys, part: Part, window: int | None
) -> tuple[Tensor, Tensor]:
    """Return the interval of keys that each query sees, as indices `[rows, n]` of start and end."""
    count = keys.key.shape[2]
    first = torch.tensor(keys.first)[:, None]
    pads = torch.tensor(keys.pads)[:, None]
    start_position = part.first(query_positions)
    if window is not None:
        start_position = torch.maximum(start_position, query_positions - window + 1)
    end_position = torch.minimum(part.end(query_positions), query_positions + 1)
    starts = torch.maximum((start_position - first).clamp(0, count), pads)
    ends = torch.maximum((end_position - first).clamp(0, count), starts)
    return starts, ends


def _mask(starts: Tensor, ends: Tensor, left: int, right: int, like: Tensor) -> Tensor:
    """Return an additive mask `[rows, 1, queries, right - left]` in the dtype of the keys.

    It hides by the lowest finite number, which leaves nothing beside a key that is seen. With
    minus infinity a query that sees none of these keys would get no number.
    """
    index = torch.arange(left, right, device="cpu")
    hidden = (index < starts[..., None]) | (index >= ends[..., None])
    mask = torch.zeros(hidden.shape, dtype=like.dtype)
    lowest = torch.finfo(like.dtype).min
    return mask.masked_fill_(hidden, lowest)[:, None].to(like.device)
