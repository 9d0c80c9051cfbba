"""Attention over a document that all rows of a batch share, without a copy of it for each row.

The softmax over shared and own keys is split into two partial attentions, each with the logarithm
of its normaliser, which are joined exactly (Juravsky et al. 2024, "Hydragen"). The queries of all
rows meet the shared keys in one matrix product: decoding twenty questions about one document reads
the document's cache once a step, not twenty times. The same split reads a long document in chunks.
Layers with a sliding window keep transformers' own cache, and attend in blocks of about a window.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.cache_utils import DynamicLayer
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from resonance_vllm.hf.partial_attention import Partial, join, partial_attention

NAME = "leval_shared_prefix"
"""Name of the attention function in transformers' registry."""

_UNKNOWN_OPTIONS = ("softcap", "position_bias", "head_mask", "sinks", "s_aux")
"""Options of attention functions that change the result, and that the function here does not know."""

_LEAST_BLOCK = 256
"""Least queries of a block in a sliding window: smaller matrix products waste the processor."""

KeysAndValues = tuple[Tensor, Tensor]


class SharedLayer(DynamicLayer):
    """Keys and values of one layer, `[batch, kv_heads, length, head_dim]`, in a buffer.

    There are two kinds. The layer of a document has batch 1; for each chunk, what was read before
    is its prefix. The layer of rows holds their own tokens after a document, which is their prefix.
    The attention function finds the prefix as attribute `prefix` of the keys that it gets.

    The first tokens of a buffer never change, so that a shallow copy is the layer as it was: the
    original or the copy may be continued, whichever is used last.

    Args:
        prefix: keys and values `[1, kv_heads, length, head_dim]` of the document before the rows,
            empty where there is none; None makes the layer of a document.
        expected: tokens for which a new buffer has room.
    """

    is_croppable = False
    keys: Any
    values: Any

    def __init__(self, prefix: KeysAndValues | tuple[()] | None = None, expected: int = 0) -> None:
        super().__init__()
        self.prefix = prefix
        self.expected = expected
        self.length = 0
        self.room = 0
        self.tokens_before = 0
        if prefix:
            self.tokens_before = prefix[0].shape[2]

    def first(self, length: int) -> KeysAndValues:
        """Return keys and values of the first tokens, without a copy."""
        return self.keys[:, :, :length], self.values[:, :, :length]

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> KeysAndValues:
        """Append tokens to the buffer, and return what the attention function gets.

        Args:
            key_states: keys of the new tokens, `[batch, kv_heads, n, head_dim]`.
            value_states: their values, of the same shape.

        Returns:
            Keys and values. Of a layer of rows they are of all the rows' own tokens, of a layer of
            a document of the new tokens alone. What comes before these, without being copied behind
            them, is the attribute `prefix` of the keys; it is empty where nothing comes before.
        """
        start = self.length
        end = start + key_states.shape[2]
        if end > self.room:
            self._grow(end, key_states, value_states)
        self.keys[:, :, start:end] = key_states
        self.values[:, :, start:end] = value_states
        self.length = end
        keys: Any
        is_of_rows = self.prefix is not None
        if is_of_rows:
            keys, values = self.first(end)
            keys.prefix = self.prefix
            return keys, values
        keys = key_states
        keys.prefix = ()
        if start > 0:
            keys.prefix = self.first(start)
        return keys, value_states

    def _grow(self, length: int, key_states: Tensor, value_states: Tensor) -> None:
        """Make a buffer for `length` tokens, or for the expected ones if they are more."""
        kept = None
        if self.length:
            kept = self.first(self.length)
        # With nothing to keep, the buffer is freed before the next one is made.
        self.keys = None
        self.values = None
        self.room = max(length, self.expected)
        self.keys = new_buffer(key_states, self.room)
        self.values = new_buffer(value_states, self.room)
        if kept is not None:
            self.keys[:, :, : self.length] = kept[0]
            self.values[:, :, : self.length] = kept[1]
        self.dtype = key_states.dtype
        self.device = key_states.device
        self.is_initialized = True

    def get_seq_length(self) -> int:
        """Return the number of tokens before the next one, the prefix included."""
        return self.tokens_before + self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of keys that attention gets, and the position of the first."""
        own = 0
        if self.prefix is not None:
            own = self.length
        return own + query_length, self.get_seq_length() - own


def new_buffer(states: Tensor, room: int) -> Tensor:
    """Return an empty buffer `[batch, heads, room, dim]` for states of this kind."""
    batch, heads, _, dim = states.shape
    return states.new_empty(batch, heads, room, dim)


@contextmanager
def shared_attention(model: Any, *, active: bool) -> Iterator[None]:
    """Run a model with the attention of this module if `active`; its own is restored afterwards."""
    before = model.config._attn_implementation
    if active:
        model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        if active:
            model.set_attn_implementation(before)


def shared_prefix_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute attention over the keys of a cache layer, in transformers' interface.

    Args:
        module: the attention layer.
        query: `[batch, heads, n, head_dim]`, rotated.
        key: the rows' own keys `[batch, kv_heads, m, head_dim]`, the last `n` of them new. Those of
            a `SharedLayer` bring their prefix.
        value: like `key`.
        attention_mask: for own keys, True where one is seen; None is plain causal attention.
        scaling: factor of the scores.
        dropout: must be 0.
        options: of the model; `sliding_window` is the width of the layer's window.

    Returns:
        `[batch, n, heads, head_dim]` in the query's dtype, and None for the weights.

    Raises:
        ValueError: the model needs an option that changes attention, or rebuilds its keys after
            the cache.
    """
    prefix: KeysAndValues | tuple[()] | None = getattr(key, "prefix", None)
    window = options.get("sliding_window")
    unknown = [name for name in _UNKNOWN_OPTIONS if options.get(name) is not None]
    if window is not None and prefix is not None:
        unknown.append("sliding_window")
    if unknown or dropout:
        raise ValueError(f"{type(module).__name__} needs {', '.join(unknown) or 'dropout'}")
    scale = scaling
    if scale is None:
        scale = query.shape[-1] ** -0.5
    if prefix is not None:
        attended = own_part(query, key, value, attention_mask, scale)
        if prefix:
            attended = join(attended, prefix_part(query, *prefix, scale))
        output = attended[0]
    elif window is not None:
        output = windowed_attention(query, key, value, attention_mask, scale, window)
    else:
        raise ValueError(f"{type(module).__name__} needs its own attention function")
    return output.to(query.dtype).transpose(1, 2).contiguous(), None


