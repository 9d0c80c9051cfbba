"""Many small decoders as one module: every weight has a leading dimension, one row a model.

The models share nothing but the step counter: the loss is the sum of their own losses, so each
gets the gradient it would get alone, and AdamW treats every weight by itself. One batched matrix
product a layer then trains seeds, encodings and sub-tasks together, which is what fills a GPU.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, embedding, scaled_dot_product_attention

from leval_harness.training.posgen_settings import Architecture
from resonance_vllm.core.phase import cos_sin
from resonance_vllm.core.spec import RopeSpec

EPSILON = 1e-6
EMBEDDING = "model.embed_tokens.weight"


class _RmsNorm(torch.autograd.Function):
    """Root-mean-square norm its derivative written out in fewer passes than autograd makes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        power = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1])
        inverse = power.add_(EPSILON).rsqrt_()
        normed = x * inverse
        ctx.save_for_backward(normed, inverse, weight)
        return normed * weight[:, None, None, :]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        normed, inverse, weight = ctx.saved_tensors
        (outer,) = gradients
        along = outer * normed
        # Of the gradient that reaches the normed vector, the part along that vector has no effect.
        mean = (along @ weight[:, None, :, None]).div_(-normed.shape[-1])
        inner = (outer * weight[:, None, None, :]).addcmul_(normed, mean).mul_(inverse)
        return inner, along.sum((1, 2))


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """`[models, batch, length, hidden]` normalised in float32; weight `[models, hidden]`."""
    normed: Tensor = _RmsNorm.apply(x.float(), weight)
    return normed.to(x.dtype)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """`[models, batch, length, in]` times `[models, out, in]`."""
    models, batch, length, _ = x.shape
    return torch.bmm(x.flatten(1, 2), weight.transpose(1, 2)).view(models, batch, length, -1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs (i, i + d/2) of `[models, batch, heads, length, d]`.

    cos and sin are `[models, length, d/2]`.
    """
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos[:, None, None], sin[:, None, None]
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return rotated.to(x.dtype)


def plain_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, drop: float) -> Tensor:
    """Causal attention of `[batch, heads, length, d]` by plain products.

    On a CPU and at such lengths torch's own kernels take longer for it with their backward pass,
    fused or not.
    """
    length = q.shape[-2]
    future = torch.full((length, length), -torch.inf, dtype=q.dtype, device=q.device).triu(1)
    keys = k.flatten(0, 1).transpose(1, 2)
    weights = torch.baddbmm(future, q.flatten(0, 1), keys, alpha=scale).softmax(-1).to(v.dtype)
    if drop:
        weights = dropout(weights, drop)
    return torch.bmm(weights, v.flatten(0, 1)).view(v.shape)


def angle_table(ropes: Sequence[Mapping[str, Any]], head_dim: int, length: int) -> Tensor:
    """Cosine and sine of each model, `[2, models, length, head_dim / 2]` in float32."""
    positions = torch.arange(length)
    pairs = [cos_sin(RopeSpec.from_dict(r), head_dim, positions, torch.float32) for r in ropes]
    return torch.stack([torch.stack(parts) for parts in zip(*pairs, strict=True)])


class StackedDecoder(nn.Module):
    """Decoders of one architecture, trained side by side.

    Args:
        architecture: of every model.
        states: state dictionaries of the single models (names as in Llama).
        ropes: `rope_parameters` of each model.
        length: longest input in tokens.
        keep_best: hold a second copy of the weights, for `keep` and `restore_kept`; it is part of
            the state dictionary, so that a resumed run knows it.
    """

    def __init__(
        self,
        architecture: Architecture,
        states: Sequence[Mapping[str, Tensor]],
        ropes: Sequence[Mapping[str, Any]],
        length: int,
        keep_best: bool = False,
    ) -> None:
        super().__init__()
        self.architecture = architecture
        tied = {"lm_head.weight"} if architecture.kind == "t5" else set()
        self.names = [name for name in states[0] if name not in tied]
        for name in self.names:
            feed_forward = ".mlp." in name or ".post_attention_layernorm." in name
            parameter = nn.Parameter(
                torch.stack([state[name].detach().float() for state in states]),
                requires_grad=not (architecture.freeze_feed_forward and feed_forward),
            )
            self.register_parameter(name.replace(".", "__"), parameter)
        self.trained = {name: p for name, p in self.named_parameters() if p.requires_grad}
        if keep_best:
            models = len(states)
            self.register_buffer("kept_score", torch.full((models,), -1.0, dtype=torch.float64))
            self.register_buffer("kept_step", torch.zeros(models, dtype=torch.int64))
            for name, parameter in self.trained.items():
                self.register_buffer(f"kept__{name}", parameter.detach().clone())
        angles = angle_table(ropes, architecture.head_dim, length)
        self.register_buffer("angles", angles, persistent=False)
        self.last_losses: Tensor | None = None

    def rotate_by(self, ropes: Sequence[Mapping[str, Any]]) -> None:
        """Give each model another encoding, by its `rope_parameters`."""
        angles = self.get_buffer("angles")
        angles.copy_(angle_table(ropes, self.architecture.head_dim, angles.shape[2]))

    @torch.no_grad()
    def keep(self, scores: Sequence[float], step: int) -> None:
        """Copy the weights of those models whose score is above all their scores before."""
        highest = self.get_buffer("kept_score")
        new = torch.tensor(scores, dtype=torch.float64, device=highest.device)
        better = new > highest
        highest[better] = new[better]
        self.get_buffer("kept_step")[better] = step
        for name, parameter in self.trained.items():
            self.get_buffer(f"kept__{name}")[better] = parameter[better]

    @torch.no_grad()
    def restore_kept(self) -> list[int]:
        """Put the kept weights back; the step of each model's."""
        for name, parameter in self.trained.items():
            parameter.copy_(self.get_buffer(f"kept__{name}"))
        return cast(list[int], self.get_buffer("kept_step").tolist())

    def weight(self, name: str) -> Tensor:
        """A stacked weight by its name in the single model."""
        return self.get_parameter(name.replace(".", "__"))

    def state_of(self, index: int) -> dict[str, Tensor]:
        """State dictionary of one model, as its single class reads it."""
        state = {name: self.weight(name)[index].detach().cpu().clone() for name in self.names}
        if self.architecture.kind == "t5":
            state["lm_head.weight"] = state[EMBEDDING]
        return state

    def logits(self, input_ids: Tensor) -> Tensor:
        """`[models, batch, length, vocabulary]` of `[models, batch, length]`."""
        a = self.architecture
        cos, sin = self.get_buffer("angles")[:, :, : input_ids.shape[-1]]
        vectors = self.weight(EMBEDDING)
        offset = torch.arange(len(vectors), device=input_ids.device) * vectors.shape[1]
        x = embedding(input_ids + offset[:, None, None], vectors.flatten(0, 1))
        x = self._drop(x)
        for index in range(a.layers):
            layer = f"model.layers.{index}."
            h = rms_norm(x, self.weight(layer + "input_layernorm.weight"))
            x = x + self._drop(self._attention(h, layer + "self_attn.", cos, sin))
            h = rms_norm(x, self.weight(layer + "post_attention_layernorm.weight"))
            x = x + self._drop(self._feed_forward(h, layer + "mlp."))
        x = self._drop(rms_norm(x, self.weight("model.norm.weight")))
        if a.kind == "t5":
            return linear(x * a.hidden**-0.5, vectors)
        return linear(x, self.weight("lm_head.weight"))

    def _attention(self, x: Tensor, name: str, cos: Tensor, sin: Tensor) -> Tensor:
        a = self.architecture
        models, batch, length, _ = x.shape
        q, k, v = (
            linear(x, self.weight(f"{name}{part}_proj.weight"))
            .view(models, batch, length, a.heads, a.head_dim)
            .transpose(2, 3)
            for part in "qkv"
        )
        q, k = (rotate(each, cos, sin).flatten(0, 1) for each in (q, k))
        scale = 1.0 if a.kind == "t5" else a.head_dim**-0.5
        drop = a.dropout if self.training else 0.0
        if self.training and x.device.type == "cpu":
            out = plain_attention(q, k, v.flatten(0, 1), scale, drop)
        else:
            out = scaled_dot_product_attention(
                q, k, v.flatten(0, 1), is_causal=True, scale=scale, dropout_p=drop
            )
        merged = out.transpose(1, 2).reshape(models, batch, length, -1)
        return linear(merged, self.weight(name + "o_proj.weight"))

    def _feed_forward(self, x: Tensor, name: str) -> Tensor:
        up = linear(x, self.weight(name + "up_proj.weight"))
        if self.architecture.kind == "llama":
            up = nn.functional.silu(linear(x, self.weight(name + "gate_proj.weight"))) * up
        else:
            up = self._drop(up.relu())
        return linear(up, self.weight(name + "down_proj.weight"))

    def _drop(self, x: Tensor) -> Tensor:
        p = self.architecture.dropout
        return dropout(x, p, self.training) if p else x

    def forward(self, input_ids: Tensor, first_target: int) -> dict[str, Tensor]:
        """Sum of the models' mean next-token losses.

        Of the whole sequences `[models, batch, length]`, what stands before the index
        `first_target` (prefix and seed) is only read.
        """
        logits = self.logits(input_ids[..., :-1])[:, :, first_target - 1 :]
        losses = token_losses(logits, input_ids[..., first_target:]).mean(dim=(1, 2))
        self.last_losses = losses.detach()
        return {"loss": losses.sum()}


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy in float32 of each target `[models, batch, length]`."""
    flat = cross_entropy(logits.float().flatten(0, 2), targets.flatten(), reduction="none")
    return flat.view(targets.shape)
