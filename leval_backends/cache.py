"""Key/value caches with a shared part: one path of the prompts' trie, and rows that hang on it.

Both exist in two modes. `split`: the shared part is kept once and `leval_backends.attention`
joins it with the rows' own keys. Not split: keys and values are laid out as any model's own
attention expects them, which costs a copy of the shared part for each row.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer

Pair = tuple[torch.Tensor, torch.Tensor]


class PrefixLayer(DynamicLayer):
    """One layer's keys and values in a buffer of fixed capacity, after an optional shared part.

    Shapes are `[batch, kv_heads, length, head_dim]`; the shared part has batch 1.
    """

    is_croppable = False

    def __init__(
        self, capacity: int, *, split: bool, path: bool, shared: Pair | None = None
    ) -> None:
        super().__init__()
        self.only_new = split and path  # what came before is the shared part of a path
        self.shared = shared
        self.shared_length = shared[0].shape[2] if shared else 0
        self.base = self.shared_length if split else 0  # shared positions beside the buffer
        self.length = self.shared_length - self.base  # positions in the buffer
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
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    @property
    def shared_keys(self) -> torch.Tensor:
        """Keys of the shared part, `[1, kv_heads, shared_length, head_dim]`, a view."""
        return self.shared[0] if self.shared else self.keys[:, :, : self.shared_length]

    @property
    def shared_values(self) -> torch.Tensor:
        """Values of the shared part, like `shared_keys`."""
        return self.shared[1] if self.shared else self.values[:, :, : self.shared_length]

    def get_seq_length(self) -> int:
        """Positions before the next token, shared ones included."""
        return self.base + self.length


class PrefixCache(Cache):
    """A cache for a path of the trie, of batch 1, or for `rows` after it.

    Attributes:
        split: Whether the shared part is kept apart.
        pads: Padding positions at the left of each row's own part, `[batch]`, or None.
    """

    layers: list[PrefixLayer]

    def __init__(
        self, capacity: int, *, split: bool, path: bool = True, shared: Sequence[Pair] = ()
    ) -> None:
        layer = partial(PrefixLayer, capacity, split=split, path=path)
        if shared:
            super().__init__(layers=[layer(shared=each) for each in shared])
        else:
            super().__init__(layer_class_to_replicate=layer)
        self.split = split
        self.pads: torch.Tensor | None = None
        self._masks: dict[torch.device, torch.Tensor] = {}

    def rows(self, length: int, extra: int) -> "PrefixCache":
        """A cache for rows after the first `length` positions of this path.

        Its buffers are referred to, not copied, when split; each row may add `extra` positions.
        """
        shared = [(layer.keys[:, :, :length], layer.values[:, :, :length]) for layer in self.layers]
        return PrefixCache(extra, split=self.split, path=False, shared=shared if length else ())

    def truncate(self, length: int) -> None:
        """Forget the positions of a path from `length` on; the buffers stay."""
        for layer in self.layers:
            layer.length = min(layer.length, length)

    def own_mask(self, n: int, key: torch.Tensor) -> torch.Tensor | None:
        """Additive mask over the rows' own keys, the same for every layer on one device.

        Args:
            n: New positions.
            key: Own keys `[batch, kv_heads, m, head_dim]` of a layer, the new ones last.

        Returns:
            None where plain causal attention over the own part is right; else `[batch, 1, n, m]`
            in the keys' dtype. A padding position sees itself, so that no row is empty.
        """
        m, device = key.shape[2], key.device
        if self.pads is None and n in (1, m):
            return None
        known = self._masks.get(device)
        if known is not None and known.shape[2:] == (n, m):
            return known
        rows = torch.arange(m - n, m, device=device)[:, None]
        columns = torch.arange(m, device=device)[None, :]
        seen = (columns <= rows)[None]
        if self.pads is not None:
            seen = seen & (columns[None] >= self.pads.to(device)[:, None, None])
            seen = seen | (columns == rows)[None]
        mask = torch.zeros(seen.shape, dtype=key.dtype, device=device)
        self._masks[device] = mask.masked_fill_(~seen, float("-inf"))[:, None]
        return self._masks[device]

    @property
    def bytes_per_position(self) -> int:
        """Bytes that one position of one row takes in all layers together."""
        return sum(
            tensor.shape[1] * tensor.shape[3] * tensor.element_size()
            for layer in self.layers
            for tensor in (layer.keys, layer.values)
        )
