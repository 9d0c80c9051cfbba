"""Key/value caches with a shared part: one path of the prompts' trie, and rows that hang on it.

Both exist in two modes. `split`: the shared part is kept once and `leval_backends.attention`
joins it with the rows' own keys. Not split: keys and values are laid out as any model's own
attention expects them, which costs a copy of the shared part for each row.
"""

from functools import partial
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer


class PrefixLayer(DynamicLayer):
    """One layer's keys and values in a buffer of fixed capacity, after an optional shared part.

    Shapes are `[batch, kv_heads, length, head_dim]`; the shared part has batch 1.
    """

    is_croppable = False

    def __init__(
        self,
        capacity: int,
        *,
        split: bool,
        path: bool,
        shared: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.capacity = capacity
        self.split = split
        self.path = path
        self.length = 0  # own positions in the buffer
        self.base = 0  # shared positions that the buffer does not hold
        self.shared_length = 0
        self._shared = shared
        if shared is not None:
            self.shared_length = shared[0].shape[2]
            self.base = self.shared_length if split else 0
            self.length = 0 if split else self.shared_length
            self.capacity += self.length

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate the buffers once the first keys tell their shape, and lay in the shared part."""
        self.dtype, self.device = key_states.dtype, key_states.device
        batch, heads = key_states.shape[:2]
        self.keys = key_states.new_empty(batch, heads, self.capacity, key_states.shape[3])
        self.values = value_states.new_empty(batch, heads, self.capacity, value_states.shape[3])
        if self._shared is not None and not self.split:
            self.keys[:, :, : self.shared_length] = self._shared[0]
            self.values[:, :, : self.shared_length] = self._shared[1]
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append new positions and return what the attention function is to see as its keys."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        first, self.length = self.length, self.length + key_states.shape[2]
        self.keys[:, :, first : self.length] = key_states
        self.values[:, :, first : self.length] = value_states
        if self.path and self.split:
            self.shared_length = first
            return key_states, value_states
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    @property
    def shared_keys(self) -> torch.Tensor:
        """Keys of the shared part, `[1, kv_heads, shared_length, head_dim]`, a view."""
        return self._shared[0] if self._shared else self.keys[:, :, : self.shared_length]

    @property
    def shared_values(self) -> torch.Tensor:
        """Values of the shared part, like `shared_keys`."""
        return self._shared[1] if self._shared else self.values[:, :, : self.shared_length]

    def get_seq_length(self) -> int:
        """Positions before the next token, shared ones included."""
        return self.base + self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the keys that a mask made by the model has to cover."""
        return self.get_seq_length() + query_length, 0

    def truncate(self, length: int) -> None:
        """Forget the positions from `length` on; the buffer stays."""
        self.length = min(self.length, length)


class PrefixCache(Cache):
    """A cache of `PrefixLayer`s, with what the attention function must know about padding.

    Attributes:
        pads: Padding positions at the left of each row's own part, `[batch]`, or None.
    """

    layers: list[PrefixLayer]

    def __init__(self, layers: list[PrefixLayer] | None = None, **options: Any) -> None:
        if layers is None:
            super().__init__(layer_class_to_replicate=partial(PrefixLayer, **options))
        else:
            super().__init__(layers=layers)
        self.pads: torch.Tensor | None = None
        self._masks: dict[torch.device, torch.Tensor] = {}

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


def path_cache(capacity: int, *, split: bool) -> PrefixCache:
    """An empty cache of batch 1 for one path of the trie, of at most `capacity` positions."""
    return PrefixCache(capacity=capacity, split=split, path=True)


def rows_cache(
    path: PrefixCache, length: int, extra: int, *, split: bool, pads: torch.Tensor | None
) -> PrefixCache:
    """A cache for a batch of rows after the first `length` positions of a path.

    Args:
        path: The path's cache; its buffers are referred to, not copied, when split.
        length: Shared positions, at most what the path holds.
        extra: Own positions that each row may need.
        split: Mode, that of the path.
        pads: Padding at the left of each row's own part, `[batch]`, or None.
    """
    if not length:
        cache = PrefixCache(capacity=extra, split=split, path=False)
    else:
        cache = PrefixCache(
            [
                PrefixLayer(
                    extra,
                    split=split,
                    path=False,
                    shared=(layer.keys[:, :, :length], layer.values[:, :, :length]),
                )
                for layer in path.layers
            ]
        )
    cache.pads = pads if split else None
    return cache


def bytes_per_position(cache: PrefixCache) -> int:
    """Bytes that one position of one row takes in all layers together."""
    return sum(
        tensor.shape[1] * tensor.shape[3] * tensor.element_size()
        for layer in cache.layers
        for tensor in (layer.keys, layer.values)
    )
