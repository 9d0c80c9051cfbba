"""Attention over a part of the keys, and how the parts of one softmax are joined.

The rule is that of online softmax (Milakov and Gimelshein 2018): a partial attention comes with the
logarithm of its normaliser.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

# Output `[batch, heads, n, head_dim]`, and `log(sum(exp(scores)))` `[batch, heads, n]` in float32.
Partial = tuple[Tensor, Tensor]

_SCORES_AT_ONCE = 1 << 26


def join(first: Partial, second: Partial) -> Partial:
    """Attention over two disjoint sets of keys, from the attention over each; in float32.

    The weight of the second set in the joint softmax is `exp(b) / (exp(a) + exp(b))` with the
    logarithms `a` and `b` of the two normalisers.
    """
    (out, norm), (other, other_norm) = first, second
    weight = torch.sigmoid(other_norm - norm).unsqueeze(-1)
    joined = torch.lerp(out.to(norm.dtype), other.to(norm.dtype), weight)
    return joined, torch.logaddexp(norm, other_norm)


def partial_attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None, causal: bool
) -> Partial:
    """Softmax attention and the logarithm of its normaliser, by the fastest exact kernel.

    Args:
        query: `[batch, heads, n, head_dim]`.
        key: `[batch, heads, m, head_dim]`.
        value: Like `key`; its head dimension may be another.
        scale: Factor of the scores.
        mask: Additive, broadcast to `[batch, heads, n, m]`; no row may be masked completely.
        causal: Query `i` sees keys up to `i`; needs `n == m` and no mask.
    """
    kind = query.device.type
    width = value.shape[-1]
    if width != query.shape[-1]:  # the kernels need equal sizes; zeros change no score
        size = max(width, query.shape[-1])
        query, key, value = (pad(each, (0, size - each.shape[-1])) for each in (query, key, value))
        out, norm = partial_attention(query, key, value, scale, mask, causal)
        return out[..., :width], norm
    if kind == "cpu":
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, attn_mask=mask, scale=scale
        )
    if kind == "cuda" and mask is None and query.dtype in (torch.float16, torch.bfloat16):
        return torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, 0.0, causal, scale=scale
        )[:2]
    return plain_attention(query, key, value, scale, mask, causal)


def plain_attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None, causal: bool
) -> Partial:
    """`partial_attention` in plain float32 tensor operations, a block of queries at a time."""
    n, m = query.shape[2], key.shape[2]
    block = max(1, _SCORES_AT_ONCE // (query.shape[0] * query.shape[1] * m))
    outs, norms = [], []
    for first in range(0, n, block):
        part = query[:, :, first : first + block].float()
        scores = part @ key.float().transpose(-1, -2) * scale
        if mask is not None:
            scores = scores + (mask if mask.shape[2] == 1 else mask[:, :, first : first + block])
        if causal:
            rows = torch.arange(first, first + part.shape[2], device=query.device)
            future = torch.arange(m, device=query.device) > rows[:, None]
            scores = scores.masked_fill(future, float("-inf"))
        norms.append(scores.logsumexp(-1))
        outs.append((scores - norms[-1].unsqueeze(-1)).exp() @ value.float())
    return torch.cat(outs, 2).to(query.dtype), torch.cat(norms, 2)
