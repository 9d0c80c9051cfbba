"""Read a rotary module of mlx: find it in a model, and rotate unit vectors with it."""

import math

import mlx.core as mx

LONGEST = 131072
"""Tokens of the longest sequence that is rotated as a whole."""


def find_rope(model, layer_type, config):
    """The module named `rope` or `rotary_emb` of the first layer of a type."""
    kinds = config.get("layer_types")
    for number, layer in enumerate(model.layers):
        attention = getattr(layer, "self_attn", None) or getattr(layer, "attention", None) or layer
        kind = kinds[number % len(kinds)] if kinds else None
        if layer_type and kind is None:
            local = getattr(attention, "is_sliding", None)
            kind = None if local is None else ("sliding" if local else "full") + "_attention"
        for name in ("rope", "rotary_emb", "_rope"):
            rope = getattr(attention, name, None)
            if rope is not None and layer_type in (None, kind):
                return rope
    raise NotImplementedError(f"no layer {layer_type or ''} with a module that rotates")


def rotated(rope, vector):
    """Apply a module to unit vectors: a sequence of the vector's length, or a token at a time."""
    dims = getattr(rope, "dims", None) or getattr(rope, "dim", None) or vector["rotary_dim"]
    probe = mx.zeros((1, 1, 1, dims)).at[..., 0].add(1.0)
    turned = rope(probe, offset=1)[0, 0, 0].tolist()
    traditional = dims > 2 and abs(turned[1]) > abs(turned[dims // 2])
    first = mx.arange(0, dims, 2) if traditional else mx.arange(dims // 2)
    second = first + (1 if traditional else dims // 2)
    x = mx.zeros((1, 1, 1, dims)).at[..., first].add(1.0)
    length = vector["length"]
    if length <= LONGEST:
        whole = rope(mx.broadcast_to(x, (1, 1, length, dims)), offset=0)[0, 0]
        rows = [whole[position] for position in vector["positions"]]
    else:
        rows = [rope(x, offset=position)[0, 0, 0] for position in vector["positions"]]
    cos = [row[first].tolist() for row in rows]
    sin = [row[second].tolist() for row in rows]
    at_1 = vector["positions"].index(1)
    return {
        "inv_freq": [math.atan2(s, c) for c, s in zip(cos[at_1], sin[at_1])],
        "attention_factor": math.hypot(cos[at_1][0], sin[at_1][0]),
        "cos": cos,
        "sin": sin,
    }
