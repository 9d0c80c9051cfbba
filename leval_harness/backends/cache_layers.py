"""Cache layers of a path of the prompts' trie, and of the rows that continue from its end.

Each kind of layer can return to an earlier point (`snapshot`, `restore`), be followed by several
rows (`fork`), and join rows that were read apart into one batch (`join`). Full attention keeps
every position and is cut. A sliding window that has dropped positions, and a recurrent state, are
kept as they were at the snapshot.

Keys and values are `[batch, kv_heads, length, head_dim]`; a path has batch 1.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch.nn.functional import pad
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

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
        capacity: Largest number of positions that will be added.
        split: Whether the shared part stays outside of the buffer, for the shared-prefix attention.
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
        self.split, self.window, self.start, self.shared = split, window, start, shared
        self.returns_new_only = split and path
        self.shared_length = shared[0].shape[2] if shared else 0
        # Positions outside of the buffer, and in it.
        self.base = start + self.shared_length if split else 0
        self.length = 0 if split else self.shared_length
        self.capacity = capacity + self.length

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate the buffers in the shape of the first keys, and copy a shared part into them."""
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
        """Append new positions; returns what the attention function gets as its keys."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        first, self.length = self.length, self.length + key_states.shape[2]
        self.keys[:, :, first : self.length] = key_states
        self.values[:, :, first : self.length] = value_states
        if self.returns_new_only:
            self.shared_length = first
            return key_states, value_states
        return self.own

    @property
    def own(self) -> Pair:
        """The contents of the buffer."""
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    @property
    def shared_pair(self) -> Pair:
        """Keys and values of the shared part, as views."""
        if self.shared:
            return self.shared
        return self.keys[:, :, : self.shared_length], self.values[:, :, : self.shared_length]

    def get_seq_length(self) -> int:
        """Positions before the next token, shared ones included."""
        return self.base + self.length

    def snapshot(self) -> int:
        """The argument of `restore`."""
        return self.length

    def restore(self, snapshot: int) -> None:
        """Forget the positions added since a snapshot; the buffers stay."""
        self.length = snapshot

    def fork(self, batch: int, extra: int) -> "PrefixLayer":
        """A layer for rows after the path. If split, the path's keys are views, not copies."""
        shared = self.own if self.length else None
        layer = PrefixLayer(extra, split=self.split, path=False, window=self.window, shared=shared)
        return layer.allocated(batch)

    def allocated(self, batch: int) -> Self:
        """This layer with buffers for rows, if it has a shared part that gives their shape."""
        if self.shared:
            self.lazy_initialization(*(each.expand(batch, -1, -1, -1) for each in self.shared))
        return self

    @classmethod
    def join(cls, parts: "Sequence[PrefixLayer]", extra: int) -> "PrefixLayer":
        """One batch of the rows of several layers after the same shared part, aligned right."""
        head, width = parts[0], max(part.length for part in parts)
        layer = PrefixLayer(
            width + extra, split=head.split, path=False, window=head.window,
            shared=head.shared if head.split else None, start=head.start,
        )  # fmt: skip
        layer.update(*_aligned([part.own for part in parts], width))
        return layer


class RingLayer(DynamicSlidingWindowLayer):
    """The last positions of a path that is longer than the window; older ones are dropped.

    transformers' layer never changes its tensors in place, so that a snapshot can refer to them.
    """

    def __init__(self, window: Window, *, split: bool) -> None:
        super().__init__(window.size)
        self.window, self.split = window, split
        self.shared_pair: Pair | None = None
        self.shared_length = self.start = 0

    @property
    def own(self) -> Pair:
        """The positions that were kept."""
        return self.keys, self.values

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Pair:
        """Append new positions. If split, returns these; the kept ones are the shared part."""
        if not self.split:
            pair: Pair = super().update(key_states, value_states)
            return pair
        self.shared_pair = self.own if self.is_initialized else None
        self.shared_length = self.keys.shape[2] if self.is_initialized else 0
        self.start = self.cumulative_length - self.shared_length
        super().update(key_states, value_states)
        return key_states, value_states

    def snapshot(self) -> tuple[Any, ...]:
        """The argument of `restore`."""
        return self.is_initialized, self.keys, self.values, self.cumulative_length

    def restore(self, snapshot: tuple[Any, ...]) -> None:
        """Return to a snapshot."""
        self.is_initialized, self.keys, self.values, self.cumulative_length = snapshot

    def fork(self, batch: int, extra: int) -> "PrefixLayer | RingLayer":
        """A layer for rows after the path. If split, the kept positions are their shared part."""
        if self.split:
            shared = self.own if self.is_initialized else None
            start = self.cumulative_length - (self.keys.shape[2] if shared else 0)
            layer = PrefixLayer(
                extra, split=True, path=False, window=self.window, shared=shared, start=start
            )
            return layer.allocated(batch)
        if not self.is_initialized:
            return RingLayer(self.window, split=False)
        rows = (each.expand(batch, -1, -1, -1) for each in self.own)
        return self._filled(*rows, self.cumulative_length)

    @classmethod
    def join(cls, parts: "Sequence[RingLayer]", extra: int) -> "RingLayer":
        """One batch of the rows of several layers, aligned right."""
        width = max(part.keys.shape[2] for part in parts)
        keys, values = _aligned([part.own for part in parts], width)
        return parts[0]._filled(keys, values, max(part.cumulative_length for part in parts))

    def _filled(self, keys: torch.Tensor, values: torch.Tensor, length: int) -> "RingLayer":
        ring = RingLayer(self.window, split=False)
        ring.lazy_initialization(keys, values)
        ring.keys, ring.values, ring.cumulative_length = keys, values, length
        return ring


