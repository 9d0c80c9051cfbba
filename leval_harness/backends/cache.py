"""Key/value caches with a shared part: one path of the prompts' trie, and rows that follow it.

Both have two modes. Split: the shared part is stored once, and `leval_harness.backends.attention`
joins it with the rows' own keys. Not split: keys and values are laid out as any model's own
attention function expects them, which costs a copy of the shared part for each row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import Cache

from leval_harness.backends.cache_layers import (
    Pair,
    PathLayer,
    PrefixLayer,
    RingLayer,
    StateLayer,
    Window,
    path_layer,
)


@dataclass(frozen=True)
class Footprint:
    """Bytes of a model's cache.

    Attributes:
        layers: Of each attention layer, bytes per position, and the largest number of positions
            that are kept (None: all).
        states: Bytes of the recurrent states of one sequence.
    """

    layers: tuple[tuple[int, int | None], ...] = ()
    states: int = 0

    @property
    def bytes_per_position(self) -> int:
        """Bytes of one position in all layers together."""
        return sum(size for size, _ in self.layers)

    def path(self, length: int) -> int:
        """Bytes of one path of a length."""
        kept = (
            size * (length if most is None else min(length, most)) for size, most in self.layers
        )
        return self.states + sum(kept)

    def row(self, own: int) -> int:
        """Bytes of a row that refers to a path and adds `own` positions."""
        return self.states + own * self.bytes_per_position


class PrefixCache(Cache):
    """A cache for a path of the trie, of batch 1, or for rows after it.

    Attributes:
        split: Whether the shared part is stored apart.
        pads: Padding positions of each row, `[batch]`, or None. They come before the row's own part
            if split, else before everything.
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
            ValueError: A layer's cache can be neither cut nor copied.
        """
        kinds = getattr(config.get_text_config(decoder=True), "layer_types", None) or ()
        layers = []
        for index, template in enumerate(DynamicCache(config=config).layers):
            chunked = kinds[index : index + 1] == ["chunked_attention"]
            layers.append(path_layer(template, capacity, split=split, chunked=chunked))
        return cls(layers, split=split)

    @property
    def attention_layers(self) -> list[PrefixLayer | RingLayer]:
        """The layers that hold keys and values."""
        inner: list[Any] = [getattr(layer, "attention", layer) for layer in self.layers]
        return [layer for layer in inner if not isinstance(layer, StateLayer)]

    @property
    def takes_padding(self) -> bool:
        """Whether padding can stand between a path and a row's own part.

        Padding would change a recurrent state, and a model's own mask hides it only at the start.
        """
        return self.split and all(isinstance(each, PrefixLayer | RingLayer) for each in self.layers)

    @property
    def cuttable(self) -> bool:
        """Whether `cut` reaches every length; else the path can only return to snapshots."""
        return all(type(layer) is PrefixLayer for layer in self.layers)

    @property
    def footprint(self) -> Footprint:
        """What caches like this path take. The path must have been read once."""
        layers = []
        for layer in self.attention_layers:
            pair = (layer.keys, layer.values)
            size = sum(each.shape[1] * each.shape[3] * each.element_size() for each in pair)
            layers.append((size, layer.window.size - 1 if layer.window else None))
        states = [getattr(layer, "states", layer) for layer in self.layers]
        sizes = sum(layer.nbytes for layer in states if isinstance(layer, StateLayer))
        return Footprint(tuple(layers), sizes)

    def update(
        self, key_states: Any, value_states: Any, layer_idx: int, *args: Any, **kwargs: Any
    ) -> Pair:
        """Same as for any cache; also remembers to which layer the keys belong."""
        pair: Pair = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        self._keys[layer_idx] = pair[0]
        return pair

    def layer_of(self, layer_idx: int, key: torch.Tensor) -> PrefixLayer | RingLayer:
        """The layer that gave a module its keys: its own, or the one whose keys it borrows."""
        if layer_idx >= len(self.layers):
            layer_idx = next(index for index, given in self._keys.items() if given is key)
        layer: Any = self.layers[layer_idx]
        return getattr(layer, "attention", layer)

    def snapshot(self) -> list[Any]:
        """The argument of `restore`."""
        return [layer.snapshot() for layer in self.layers]

    def restore(self, snapshot: list[Any]) -> None:
        """Return to a snapshot."""
        for layer, kept in zip(self.layers, snapshot, strict=True):
            layer.restore(kept)

    def cut(self, length: int) -> None:
        """Forget the positions of a path from `length` on; the buffers stay."""
        for layer in self.attention_layers:
            if isinstance(layer, PrefixLayer):
                layer.length = min(layer.length, length)

    def fork(self, batch: int, extra: int) -> "PrefixCache":
        """A cache for rows after the whole path, each of which may add `extra` positions."""
        return PrefixCache([layer.fork(batch, extra) for layer in self.layers], split=self.split)

    @classmethod
    def join(cls, parts: "Sequence[PrefixCache]", extra: int) -> "PrefixCache":
        """One batch of rows that were read apart after the same path, with room for `extra`."""
        layers = []
        for each in zip(*(part.layers for part in parts), strict=True):
            kind: Any = type(each[0])
            layers.append(kind.join(each, extra))
        return cls(layers, split=parts[0].split)

    def masks(
        self, layer: PrefixLayer | RingLayer, n: int, key: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Additive masks over a layer's own and shared keys, the same for layers of one kind.

        Args:
            layer: The layer that holds the keys.
            n: New positions.
            key: Own keys `[batch, kv_heads, m, head_dim]`, the new ones last.

        Returns:
            Own: None where plain causal attention is right, else `[batch, 1, n, m]`. Shared: None
            where every key is seen, else `[batch, 1, n, shared_length]`. Both in the keys' dtype,
            of batch 1 where the rows do not differ. A padding position sees itself, so that no row
            of the first is empty; the second hides by a number so low that nothing is left.
        """
        m, end = key.shape[2], layer.start + layer.shared_length
        window = layer.window
        if window is not None and not window.chunked and end + m <= window.size:
            window = None
        if end + m != self._masks_at:  # a later forward pass
            self._masks.clear()
            self._masks_at = end + m
        case = (key.device, window, n, m, layer.start)
        if case not in self._masks:
            positions = end + torch.arange(m, device=key.device)[None]
            if self.pads is not None:
                positions = positions - self.pads.to(key.device)[:, None]
            own = shared = None
            if self.pads is not None or window is not None or n not in (1, m):
                own = _own_mask(positions, n, window, end, padded=self.pads is not None)
                own = _additive(own, key.dtype, float("-inf"))
            if window is not None and layer.shared_length:
                past = torch.arange(layer.start, end, device=key.device)
                shared = past[None, None, :] >= window.first(positions[:, m - n :])[:, :, None]
                shared = _additive(shared, key.dtype, torch.finfo(key.dtype).min)
            self._masks[case] = own, shared
        return self._masks[case]


def _own_mask(
    keys: torch.Tensor, n: int, window: Window | None, end: int, *, padded: bool
) -> torch.Tensor:
    """Which own keys the last `n` positions see, `[batch, n, m]`, from positions `[batch, m]`."""
    queries = keys[:, keys.shape[1] - n :, None]
    keys = keys[:, None, :]
    seen = keys <= queries
    if window is not None:
        seen = seen & (keys >= window.first(queries))
    if padded:  # padding has positions of the shared part
        seen = (seen & (keys >= end)) | (keys == queries)
    return seen


def _additive(seen: torch.Tensor, dtype: torch.dtype, hidden: float) -> torch.Tensor:
    """A mask `[batch, 1, n, m]` to be added to scores, from what is seen `[batch, n, m]`."""
    mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return mask.masked_fill_(~seen, hidden)[:, None]
