"""Cache layers of keys and values: all positions of a path, or the last that a window sees.

Shapes of keys and values are `[batch, kv_heads, length, head_dim]`; a path has batch 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch.nn.functional import pad
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Window:
    """What a layer sees of the past: the last `size` positions, or its own chunk of that size."""

    size: int
    chunked: bool = False

    def first(self, positions: torch.Tensor) -> torch.Tensor:
        """The first position that a query at each position sees."""
        return positions - (positions % self.size if self.chunked else self.size - 1)


class PrefixLayer(DynamicLayer):
    """Keys and values in a buffer of fixed capacity, after an optional shared part of batch 1.

    Args:
        capacity: Positions that may be added.
        split: Whether the shared part stays beside the buffer, for the shared-prefix attention.
        path: Whether this is the path itself, whose shared part is what came before.
        window: What the layer sees, None for everything.
        shared: Keys and values of the shared part.
        start: Position of the first shared key.
    """

    is_croppable = False

    def __init__(
        self,
        capacity: int,
        *,
        split: bool,
        path: bool = True,
        window: Window | None = None,
        shared: Pair | None = None,
        start: int = 0,
    ) -> None:
        super().__init__()
        self.split, self.window, self.start = split, window, start
        self.only_new = split and path  # what came before is the shared part of a path
        self.shared = shared
        self.shared_length = shared[0].shape[2] if shared else 0
        # Positions beside the buffer, and in it.
        self.base = start + self.shared_length if split else 0
        self.length = 0 if split else self.shared_length
        self.capacity = capacity + self.length

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate the buffers once the first keys tell their shape, and lay in the shared part."""
        self.dtype, self.device = key_states.dtype, key_states.device
        batch, heads = key_states.shape[:2]
        self.keys = key_states.new_empty(batch, heads, self.capacity, key_states.shape[3])
        self.values = value_states.new_empty(batch, heads, self.capacity, value_states.shape[3])
        if self.shared and self.length:
            self.keys[:, :, : self.length], self.values[:, :, : self.length] = self.shared
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Pair:
        """Append new positions and return what the attention function is to see as its keys."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        first, self.length = self.length, self.length + key_states.shape[2]
        self.keys[:, :, first : self.length] = key_states
        self.values[:, :, first : self.length] = value_states
        if self.only_new:
            self.shared_length = first
            return key_states, value_states
        return self.own

    @property
    def own(self) -> Pair:
        """What the buffer holds."""
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    @property
    def shared_pair(self) -> Pair:
        """Keys and values of the shared part, views."""
        if self.shared:
            return self.shared
        return self.keys[:, :, : self.shared_length], self.values[:, :, : self.shared_length]

    def get_seq_length(self) -> int:
        """Positions before the next token, shared ones included."""
        return self.base + self.length

    def mark(self) -> int:
        """What `restore` takes."""
        return self.length

    def restore(self, mark: int) -> None:
        """Forget what was added since a mark; the buffers stay."""
        self.length = mark

    def rows(self, batch: int, extra: int) -> "PrefixLayer":
        """A layer for rows after a path, whose keys are referred to, not copied, when split."""
        layer = PrefixLayer(
            extra, split=self.split, path=False, window=self.window,
            shared=self.own if self.length else None,
        )  # fmt: skip
        return layer.allocated(batch)

    def allocated(self, batch: int) -> Self:
        """With its buffers for rows, if the shared part tells their shape."""
        if self.shared:
            self.lazy_initialization(*(each.expand(batch, -1, -1, -1) for each in self.shared))
        return self

    @classmethod
    def joined(cls, parts: "Sequence[PrefixLayer]", extra: int) -> "PrefixLayer":
        """Rows of several layers after the same shared part, their ends side by side."""
        head, width = parts[0], max(part.length for part in parts)
        layer = PrefixLayer(
            width + extra, split=head.split, path=False, window=head.window,
            shared=head.shared if head.split else None, start=head.start,
        )  # fmt: skip
        keys, values = (aligned(each, width) for each in zip(*(p.own for p in parts), strict=True))
        layer.update(keys, values)
        return layer


class RingLayer(DynamicSlidingWindowLayer):
    """The last positions of a path that a window has outgrown; older ones are gone.

    transformers' own layer never changes its tensors in place, so that a mark refers to them.
    """

    def __init__(self, window: Window, *, split: bool) -> None:
        super().__init__(window.size)
        self.window, self.split = window, split
        self.shared_pair: Pair | None = None
        self.shared_length = self.start = 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Pair:
        """Append new positions; the split attention gets those alone and finds the ring here."""
        if not self.split:
            pair: Pair = super().update(key_states, value_states)
            return pair
        self.shared_pair = (self.keys, self.values) if self.is_initialized else None
        self.shared_length = self.keys.shape[2] if self.is_initialized else 0
        self.start = self.cumulative_length - self.shared_length
        super().update(key_states, value_states)
        return key_states, value_states

    def mark(self) -> tuple[Any, ...]:
        """What `restore` takes."""
        return self.is_initialized, self.keys, self.values, self.cumulative_length

    def restore(self, mark: tuple[Any, ...]) -> None:
        """Be as at a mark."""
        self.is_initialized, self.keys, self.values, self.cumulative_length = mark

    def rows(self, batch: int, extra: int) -> "PrefixLayer | RingLayer":
        """A layer for rows after a path: split, the ring is their shared part."""
        kept = self.keys.shape[2] if self.is_initialized else 0
        if self.split:
            shared = (self.keys, self.values) if kept else None
            start = self.cumulative_length - kept
            layer = PrefixLayer(
                extra, split=True, path=False, window=self.window, shared=shared, start=start
            )
            return layer.allocated(batch)
        ring = RingLayer(self.window, split=False)
        ring.restore(self.mark())
        if kept:
            ring.lazy_initialization(self.keys, self.values)
            ring.keys, ring.values = (
                each.expand(batch, -1, -1, -1) for each in (self.keys, self.values)
            )
        return ring

    @classmethod
    def joined(cls, parts: "Sequence[RingLayer]", extra: int) -> "RingLayer":
        """Rows of several layers, their ends side by side."""
        ring = RingLayer(parts[0].window, split=False)
        width = max(part.keys.shape[2] for part in parts)
        keys, values = (aligned([getattr(p, n) for p in parts], width) for n in ("keys", "values"))
        ring.lazy_initialization(keys, values)
        ring.keys, ring.values = keys, values
        ring.cumulative_length = max(part.cumulative_length for part in parts)
        return ring


def aligned(parts: Sequence[torch.Tensor], width: int) -> torch.Tensor:
    """Rows `[batch, heads, length, dim]` of several lengths, zeros before the shorter ones."""
    return torch.cat([pad(part, (0, 0, width - part.shape[2], 0)) for part in parts])
