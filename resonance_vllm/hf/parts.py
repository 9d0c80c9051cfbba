"""Attention whose keys are met in parts, each at positions of its own.

Queries are divided into blocks. For a block, each part of the keys is a slice of the cache of which
all queries see the middle and some see the ends: only the ends need a mask. The plan of slices and
masks is the same for all layers of a forward pass.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from resonance_vllm.core.maps import Part, Positions
from resonance_vllm.hf.partial_attention import Partial, join, partial_attention

Made = TypeVar("Made")
CosSin = tuple[Tensor, Tensor]

_QUERIES = 512  # of a block
_UNMASKED = 128  # keys from which on the middle of a slice gets a call without a mask


@dataclass(frozen=True)
class Segment:
    """Keys that follow each other in a cache, of all rows or, shared by them, of one.

    Attributes:
        key: `[rows or 1, kv_heads, m, head_dim]`.
        value: Like `key`.
        first: Position of each row's first key; negative where padding comes first.
        pads: Keys at the beginning of each row that are padding.
    """

    key: Tensor
    value: Tensor
    first: tuple[int, ...]
    pads: tuple[int, ...]

    @property
    def case(self) -> Hashable:
        """What the plan of a forward pass depends on."""
        return self.first, self.pads, self.key.shape[2], self.key.dtype, self.key.device

    def positions(self, low: int, high: int) -> Tensor:
        """Positions of the keys `[low, high)`, `[rows, high - low]`; 0 for padding before all."""
        places = torch.arange(low, high, device="cpu")
        return (torch.tensor(self.first, device="cpu")[:, None] + places).clamp(min=0)


class Pass:
    """One forward pass: where its queries stand, and what its layers have in common.

    Args:
        position_ids: `[rows, n]`, or `[axes, rows, n]` with equal axes; a row's last one counts,
            because padding may have any.
    """

    def __init__(self, position_ids: Tensor) -> None:
        n = position_ids.shape[-1]
        last = position_ids.reshape(-1, *position_ids.shape[-2:])[0, :, -1:].cpu()
        self.at = last - (n - 1) + torch.arange(n, device="cpu")
        self._made: dict[Hashable, Any] = {}

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """What the first layer with this key made."""
        if key not in self._made:
            self._made[key] = make()
        made: Made = self._made[key]
        return made


class Turning(Protocol):
    """How queries and keys, rotated to `kept_at` of their positions, are turned on."""

    def kept_at(self, positions: Tensor) -> Tensor:
        """Of the position map."""

    def cos_sin(self, by: Tensor, like: Tensor) -> CosSin:
        """For distances `[rows, n]`, on the device of the tensors that will be turned."""

    def turn(self, states: Tensor, cos_sin: CosSin) -> Tensor:
        """Queries or keys `[rows, heads, n, head_dim]`, turned."""


class Slice(NamedTuple):
    """Keys `[start, end)` for the queries `[first, last)` of a block; a mask where some differ."""

    block: int
    first: int
    last: int
    start: int
    end: int
    mask: Tensor | None


def attend(
    now: Pass,
    query: Tensor,
    segments: Sequence[Segment],
    parts: Sequence[Part],
    turning: Turning | None,
    *,
    scale: float,
    lowest: Positions | None,
) -> Partial:
    """Attention of queries `[rows, heads, n, head_dim]` over all parts of all segments.

    Args:
        now: the forward pass.
        query: rotated as the cached keys are.
        segments: the keys, which end with those of the queries.
        parts: of the position map.
        turning: how queries and keys are turned on; None where no part needs it.
        scale: factor of the scores.
        lowest: position of the first key that a query in a window sees; None is 0.
    """
    at = now.at.clamp(min=0).expand(query.shape[0], -1)
    found = []
    for segment in segments:
        shared = segment.key.shape[0] < query.shape[0]
        blocks: dict[int, list[Partial]] = {}
        for number, part in enumerate(parts):
            case = (number, segment.case, shared, lowest is None)
            plan = now.once(case, partial(_plan, at, segment, part, lowest, shared=shared))
            if not plan:
                continue
            low, high = min(each.start for each in plan), max(each.end for each in plan)
            turned, key = query, segment.key[:, :, low:high]
            if turning is not None:
                where = segment.positions(low, high)
                turned = _turned(now, turning, query, at, part.query, ("query", number))
                key = _turned(now, turning, key, where, part.key, ("key", *case))
            if shared:  # the queries of all rows meet the keys in one product
                turned = turned.transpose(0, 1).flatten(1, 2)[None]
            for each in plan:
                own = turned[:, :, each.first : each.last]
                keys = key[:, :, each.start - low : each.end - low]
                values = segment.value[:, :, each.start : each.end]
                done = _grouped(own, keys, values, scale, each.mask)
                blocks.setdefault(each.block, []).append(done)
        found.append(_assembled(blocks, query, segment, shared=shared))
    return reduce(join, found)


def _turned(
    now: Pass,
    turning: Turning,
    states: Tensor,
    at: Tensor,
    wanted: Positions | None,
    case: Hashable,
) -> Tensor:
    """Queries or keys of positions `at`, turned on to where a part wants them."""

    def make() -> CosSin | None:
        by = (at if wanted is None else wanted(at)) - turning.kept_at(at)
        return turning.cos_sin(by, states) if by.any() else None

    cos_sin = now.once((case, states.device), make)
    return states if cos_sin is None else turning.turn(states, cos_sin)


def _plan(
    at: Tensor, segment: Segment, part: Part, lowest: Positions | None, *, shared: bool
) -> list[Slice]:
    """The slices of a segment that queries at `[rows, n]` see of a part."""
    m = segment.key.shape[2]
    first, pads = (torch.tensor(each)[:, None] for each in (segment.first, segment.pads))
    low = torch.zeros_like(at) if part.first is None else part.first(at)
    high = at + 1 if part.end is None else torch.minimum(part.end(at), at + 1)
    if lowest is not None:
        low = torch.maximum(low, lowest(at))
    low = torch.maximum((low - first).clamp(0, m), pads)
    high = torch.maximum((high - first).clamp(0, m), low)
    if shared:
        low, high = low.reshape(1, -1), high.reshape(1, -1)
    slices = []
    for number, begin in enumerate(range(0, low.shape[1], _QUERIES)):
        lows, highs = (each[:, begin : begin + _QUERIES] for each in (low, high))
        seeing = lows < highs
        if not seeing.any():
            continue
        start, end = int(lows[seeing].min()), int(highs[seeing].max())
        inner, outer = int(lows.max()), int(highs.min())
        cuts = [start, end]
        if outer - inner >= _UNMASKED or (inner, outer) == (start, end):
            cuts = [start, inner, outer, end]
        for left, right in pairwise(cuts):
            if left < right:
                mask = None
                if not (inner <= left and right <= outer):
                    mask = _mask(lows, highs, left, right, segment.key)
                slices.append(Slice(number, begin, begin + lows.shape[1], left, right, mask))
    return slices


def _mask(lows: Tensor, highs: Tensor, left: int, right: int, like: Tensor) -> Tensor:
    """An additive mask `[rows, 1, queries, right - left]` in the dtype of the keys.

    It hides by a number so low that nothing is left beside a key that is seen; with minus infinity
    a query that sees none of these keys would get no number.
    """
    places = torch.arange(left, right, device="cpu")
    hidden = (places < lows[..., None]) | (places >= highs[..., None])
    mask = torch.zeros(hidden.shape, dtype=like.dtype)
    return mask.masked_fill_(hidden, torch.finfo(like.dtype).min)[:, None].to(like.device)


def _grouped(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None
) -> Partial:
    """Attention where several query heads have one key head: their queries side by side."""
    rows, heads, n, dim = query.shape
    groups = heads // key.shape[1]
    folded = query.reshape(rows, key.shape[1], groups * n, dim)
    if mask is not None:
        mask = mask.repeat(1, 1, groups, 1)
    out, norm = partial_attention(folded, key, value, scale, mask, causal=False)
    return out.reshape(rows, heads, n, -1), norm.reshape(rows, heads, n)


def _assembled(
    blocks: dict[int, list[Partial]], query: Tensor, segment: Segment, *, shared: bool
) -> Partial:
    """The blocks of a segment as one; nothing, with no weight, where no key is seen."""
    rows, heads, n, _ = query.shape
    count = rows * n if shared else n
    outs, norms = [], []
    for number, begin in enumerate(range(0, count, _QUERIES)):
        if number in blocks:
            out, norm = reduce(join, blocks[number])
        else:
            shape = (1 if shared else rows, heads, min(_QUERIES, count - begin))
            out = query.new_zeros(*shape, segment.value.shape[-1])
            norm = query.new_full(shape, torch.finfo(torch.float32).min, dtype=torch.float32)
        outs.append(out)
        norms.append(norm)
    out, norm = torch.cat(outs, 2), torch.cat(norms, 2)
    if shared:
        out = out[0].unflatten(1, (rows, n)).transpose(0, 1)
        norm = norm[0].unflatten(1, (rows, n)).transpose(0, 1)
    return out, norm