class StateLayer(LinearAttentionLayer):
    """A recurrent state and the last inputs of convolutions. Changed in place, so always copied."""

    def __init__(self, states: LinearAttentionLayer) -> None:
        self.__dict__.update(copy.deepcopy(vars(states)))

    @property
    def nbytes(self) -> int:
        """Bytes of all states."""
        states = (*self.conv_states.values(), *self.recurrent_states.values())
        return sum(state.nbytes for state in states if state is not None)

    def snapshot(self) -> dict[str, Any]:
        """The argument of `restore`."""
        return copy.deepcopy(vars(self))

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Return to a snapshot."""
        self.__dict__.update(copy.deepcopy(snapshot))

    def fork(self, batch: int, extra: int) -> "StateLayer":
        """A layer for rows after the path."""
        layer = StateLayer(self)
        layer.reorder_cache(torch.zeros(batch, dtype=torch.long))
        return layer

    @classmethod
    def join(cls, parts: "Sequence[StateLayer]", extra: int) -> "StateLayer":
        """One batch of the rows of several layers."""
        layer = StateLayer(parts[0])
        for name in ("conv_states", "recurrent_states"):
            states = [getattr(part, name) for part in parts]
            setattr(layer, name, {
                index: None if first is None else torch.cat([each[index] for each in states])
                for index, first in states[0].items()
            })  # fmt: skip
        return layer


class HybridLayer(LinearAttentionLayer, DynamicLayer):
    """Attention beside a recurrent state: one of the layers above for each."""

    is_compileable = False

    def __init__(self, attention: PrefixLayer | RingLayer, states: StateLayer) -> None:
        self.attention, self.states = attention, states
        self.is_sliding = attention.is_sliding
        self.update = attention.update
        self.get_seq_length = attention.get_seq_length
        self.get_mask_sizes = attention.get_mask_sizes
        self.update_conv_state = states.update_conv_state
        self.update_recurrent_state = states.update_recurrent_state

    def __getattr__(self, name: str) -> Any:
        """The states as models read and write them."""
        return getattr(vars(self)["states"], name)

    def snapshot(self) -> tuple[Any, Any]:
        """The argument of `restore`."""
        return self.attention.snapshot(), self.states.snapshot()

    def restore(self, snapshot: tuple[Any, Any]) -> None:
        """Return to a snapshot."""
        self.attention.restore(snapshot[0])
        self.states.restore(snapshot[1])

    def fork(self, batch: int, extra: int) -> "HybridLayer":
        """A layer for rows after the path."""
        return HybridLayer(self.attention.fork(batch, extra), self.states.fork(batch, extra))

    @classmethod
    def join(cls, parts: "Sequence[HybridLayer]", extra: int) -> "HybridLayer":
        """One batch of the rows of several layers."""
        attention: Any = [part.attention for part in parts]
        states = StateLayer.join([part.states for part in parts], extra)
        return HybridLayer(type(attention[0]).join(attention, extra), states)


PathLayer = PrefixLayer | RingLayer | StateLayer | HybridLayer


def path_layer(template: Any, capacity: int, *, split: bool, chunked: bool) -> PathLayer | None:
    """Our layer for one of transformers'. None for a kind that can be neither cut nor copied.

    Args:
        template: The layer in which transformers would cache this layer of the model.
        capacity: Longest path.
        split: Whether the model runs with the shared-prefix attention.
        chunked: Whether the window is a chunk at a fixed place.
    """
    kind = type(template)
    if kind is LinearAttentionLayer:
        return StateLayer(template)
    attention: PrefixLayer | RingLayer = PrefixLayer(capacity, split=split)
    if kind in (DynamicSlidingWindowLayer, LinearAttentionAndSlidingWindowAttentionLayer):
        window = Window(template.sliding_window, chunked)
        if capacity > window.size:
            attention = RingLayer(window, split=split)
        else:  # a path within the window keeps every position
            attention = PrefixLayer(capacity, split=split, window=window)
    if kind in (DynamicLayer, DynamicSlidingWindowLayer):
        return attention
    if kind in (
        LinearAttentionAndFullAttentionLayer,
        LinearAttentionAndSlidingWindowAttentionLayer,
    ):
        return HybridLayer(attention, StateLayer(LinearAttentionLayer(template.number_of_states)))
    return None


def _aligned(parts: Sequence[Pair], width: int) -> Pair:
    """Keys and values of rows of several lengths in one batch, zeros before the shorter ones."""
    keys, values = (
        torch.cat([pad(part, (0, 0, width - part.shape[2], 0)) for part in each])
        for each in zip(*parts, strict=True)
    )
    return keys, values
