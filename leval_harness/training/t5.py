"""PosGen's T5 kind: T5-Small's decoder with RoPE, as a class of transformers.

ReLU feed-forward, attention logits not divided by the square root of the head size, tied embeddings
with the final state scaled by `hidden ** -0.5`, RMS norms before each sub-layer, no biases, dropout
of embeddings, attention weights, sub-layer outputs and the final state. Pairs (i, i + d/2) rotate,
as in Llama; weights start out symmetric in the dimensions of a head, so this is the same model as
one that rotates neighbouring dimensions. Names of weights are those of Llama.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, scaled_dot_product_attention
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, PreTrainedModel
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb


class PosGenT5Config(LlamaConfig):
    """Sizes of a `PosGenT5ForCausalLM`, by Llama's names."""

    model_type = "posgen_t5"
    dropout: float = 0.1


class Attention(nn.Module):
    """Causal attention over `[batch, length, hidden]`."""

    def __init__(self, config: PosGenT5Config) -> None:
        super().__init__()
        self.shape = (config.num_attention_heads, config.head_dim)
        self.dropout = config.dropout
        hidden = config.hidden_size
        inner = config.num_attention_heads * config.head_dim
        self.q_proj = nn.Linear(hidden, inner, bias=False)
        self.k_proj = nn.Linear(hidden, inner, bias=False)
        self.v_proj = nn.Linear(hidden, inner, bias=False)
        self.o_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Attend from each position to itself and those before it.

        Args:
            x: hidden states `[batch, length, hidden]`.
            cos: cosines of the rotation, `[1, length, head_dim]`.
            sin: its sines, of the same shape.

        Returns:
            `[batch, length, hidden]`.
        """
        q = self.q_proj(x).unflatten(-1, self.shape).transpose(1, 2)
        k = self.k_proj(x).unflatten(-1, self.shape).transpose(1, 2)
        v = self.v_proj(x).unflatten(-1, self.shape).transpose(1, 2)
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        # cos and sin may be in float32; attention needs one dtype
        q = q.to(v.dtype)
        k = k.to(v.dtype)
        rate = 0.0
        if self.training:
            rate = self.dropout
        # T5 does not divide its logits by the square root of the head size: the initial weights of
        # the query projection are smaller instead.
        out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0, dropout_p=rate)
        return cast(Tensor, self.o_proj(out.transpose(1, 2).flatten(2)))


class FeedForward(nn.Module):
    """Two layers with ReLU."""

    def __init__(self, config: PosGenT5Config) -> None:
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layers' output for `x`, both `[batch, length, hidden]`."""
        return cast(Tensor, self.down_proj(self.dropout(self.up_proj(x).relu())))


class Layer(nn.Module):
    """Attention and feed-forward, each added to the residual stream."""

    def __init__(self, config: PosGenT5Config) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the hidden states after the layer, `[batch, length, hidden]` as `x`."""
        x = x + self.dropout(self.self_attn(self.input_layernorm(x), cos, sin))
        return cast(Tensor, x + self.dropout(self.mlp(self.post_attention_layernorm(x))))


class Decoder(nn.Module):
    """The model without its output matrix."""

    def __init__(self, config: PosGenT5Config) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        # transformers' own module, so that every registered rope type works here too.
        self.rotary_emb = LlamaRotaryEmbedding(config)
        self.dropout = config.dropout

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return the final hidden states `[batch, length, hidden]` of ids `[batch, length]`."""
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        x = dropout(self.embed_tokens(input_ids), self.dropout, self.training)
        cos, sin = self.rotary_emb(x, positions)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return dropout(self.norm(x), self.dropout, self.training)


class PosGenT5ForCausalLM(PreTrainedModel, GenerationMixin):
    """The decoder with its tied output matrix; it keeps no key-value cache."""

    config_class = PosGenT5Config
    base_model_prefix = "model"
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: PosGenT5Config) -> None:
        super().__init__(config)
        self.model = Decoder(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise a module as T5 does with factor 1: variance one over the number of inputs.

        The variance of the query projection is smaller by the size of a head, because attention
        logits are not scaled.
        """
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=1.0)
        elif isinstance(module, LlamaRotaryEmbedding):
            # loading a checkpoint leaves buffers that are not stored, as inv_freq, uninitialised
            super()._init_weights(module)
        elif isinstance(module, Attention | FeedForward):
            for name, layer in module.named_children():
                if isinstance(layer, nn.Linear):
                    inverse_variance = layer.in_features
                    if name == "q_proj":
                        inverse_variance *= self.config.head_dim
                    nn.init.normal_(layer.weight, std=inverse_variance**-0.5)

    def forward(self, input_ids: Tensor, **_: Any) -> CausalLMOutput:
        """Return the logits `[batch, length, vocabulary]` of `input_ids` `[batch, length]`."""
        states = self.model(input_ids) * self.config.hidden_size**-0.5
        return CausalLMOutput(logits=self.lm_head(states))


def register() -> None:
    """Register the model in transformers' Auto classes; calling it again does nothing."""
    AutoConfig.register("posgen_t5", PosGenT5Config, exist_ok=True)
    AutoModelForCausalLM.register(PosGenT5Config, PosGenT5ForCausalLM, exist_ok=True)
