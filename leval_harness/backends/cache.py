"""Key/value caches with a shared part: one path of the prompts' trie, and rows that hang on it.

Both exist in two modes. `split`: the shared part is kept once and
`leval_harness.backends.attention` joins it with the rows' own keys.
Not split: keys and values are laid out as any model's own
attention expects them, which costs a copy of the shared part for each row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import Cache

from leval_harness.backends.attention_layers import Pair, PrefixLayer, RingLayer, Window
from leval_harness.backends.layers import PathLayer, path_layer
from leval_harness.backends.state_layers import StateLayer


@dataclass(frozen=True)
class Footprint:
    """Bytes of a model's cache.

    Attributes:
        layers: Of each attention layer, bytes a position and positions kept at most (None: all).
        states: Bytes of the recurrent states of one sequence.
    """

    layers: tuple[tuple[int, int | None], ...] = ()
    states: int = 0

    @property
    def bytes_per_position(self) -> int:
        """Bytes that one position takes in all layers together."""
        return sum(size for size, _ in self.layers)

    def path(self, length: int) -> int:
        """Bytes of one path of a length."""
        kept = (length if most is None else min(length, most) for _, most in self.layers)
        sizes = (size for size, _ in self.layers)
        return self.states + sum(size * n for size, n in zip(sizes, kept, strict=True))

    def row(self, own: int) -> int:
        """Bytes of a row that refers to a path and adds `own` positions."""
        return self.states + own * self.bytes_per_position


class PrefixCache(Cache):
    """A cache for a path of the trie, of batch 1, or for rows after it.

    Attributes:
        split: Whether the shared part is kept apart.
        pads: Padding positions of each row, `[batch]`, or None: before its own part where split,
            else before everything.
    """

    layers: list[PathLayer]

    def __init__(self, layers: Sequence[PathLayer], *, split: bool) -> None:
        super().__init__(layers=list(layers))
        self.split = split
        self.pads: torch.Tensor | None = None
        self._keys: dict[int, torch.Tensor] = {}
        self._masks: dict[Any, tuple[torch.Tensor | None, torch.Tensor | None]] = {}
        self._masks_at = 0

    @classmethod
    def path(cls, config: Any, capacity: int, *, split: bool) -> "PrefixCache":
        """An empty path of at most `capacity` positions, for a model's config.

        Raises:
            ValueError: A layer's cache can neither be cut nor copied.
        """
        kinds = getattr(config.get_text_config(decoder=True), "layer_types", None) or ()
        layers, other = [], set()
        for index, template in enumerate(DynamicCache(config=config).layers):
            chunked = kinds[index : index + 1] == ["chunked_attention"]
            layer = path_layer(template, capacity, split=split, chunked=chunked)
            layers.append(layer)
            if layer is None:
                other.add(type(template).__name__)
        if other:
            raise ValueError(f"cache layers of type {', '.join(sorted(other))} cannot be copied")
        return cls([layer for layer in layers if layer], split=split)

    @property
    def attention_layers(self) -> list[PrefixLayer | RingLayer]:
        """Those that hold keys and values."""
        inner: list[Any] = [getattr(layer, "attention", layer) for layer in self.layers]
        return [layer for layer in inner if not isinstance(layer, StateLayer)]

    @property
    def takes_padding(self) -> bool:
        """Whether there may be padding between a path and a row's own part.

        A recurrent state keeps its trace, and a model's own mask hides what comes first only.
        """
        return self.split and all(isinstance(each, PrefixLayer | RingLayer) for each in self.layers)

    def update(
        self, key_states: Any, value_states: Any, layer_idx: int, *args: Any, **kwargs: Any
    ) -> Pair:
        """As of any cache; which layer the keys belong to is remembered."""
        pair: Pair = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        self._keys[layer_idx] = pair[0]
        return pair

    def layer_of(self, layer_idx: int, key: torch.Tensor) -> PrefixLayer | RingLayer:
        """The layer that gave a module its keys: its own, or the one whose keys it borrows."""
        if layer_idx >= len(self.layers):
            layer_idx = next(index for index, given in self._keys.items() if given is key)
        layer: Any = self.layers[layer_idx]
        return getattr(layer, "attention", layer)

    def mark(self) -> list[Any]:
        """What `restore` takes."""
        return [layer.mark() for layer in self.layers]

    def restore(self, mark: list[Any]) -> None:
        """Be as at a mark."""
        for layer, kept in zip(self.layers, mark, strict=True):
            layer.restore(kept)

    @property
    def cuttable(self) -> bool:
        """Whether `cut` reaches every length; else only marks can be gone back to."""
        return all(type(layer) is PrefixLayer for layer in self.layers)

    def cut(self, length: int) -> None:
        """Forget the positions of a path from `length` on; the buffers stay."""
        for layer in self.attention_layers:
            if isinstance(layer, PrefixLayer):
                layer.length = min(layer.length, length)

    def rows(self, batch: int, extra: int) -> "PrefixCache":
        """A cache for rows after all of this path, each of which may add `extra` positions."""
        return PrefixCache([layer.rows(batch, extra) for layer in self.layers], split=self.split)

    @classmethod
    def joined(cls, parts: "Sequence[PrefixCache]", extra: int) -> "PrefixCache":
        """One batch of rows that were read apart, after the same path; `extra` more may come."""
        layers = []
        for each in zip(*(part.layers for part in parts), strict=True):
            kind: Any = type(each[0])
            layers.append(kind.joined(each, extra))
        return cls(layers, split=parts[0].split)

    @property
    def footprint(self) -> "Footprint":
        """What caches of this path's layers take; it has been read once."""
        layers = []
        for layer in self.attention_layers:
            size = sum(
                each.shape[1] * each.shape[3] * each.element_size()
                for each in (layer.keys, layer.values)
            )
            layers.append((size, layer.window.size - 1 if layer.window else None))
        states = [getattr(layer, "states", layer) for layer in self.layers]
        sizes = sum(layer.nbytes for layer in states if isinstance(layer, StateLayer))
        return Footprint(tuple(layers), sizes)

    def masks(
        self, layer: PrefixLayer | RingLayer, n: int, key: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Additive masks over a layer's own and shared keys, alike for layers of one kind.

        Args:
            layer: Whose keys they are.
            n: New positions.
            key: Own keys `[batch, kv_heads, m, head_dim]`, the new ones last.

        Returns:
            Own: None where plain causal attention is right, else `[batch, 1, n, m]`; shared: None
            where all is seen, else `[batch, 1, n, shared_length]`; both in the keys' dtype, of
            batch 1 where the rows do not differ. A padding position sees itself, so that no row
            of the first is empty; the second hides by a number so low that nothing is left of it.
        """
        m, end = key.shape[2], layer.start + layer.shared_length
        window = layer.window
        if window is not None and not window.chunked and end + m <= window.size:
            window = None
        if end + m != self._masks_at:  # a later pass
            self._masks.clear()
            self._masks_at = end + m
        place = (key.device, window, n, m, layer.start)
        if place not in self._masks:
            self._masks[place] = (
                self._own_mask(window, n, key, end),
                self._shared_mask(window, n, key, layer.start, end),
            )
        return self._masks[place]

    def _positions(self, n: int, key: torch.Tensor, end: int) -> tuple[Any, Any]:
        """Positions of the queries `[batch, n]` and of their own keys `[batch, m]`."""
        m = key.shape[2]
        positions = end + torch.arange(m, device=key.device)[None]
        if self.pads is not None:
            positions = positions - self.pads.to(key.device)[:, None]
        return positions[:, m - n :], positions

    def _own_mask(
        self, window: Window | None, n: int, key: torch.Tensor, end: int
    ) -> torch.Tensor | None:
        m = key.shape[2]
        if self.pads is None and window is None and n in (1, m):
            return None
        queries, keys = self._positions(n, key, end)
        seen = keys[:, None, :] <= queries[:, :, None]
        if window is not None:
            seen = seen & (keys[:, None, :] >= window.first(queries)[:, :, None])
        if self.pads is not None:
            itself = keys[:, None, :] == queries[:, :, None]
            seen = (seen & (keys[:, None, :] >= end)) | itself
        return _additive(seen, key.dtype, float("-inf"))

    def _shared_mask(
        self, window: Window | None, n: int, key: torch.Tensor, start: int, end: int
    ) -> torch.Tensor | None:
        if window is None or start == end:
            return None
        queries, _ = self._positions(n, key, end)
        keys = torch.arange(start, end, device=key.device)
        seen = keys[None, None, :] >= window.first(queries)[:, :, None]
        return _additive(seen, key.dtype, torch.finfo(key.dtype).min)


def _additive(seen: torch.Tensor, dtype: torch.dtype, hidden: float) -> torch.Tensor:
    """A mask `[batch, 1, n, m]` to be added to scores, from what is seen `[batch, n, m]`."""
    mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return mask.masked_fill_(~seen, hidden)[:, None]
