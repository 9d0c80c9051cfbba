"""The decoder of PosGen.

The layer is Llama's or, with `kind=t5`, T5-Small's with RoPE as position encoding: ReLU
feed-forward, attention logits not divided by the square root of the head size, tied embeddings with
the final state scaled by `hidden ** -0.5`. Both have RMS norms before each sub-layer and no biases.
Parameter names are those of Llama.

Pairs (i, i + d/2) rotate, as in Llama; T5-style weights start out symmetric in the dimensions of a
head, so this is the same model as one that rotates neighbouring dimensions.
"""

import contextlib
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear, scaled_dot_product_attention, silu

from leval_harness.training.posgen_settings import Architecture

EPSILON = 1e-6
"""Of the RMS norms."""


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs (i, i + d/2) of `[..., length, d]`; cos and sin are `[length, d/2]`."""
    first, second = x.chunk(2, dim=-1)
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return rotated.to(x.dtype)


class Attention(nn.Module):
    """Causal attention over `[batch, length, hidden]`."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        a = self.architecture = architecture
        inner = a.heads * a.head_dim
        self.q_proj = nn.Linear(a.hidden, inner, bias=False)
        self.k_proj = nn.Linear(a.hidden, inner, bias=False)
        self.v_proj = nn.Linear(a.hidden, inner, bias=False)
        self.o_proj = nn.Linear(inner, a.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Cos and sin are `[length, head_dim / 2]`."""
        a = self.architecture
        q, k, v = (
            p(x).unflatten(-1, (a.heads, a.head_dim)).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        # With its backward pass torch's fused kernel for CPUs is slower at such lengths.
        plain = self.training and x.device.type == "cpu"
        with sdpa_kernel(SDPBackend.MATH) if plain else contextlib.nullcontext():
            out = scaled_dot_product_attention(
                rotate(q, cos, sin),
                rotate(k, cos, sin),
                v,
                is_causal=True,
                scale=1.0 if a.kind == "t5" else None,
                dropout_p=a.dropout if self.training else 0.0,
            )
        return cast(Tensor, self.o_proj(out.transpose(1, 2).flatten(2)))


class FeedForward(nn.Module):
    """SwiGLU, or ReLU with `kind=t5`."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        a = self.architecture = architecture
        if a.kind == "llama":
            self.gate_proj = nn.Linear(a.hidden, a.feed_forward, bias=False)
        self.up_proj = nn.Linear(a.hidden, a.feed_forward, bias=False)
        self.down_proj = nn.Linear(a.feed_forward, a.hidden, bias=False)
        self.dropout = nn.Dropout(a.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """`[batch, length, hidden]`."""
        up = self.up_proj(x)
        up = silu(self.gate_proj(x)) * up if self.architecture.kind == "llama" else up.relu()
        return cast(Tensor, self.down_proj(self.dropout(up)))


class Layer(nn.Module):
    """Attention and feed-forward, each added to the residual stream."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(architecture.hidden, EPSILON)
        self.self_attn = Attention(architecture)
        self.post_attention_layernorm = nn.RMSNorm(architecture.hidden, EPSILON)
        self.mlp = FeedForward(architecture)
        self.dropout = nn.Dropout(architecture.dropout)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """`[batch, length, hidden]`."""
        x = x + self.dropout(self.self_attn(self.input_layernorm(x), cos, sin))
        return cast(Tensor, x + self.dropout(self.mlp(self.post_attention_layernorm(x))))


class Decoder(nn.Module):
    """One model without its output matrix, which transformers' classes hold beside it."""

    def __init__(self, architecture: Architecture, vocabulary: int) -> None:
        super().__init__()
        a = self.architecture = architecture
        self.embed_tokens = nn.Embedding(vocabulary, a.hidden)
        self.layers = nn.ModuleList(Layer(a) for _ in range(a.layers))
        self.norm = nn.RMSNorm(a.hidden, EPSILON)
        self.dropout = nn.Dropout(a.dropout)

    def forward(self, ids: Tensor, cos: Tensor, sin: Tensor, head: Tensor | None) -> Tensor:
        """Logits `[batch, length, vocabulary]`.

        Args:
            ids: `[batch, length]`.
            cos: cosines `[length, head_dim / 2]`.
            sin: sines of the same shape.
            head: output matrix `[vocabulary, hidden]`; None takes the embeddings.
        """
        x = self.dropout(self.embed_tokens(ids))
        for layer in self.layers:
            x = layer(x, cos, sin)
        x = self.dropout(self.norm(x))
        if head is None:
            return linear(x * self.architecture.hidden**-0.5, self.embed_tokens.weight)
        return linear(x, head)
