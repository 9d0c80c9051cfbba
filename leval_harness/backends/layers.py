"""Cache layers that can be cut back to a point, and followed by several rows from there.

Each kind says how it goes back (`mark`, `restore`), how rows start from it (`rows`) and how rows
that were read apart become one batch (`joined`). Full attention keeps every position and is cut;
a sliding window that has dropped positions, and a recurrent state, are kept as they were.
"""

from typing import Any

from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

from leval_harness.backends.attention_layers import PrefixLayer, RingLayer, Window
from leval_harness.backends.state_layers import HybridLayer, StateLayer

PathLayer = PrefixLayer | RingLayer | StateLayer | HybridLayer


def path_layer(template: Any, capacity: int, *, split: bool, chunked: bool) -> PathLayer | None:
    """Our layer for one of transformers' own; None for a kind that cannot be cut or copied.

    Args:
        template: What transformers would cache this layer of the model in.
        capacity: Longest path. A window that it never outgrows keeps every position.
        split: For the shared-prefix attention.
        chunked: Whether the window is one of fixed chunks.
    """
    kind = type(template)
    if kind is DynamicLayer:
        return PrefixLayer(capacity, split=split)
    if kind is DynamicSlidingWindowLayer:
        window = Window(template.sliding_window, chunked)
        if capacity > window.size:
            return RingLayer(window, split=split)
        return PrefixLayer(capacity, split=split, window=window)
    if kind is LinearAttentionLayer:
        return StateLayer(template)
    if kind is LinearAttentionAndFullAttentionLayer:
        inner = DynamicLayer()
    elif kind is LinearAttentionAndSlidingWindowAttentionLayer:
        inner = DynamicSlidingWindowLayer(template.sliding_window)
    else:
        return None
    attention: Any = path_layer(inner, capacity, split=split, chunked=chunked)
    states = LinearAttentionLayer(getattr(template, "number_of_states", 1))
    return HybridLayer(attention, StateLayer(states))
