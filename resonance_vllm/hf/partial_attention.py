"""Softmax attention over a part of the keys, and joining parts into attention over all of them.

Each part comes with the logarithm of its softmax normaliser, so that parts are joined as in online
softmax (Milakov and Gimelshein 2018).
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

Partial = tuple[Tensor, Tensor]
"""Output `[batch, heads, n, dim]`, and `log(sum(exp(scores)))` `[batch, heads, n]`, float32."""

_SCORES_AT_ONCE = 1 << 26
"""Most scores that `plain_attention` holds in memory."""


def join(first: Partial, second: Partial) -> Partial:
    """Return attention over two disjoint sets of keys, from attention over each; in float32."""
    first_output, first_norm = first
    second_output, second_norm = second
    weight = torch.sigmoid(second_norm - first_norm).unsqueeze(-1)
    dtype = first_norm.dtype
    joined = torch.lerp(first_output.to(dtype), second_output.to(dtype), weight)
    return joined, torch.logaddexp(first_norm, second_norm)


def partial_attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None, causal: bool
) -> Partial:
    """Return attention and the logarithm of its normaliser, by the fastest exact kernel.

    Args:
        query: `[batch, heads, n, head_dim]`.
        key: `[batch, heads, m, head_dim]`.
        value: Like `key`; its head dimension may be another.
        scale: Factor of the scores.
        mask: Additive, broadcast to `[batch, heads, n, m]`; no row may be masked completely.
        causal: Query `i` attends to keys up to `i`; needs `n == m` and no mask.
    """
    width = value.shape[-1]
    if width != query.shape[-1]:  # the kernels need equal sizes; zeros change no score
        size = max(width, query.shape[-1])
        query, key, value = (
            pad(states, (0, size - states.shape[-1])) for states in (query, key, value)
        )
        output, norm = partial_attention(query, key, value, scale, mask, causal)
        return output[..., :width], norm
    device = query.device.type
    if device == "cpu":
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, attn_mask=mask, scale=scale
        )
    if device == "cuda" and mask is None and query.dtype in (torch.float16, torch.bfloat16):
        return torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, 0.0, causal, scale=scale
        )[:2]
    return plain_attention(query, key, value, scale, mask, causal)


def plain_attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None, causal: bool
) -> Partial:
    """Return `partial_attention` by plain float32 operations, a block of queries at a time."""
    n = query.shape[2]
    m = key.shape[2]
    block = max(1, _SCORES_AT_ONCE // (query.shape[0] * query.shape[1] * m))
    outputs = []
    norms = []
    for first in range(0, n, block):
        queries = query[:, :, first : first + block].float()
        scores = queries @ key.float().transpose(-1, -2) * scale
        if mask is not None:
            own_mask = mask
            if mask.shape[2] != 1:
                own_mask = mask[:, :, first : first + block]
            scores = scores + own_mask
        if causal:
            rows = torch.arange(first, first + queries.shape[2], device=query.device)
            is_later = torch.arange(m, device=query.device) > rows[:, None]
            scores = scores.masked_fill(is_later, float("-inf"))
        norm = scores.logsumexp(-1)
        norms.append(norm)
        outputs.append((scores - norm.unsqueeze(-1)).exp() @ value.float())
    return torch.cat(outputs, 2).to(query.dtype), torch.cat(norms, 2)


def grouped_attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None
) -> Partial:
    """Return attention where several query heads share one key head.

    The queries of a group become rows of one query head, so that keys are not repeated.

    Args:
        query: `[rows, heads, n, head_dim]`.
        key: `[rows, kv_heads, m, head_dim]`.
        value: `[rows, kv_heads, m, value_dim]`.
        scale: Factor of the scores.
        mask: Additive, `[rows, 1, n, m]`.
    """
    rows, heads, n, dim = query.shape
    groups = heads // key.shape[1]
    folded = query.reshape(rows, key.shape[1], groups * n, dim)
    if mask is not None:
        mask = mask.repeat(1, 1, groups, 1)
    output, norm = partial_attention(folded, key, value, scale, mask, causal=False)
    return output.reshape(rows, heads, n, -1), norm.reshape(rows, heads, n)
