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
from typing import Any

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
_PLAIN = (DynamicLayer, DynamicSlidingWindowLayer)
_HYBRID = (LinearAttentionAndFullAttentionLayer, LinearAttentionAndSlidingWindowAttentionLayer)


@dataclass(frozen=True)
class Window:
    """What a layer sees of the past: the last `size` positions, or its own chunk of that size."""

    size: int
    chunked: bool = False

    def first(self, positions: torch.Tensor) -> torch.Tensor:
        """The first position that a query at each position sees."""
        return positions - (positions % self.size if self.chunked else self.size - 1)


class _Restorable:
    """A layer that can return to an earlier point. Its tensors are never changed before that."""

    def snapshot(self) -> dict[str, Any]:
        """The argument of `restore`."""
        return dict(vars(self))

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Return to a snapshot."""
        self.__dict__.update(snapshot)


class PrefixLayer(_Restorable, DynamicLayer):
    """Keys and values in a buffer of fixed capacity, after an optional shared part of batch 1.

    Args:
        capacity: Largest number of positions that will be added.
        split: Whether the shared part stays outside of the buffer, for the shared-prefix attention.
        rows: Rows after a path. None for the path itself, whose shared part is what came before.
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
        rows: int | None = None,
        window: Window | None = None,
        shared: Pair | None = None,
        start: int = 0,
    ) -> None:
        super().__init__()
        self.split, self.window, self.start, self.shared = split, window, start, shared
        self.returns_new_only = split and rows is None
        self.shared_length = shared[0].shape[2] if shared else 0
        # Positions before the buffer, and in it.
        self.base = start + (self.shared_length if split else 0)
        self.length = 0 if split else self.shared_length
        self.capacity = capacity + self.length
        self.is_sliding = start > 0  # other layers hold more keys, and get another mask
        if rows is not None and shared:
            self.lazy_initialization(*(each.expand(rows, -1, -1, -1) for each in shared))

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

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Number of keys that the attention function gets, and the position of the first."""
        return self.length + query_length, self.base

    def fork(self, rows: int, extra: int) -> "PrefixLayer":
        """A layer for rows after the path. If split, the path's keys are views, not copies."""
        shared = self.own if self.length else None
        return PrefixLayer(extra, split=self.split, rows=rows, window=self.window, shared=shared)

    @classmethod
    def join(cls, parts: "Sequence[PrefixLayer]", extra: int) -> "PrefixLayer":
        """One batch of the rows of several layers after the same shared part, aligned right."""
        keys, values = _aligned([part.own for part in parts])
        head = parts[0]
        layer = PrefixLayer(
            keys.shape[2] + extra, split=head.split, rows=keys.shape[0], window=head.window,
            shared=head.shared if head.split else None, start=head.start,
        )  # fmt: skip
        layer.update(keys, values)
        return layer


class RingLayer(_Restorable, DynamicSlidingWindowLayer):
    """The last positions of a path that is longer than the window; older ones are dropped."""

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
        if self.is_initialized:
            self.shared_pair, self.shared_length = self.own, self.keys.shape[2]
        self.start = self.cumulative_length - self.shared_length
        pair: Pair = super().update(key_states, value_states)
        return (key_states, value_states) if self.split else pair

    def fork(self, rows: int, extra: int) -> PrefixLayer:
        """A layer for rows after the path, whose shared part are the kept positions."""
        shared = self.own if self.is_initialized else None
        start = self.cumulative_length - (self.keys.shape[2] if shared else 0)
        return PrefixLayer(
            extra, split=self.split, rows=rows, window=self.window, shared=shared, start=start
        )


class StateLayer(LinearAttentionLayer):
    """A recurrent state and the last inputs of convolutions. Changed in place, so always copied."""

    def __init__(self, states: LinearAttentionLayer) -> None:
        self.restore(vars(states))

    @property
    def nbytes(self) -> int:
        """Bytes of all states."""
        states = (*self.conv_states.values(), *self.recurrent_states.values())
        return sum(state.nbytes for state in states if state is not None)

    def snapshot(self) -> dict[str, Any]:
        """The argument of `restore`."""
        return copy.deepcopy(self.__dict__)

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Return to a snapshot."""
        self.__dict__.update(copy.deepcopy(snapshot))

    def fork(self, rows: int, extra: int) -> "StateLayer":
        """A layer for rows after the path."""
        layer = StateLayer(self)
        layer.reorder_cache(torch.zeros(rows, dtype=torch.long))
        return layer

    @classmethod
    def join(cls, parts: "Sequence[StateLayer]", extra: int) -> "StateLayer":
        """One batch of the rows of several layers."""
        layer = StateLayer(parts[0])
        for name in ("conv_states", "recurrent_states"):
            states = [getattr(part, name) for part in parts]
            filled = [index for index, first in states[0].items() if first is not None]
            joined = {index: torch.cat([each[index] for each in states]) for index in filled}
            setattr(layer, name, states[0] | joined)
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

    def fork(self, rows: int, extra: int) -> "HybridLayer":
        """A layer for rows after the path."""
        return HybridLayer(self.attention.fork(rows, extra), self.states.fork(rows, extra))

    @classmethod
    def join(cls, parts: "Sequence[HybridLayer]", extra: int) -> "HybridLayer":
        """One batch of the rows of several layers."""
        attention: Any = [part.attention for part in parts]
        states = StateLayer.join([part.states for part in parts], extra)
        return HybridLayer(PrefixLayer.join(attention, extra), states)


PathLayer = PrefixLayer | RingLayer | StateLayer | HybridLayer


def path_layer(template: Any, capacity: int, *, split: bool, chunked: bool) -> PathLayer:
    """Our layer for one of transformers'.

    Args:
        template: The layer in which transformers would cache this layer of the model.
        capacity: Longest path. A window that is not shorter keeps every position.
        split: Whether the model runs with the shared-prefix attention.
        chunked: Whether the window is a chunk at a fixed place.

    Raises:
        ValueError: The layer is of a kind that can be neither cut nor copied.
    """
    kind = type(template)
    if kind is LinearAttentionLayer:
        return StateLayer(template)
    if kind not in _PLAIN and kind not in _HYBRID:
        raise ValueError(f"cache layers of type {kind.__name__} cannot be copied")
    size = getattr(template, "sliding_window", None)
    window = Window(size, chunked) if size else None
    attention: PrefixLayer | RingLayer = PrefixLayer(capacity, split=split, window=window)
    if window and capacity > window.size:
        attention = RingLayer(window, split=split)
    if kind in _PLAIN:
        return attention
    return HybridLayer(attention, StateLayer(LinearAttentionLayer(template.number_of_states)))


def _aligned(parts: Sequence[Pair]) -> Pair:
    """Keys and values of rows of several lengths in one batch, zeros before the shorter ones."""
    longest = max(keys.shape[2] for keys, _ in parts)
    keys, values = (
        torch.cat([pad(part, (0, 0, longest - part.shape[2], 0)) for part in each])
        for each in zip(*parts, strict=True)
    )
    return keys, values
