"""Attention over a text that all rows of a batch share, without a copy of it for each row.

The softmax over shared and own keys is split into two partial attentions, each with the logarithm
of its normaliser, which are joined exactly (Juravsky et al. 2024, "Hydragen"; the rule is that of
online softmax, Milakov and Gimelshein 2018). The queries of all rows meet the shared keys in one
matrix product: decoding twenty questions about one document reads the document's cache once a step,
not twenty times. The same split makes chunked prefill work without attention masks.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from resonance_vllm.hf import position_map
from resonance_vllm.hf.partial_attention import Partial, join, partial_attention
from resonance_vllm.hf.parts import Segment
from resonance_vllm.hf.position_map import MappedRotation

if TYPE_CHECKING:
    from leval_harness.backends.cache import PrefixCache
    from leval_harness.backends.cache_layers import PrefixLayer, RingLayer

NAME = "leval_shared_prefix"
# Options of other attention functions that change the result. A model that uses one of them keeps
# its own attention function.
_UNSUPPORTED = ("softcap", "position_bias", "head_mask", "sinks")

_active: ContextVar["PrefixCache | None"] = ContextVar("leval_prefix_cache", default=None)


class UnsupportedAttentionError(ValueError):
    """The model needs something of its attention function that the split cannot express."""


@contextmanager
def shared_attention(model: Any, *, split: bool) -> Iterator[None]:
    """Run a model with the shared-prefix attention if `split`, and restore its own afterwards."""
    if not split:
        yield
        return
    before = model.config._attn_implementation
    AttentionInterface.register(NAME, shared_prefix_attention)
    position_map.IMPLEMENTATIONS.add(NAME)
    model.set_attn_implementation(NAME)
    if model.config._attn_implementation != NAME:
        raise UnsupportedAttentionError(
            f"{type(model).__name__} does not let its attention function be chosen"
        )
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@contextmanager
def attending(cache: "PrefixCache") -> Iterator[None]:
    """Give the attention function the cache of a forward pass, with its shared part."""
    token = _active.set(cache)
    try:
        yield
    finally:
        _active.reset(token)


def shared_prefix_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention function in transformers' interface. Padding comes from the cache, not the mask.

    `query` is `[batch, heads, n, head_dim]`, rotated; `key` and `value` are the rows' own,
    `[batch, kv_heads, m, head_dim]`, the last `n` of them new; `scaling` is the factor of the
    scores, `head_dim ** -0.5` if None. `layer_idx` of the module finds the cache layer, which knows
    the window. `s_aux`, if given, are scores `[heads]` of a key without a value.

    Returns:
        `[batch, n, heads, head_dim]` in the query's dtype, and None for the weights.

    Raises:
        UnsupportedAttentionError: The model needs a soft cap, a position bias, or a window that the
            cache does not know.
    """
    cache = _active.get()
    foreign = [name for name in _UNSUPPORTED if kwargs.get(name) is not None]
    if cache is None or foreign or dropout:
        raise UnsupportedAttentionError(
            f"{type(module).__name__} needs {', '.join(foreign) or 'its own attention function'}"
        )
    layer = cache.layer_of(module.layer_idx, key)
    mapped = getattr(module, position_map.ATTRIBUTE, None)
    window = kwargs.get("sliding_window")
    if window is not None and (layer.window is None or layer.window.size != window):
        raise UnsupportedAttentionError(
            f"{type(module).__name__} has a sliding_window of {window}, its cache: {layer.window}"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if mapped is not None:
        position_map.refuse_options(module, query, dropout, kwargs)
        return _mapped(mapped, query, key, value, scale, cache, layer), None
    own_mask, shared_mask = cache.masks(layer, query.shape[2], key)
    out, norm = own_part(query, key, value, scale, own_mask)
    if layer.shared_length and layer.shared_pair:
        shared = shared_part(query, *layer.shared_pair, scale, shared_mask)
        out, norm = join((out, norm), shared)
    sinks = kwargs.get("s_aux")
    if sinks is not None:
        out = out * torch.sigmoid(norm - sinks.float()[None, :, None]).unsqueeze(-1)
    return out.to(query.dtype).transpose(1, 2).contiguous(), None


def _mapped(
    mapped: MappedRotation,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    cache: "PrefixCache",
    layer: "PrefixLayer | RingLayer",
) -> Tensor:
    """Attention of a layer with a position map, whose parts divide own and shared keys alike."""
    rows = query.shape[0]
    pads = (0,) * rows if cache.pads is None else tuple(cache.pads.tolist())
    segments = [Segment(key, value, mapped.first(key.shape[2], rows), pads)]
    if layer.shared_length and layer.shared_pair:
        segments.append(Segment(*layer.shared_pair, (layer.start,), (0,)))
    lowest = None if layer.window is None else layer.window.first
    out, _ = mapped.attend(query, segments, scale, lowest)
    return out.to(query.dtype).transpose(1, 2).contiguous()


def own_part(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None
) -> Partial:
    """Causal attention of each row to its own keys; the queries are the last positions."""
    batch, heads, n, _ = query.shape
    groups = heads // key.shape[1]
    if n == 1:  # every own key is in the past: fold the query heads of one key head into rows
        folded = query.reshape(batch, key.shape[1], groups, query.shape[-1])
        out, norm = partial_attention(folded, key, value, scale, mask, causal=False)
        return out.reshape(query.shape[:3] + out.shape[-1:]), norm.reshape(batch, heads, 1)
    key = key.repeat_interleave(groups, dim=1)
    value = value.repeat_interleave(groups, dim=1)
    return partial_attention(query, key, value, scale, mask, causal=mask is None)


def shared_part(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None
) -> Partial:
    """Attention of all rows to the shared keys `[1, kv_heads, length, head_dim]`, all past."""
    batch, heads, n, dim = query.shape
    kv_heads = key.shape[1]
    groups = heads // kv_heads
    # Query heads of one key head, then rows, then positions.
    folded = query.view(batch, kv_heads, groups, n, dim).permute(1, 2, 0, 3, 4)
    if mask is None:
        folded = folded.reshape(1, kv_heads, groups * batch * n, dim)
    else:  # which is the same for every head: those of one key head side by side
        folded = folded.reshape(kv_heads, groups, batch * n, dim).transpose(0, 1)
        key, value = (each.expand(groups, -1, -1, -1) for each in (key, value))
        mask = mask.expand(batch, -1, -1, -1).reshape(1, 1, batch * n, -1)
    out, norm = partial_attention(folded, key, value, scale, mask, causal=False)
    if mask is not None:
        out, norm = out.transpose(0, 1), norm.transpose(0, 1)
    out = out.reshape(kv_heads, groups, batch, n, -1).permute(2, 0, 1, 3, 4)
    norm = norm.reshape(kv_heads, groups, batch, n).permute(2, 0, 1, 3)
    return out.reshape(batch, heads, n, -1), norm.reshape(batch, heads, n)
