"""A Llama in float64 whose attention is a double loop's worth of distances, for comparison.

Nothing of the product is used: weights come from the state dict, and a distance for each pair of
positions from the caller. Memory and time grow with the square of the length.
"""

import math

import torch


def inverse_frequencies(base, dim):
    return torch.tensor([base ** (-2 * j / dim) for j in range(dim // 2)], dtype=torch.float64)


def rotated(x, angles):
    """`x [..., dim]` turned by `angles [..., dim/2]`, features in halves."""
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def logits(model, tokens, distance, frequencies, *, window=None):
    """Logits `[n, vocabulary]` in float64 of one sequence.

    Args:
        model: a Llama, Mistral or Qwen of transformers, from which weights and sizes are read.
        tokens: ids.
        distance: function of the positions of a query and of a key.
        frequencies: radians a token, `[dim/2]`.
        window: keys that a query sees; None is all.
    """
    config, weights = model.config, {k: v.double() for k, v in model.state_dict().items()}
    n, heads, groups = len(tokens), config.num_attention_heads, config.num_key_value_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    apart = torch.tensor([[float(distance(i, j)) for j in range(n)] for i in range(n)])
    angles = apart.double()[..., None] * frequencies
    far = n if window is None else window
    hidden = torch.tensor([[j > i or i - j >= far for j in range(n)] for i in range(n)])

    def norm(x, name):
        return x / (x.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps).sqrt() * weights[name]

    def linear(x, name):
        y = x @ weights[f"{name}.weight"].T
        return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y

    x = weights["model.embed_tokens.weight"][torch.tensor(tokens)]
    for number in range(config.num_hidden_layers):
        layer = f"model.layers.{number}"
        y = norm(x, f"{layer}.input_layernorm.weight")
        q, k, v = (linear(y, f"{layer}.self_attn.{one}_proj") for one in "qkv")
        q, k, v = (each.view(n, -1, dim).transpose(0, 1) for each in (q, k, v))
        if f"{layer}.self_attn.q_norm.weight" in weights:
            q, k = (
                norm(each, f"{layer}.self_attn.{one}_norm.weight")
                for one, each in (("q", q), ("k", k))
            )
        out = torch.empty(heads, n, dim, dtype=torch.float64)
        for head in range(heads):
            keys, values = k[head * groups // heads], v[head * groups // heads]
            turned = rotated(q[head][:, None, :].expand(n, n, dim), angles)
            scores = (turned * keys[None]).sum(-1) / math.sqrt(dim)
            out[head] = scores.masked_fill(hidden, -math.inf).softmax(-1) @ values
        x = x + linear(out.transpose(0, 1).reshape(n, -1), f"{layer}.self_attn.o_proj")
        y = norm(x, f"{layer}.post_attention_layernorm.weight")
        gate, up = (linear(y, f"{layer}.mlp.{one}_proj") for one in ("gate", "up"))
        x = x + linear(torch.nn.functional.silu(gate) * up, f"{layer}.mlp.down_proj")
    return linear(norm(x, "model.norm.weight"), "lm_head")