def own_part(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
) -> Partial:
    """Compute each row's attention to its own keys; the queries are the last positions."""
    batch, heads, n, width = query.shape
    groups = heads // key.shape[1]
    additive = None
    if mask is not None:
        # The lowest number, not -inf: a row of padding sees nothing, and must not become NaN.
        additive = (~mask).to(query.dtype) * torch.finfo(query.dtype).min
    if n == 1:  # the query heads of one key head become rows of one head, so that no key is copied
        folded = query.reshape(batch, -1, groups, width)
        output, norm = partial_attention(folded, key, value, scale, additive, causal=False)
        return output.reshape(batch, heads, 1, -1), norm.reshape(batch, heads, 1)
    key = key.repeat_interleave(groups, dim=1)
    value = value.repeat_interleave(groups, dim=1)
    return partial_attention(query, key, value, scale, additive, causal=mask is None)


def prefix_part(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Partial:
    """Compute attention of all rows to keys `[1, kv_heads, length, head_dim]` before them."""
    batch, heads, n, width = query.shape
    # All rows and all query heads of one key head are rows of one matrix product.
    folded = query.transpose(0, 1).reshape(1, key.shape[1], -1, width)
    output, norm = partial_attention(folded, key, value, scale, None, causal=False)
    output = output.reshape(heads, batch, n, -1)
    norm = norm.reshape(heads, batch, n)
    return output.transpose(0, 1), norm.transpose(0, 1)


def windowed_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, window: int
) -> Tensor:
    """Compute attention in a sliding window, a block of queries at a time.

    A block of queries sees the keys of its own positions and of a window before them. Over a whole
    chunk most scores would be masked.

    Args:
        query: `[batch, heads, n, head_dim]`.
        key: `[batch, kv_heads, m, head_dim]`, the last `n` of them at the queries' positions.
        value: like `key`.
        mask: `[batch, 1, n, m]`, True where a key is seen; None is plain causal attention.
        scale: factor of the scores.
        window: most keys that a query sees, its own position included.

    Returns:
        `[batch, heads, n, head_dim]`.
    """
    groups = query.shape[1] // key.shape[1]
    key = key.repeat_interleave(groups, dim=1)
    value = value.repeat_interleave(groups, dim=1)
    n = query.shape[2]
    if mask is None:
        return scaled_dot_product_attention(query, key, value, scale=scale, is_causal=n > 1)
    before = key.shape[2] - n
    block = max(window, _LEAST_BLOCK)
    outputs = []
    for begin in range(0, n, block):
        end = min(n, begin + block)
        first_key = max(0, before + begin - window + 1)
        seen = slice(first_key, before + end)
        output = scaled_dot_product_attention(
            query[:, :, begin:end],
            key[:, :, seen],
            value[:, :, seen],
            attn_mask=mask[:, :, begin:end, seen],
            scale=scale,
        )
        outputs.append(output)
    return torch.cat(outputs, dim=2)


AttentionInterface.register(NAME, shared_prefix_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
