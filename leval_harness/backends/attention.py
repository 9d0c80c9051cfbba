"""Attention over a text that all rows of a batch share, without a copy of it for each row.

The softmax over shared and own keys is split into two partial attentions, each with the logarithm
of its normaliser, which are joined exactly (Juravsky et al. 2024, "Hydragen"). The queries of all
rows meet the shared keys in one matrix product: decoding twenty questions about one document reads
the document's cache once a step, not twenty times. The same split reads a long text in chunks.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.cache_utils import DynamicLayer
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from resonance_vllm.hf.partial_attention import Partial, join, partial_attention

NAME = "leval_shared_prefix"
_REFUSED = ("softcap", "position_bias", "head_mask", "sinks", "s_aux", "sliding_window")
"""Options of attention functions that change the result and that ours does not know."""

Pair = tuple[Tensor, Tensor]


class SharedLayer(DynamicLayer):
    """Keys and values `[batch, kv_heads, length, head_dim]` in a buffer.

    The layer of a text has batch 1, and what was read before a chunk is the prefix of that chunk.
    The layer of rows holds their own tokens after a text. The attention function finds the prefix
    at the keys that it gets, as their attribute `prefix`.

    `prefix` of rows is keys and values `[1, kv_heads, length, head_dim]` of the text before them,
    empty where there is none; None is the layer of a text. A new buffer has room for `expected`
    tokens.
    """

    is_croppable = False
    keys: Any
    values: Any

    def __init__(self, prefix: Pair | tuple[()] | None = None, expected: int = 0) -> None:
        super().__init__()
        self.prefix = prefix
        self.expected = expected
        self.length = self.room = 0
        self.before = prefix[0].shape[2] if prefix else 0

    def first(self, length: int) -> Pair:
        """Return keys and values of the first tokens, without a copy."""
        return self.keys[:, :, :length], self.values[:, :, :length]

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Pair:
        """Append tokens; returns what the attention function gets."""
        start = self.length
        end = start + key_states.shape[2]
        if end > self.room:
            self._grow(end, key_states, value_states)
        self.keys[:, :, start:end] = key_states
        self.values[:, :, start:end] = value_states
        self.length = end
        if self.prefix is None:
            own = (key_states, value_states)
            prefix = self.first(start) if start else ()
        else:
            own = self.first(end)
            prefix = self.prefix
        own[0].prefix = prefix
        return own

    def _grow(self, length: int, key_states: Tensor, value_states: Tensor) -> None:
        kept = self.first(self.length) if self.length else None
        self.keys = self.values = None  # without something to keep the buffer goes before the next
        self.room = max(length, self.expected)
        self.keys, self.values = (
            each.new_empty(*each.shape[:2], self.room, each.shape[3])
            for each in (key_states, value_states)
        )
        if kept:
            self.keys[:, :, : self.length], self.values[:, :, : self.length] = kept
        self.dtype = key_states.dtype
        self.device = key_states.device
        self.is_initialized = True

    def get_seq_length(self) -> int:
        """Return the number of tokens before the next one, the prefix included."""
        return self.before + self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of keys that attention gets, and the position of the first."""
        own = 0 if self.prefix is None else self.length
        return own + query_length, self.get_seq_length() - own


@contextmanager
def shared_attention(model: Any, *, active: bool) -> Iterator[None]:
    """Run a model with the shared attention if `active`, and give its own back afterwards."""
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
    """Compute attention over the keys of a `SharedLayer`, in transformers' interface.

    `query` is `[batch, heads, n, head_dim]`, rotated; `key` and `value` are the rows' own,
    `[batch, kv_heads, m, head_dim]`, the last `n` of them new; `attention_mask` is for own keys,
    True where one is seen, or None for plain causal attention.

    Returns:
        `[batch, n, heads, head_dim]` in the query's dtype, and None for the weights.

    Raises:
        ValueError: the model needs an option that changes attention, or rebuilds its
            keys after the cache.
    """
    foreign = [name for name in _REFUSED if options.get(name) is not None]
    prefix: Pair | tuple[()] | None = getattr(key, "prefix", None)
    if prefix is None or foreign or dropout:
        raise ValueError(
            f"{type(module).__name__} needs {', '.join(foreign) or 'its own attention function'}"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    found = own_part(query, key, value, attention_mask, scale)
    if prefix:
        found = join(found, prefix_part(query, *prefix, scale))
    return found[0].to(query.dtype).transpose(1, 2).contiguous(), None


def own_part(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
) -> Partial:
    """Compute each row's attention to its own keys; the queries are the last positions."""
    batch, heads, n, width = query.shape
    groups = heads // key.shape[1]
    if mask is not None:  # the lowest number, not -inf: padding sees nothing and must not be NaN
        mask = (~mask).to(query.dtype) * torch.finfo(query.dtype).min
    if n == 1:  # the query heads of one key head side by side
        folded = query.reshape(batch, -1, groups, width)
        out, norm = partial_attention(folded, key, value, scale, mask, causal=False)
        return out.reshape(batch, heads, 1, -1), norm.reshape(batch, heads, 1)
    key, value = (each.repeat_interleave(groups, dim=1) for each in (key, value))
    return partial_attention(query, key, value, scale, mask, causal=mask is None)


def prefix_part(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Partial:
    """Compute attention of all rows to keys `[1, kv_heads, length, head_dim]` before them."""
    batch, heads, n, width = query.shape
    folded = query.transpose(0, 1).reshape(1, key.shape[1], -1, width)
    out, norm = partial_attention(folded, key, value, scale, None, causal=False)
    out = out.reshape(heads, batch, n, -1)
    norm = norm.reshape(heads, batch, n)
    return out.transpose(0, 1), norm.transpose(0, 1)


AttentionInterface.register(NAME, shared_prefix_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
