"""PosGen's T5 kind as a class of transformers, so that its checkpoints load as any other."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from leval_harness.training.decoder import Attention, Decoder, FeedForward
from leval_harness.training.posgen_settings import Architecture


class PosGenT5Config(PreTrainedConfig):
    """Configuration of `PosGenT5ForCausalLM`."""

    model_type = "posgen_t5"
    vocab_size: int = 22
    hidden_size: int = 512
    intermediate_size: int = 2048
    num_hidden_layers: int = 2
    num_attention_heads: int = 8
    num_key_value_heads: int = 8
    head_dim: int = 64
    max_position_embeddings: int = 260
    rms_norm_eps: float = 1e-6
    dropout: float = 0.1
    rope_parameters: dict[str, Any] | None = None
    tie_word_embeddings: bool = True


class PosGenT5ForCausalLM(PreTrainedModel, GenerationMixin):
    """The decoder with its tied output matrix; it keeps no key-value cache."""

    config_class = PosGenT5Config
    base_model_prefix = "model"
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: PosGenT5Config) -> None:
        super().__init__(config)
        architecture = Architecture(
            kind="t5",
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            heads=config.num_attention_heads,
            head_dim=config.head_dim,
            feed_forward=config.intermediate_size,
            dropout=config.dropout,
        )
        self.model = Decoder(architecture, config.vocab_size)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        # transformers' own module, so that every registered rope type works here too.
        self.rotary_emb = LlamaRotaryEmbedding(config)
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """T5's initialisation with factor 1."""
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=1.0)
        elif isinstance(module, Attention):
            hidden, inner = module.q_proj.in_features, module.q_proj.out_features
            heads = module.architecture.heads
            nn.init.normal_(module.q_proj.weight, std=(hidden * inner // heads) ** -0.5)
            nn.init.normal_(module.k_proj.weight, std=hidden**-0.5)
            nn.init.normal_(module.v_proj.weight, std=hidden**-0.5)
            nn.init.normal_(module.o_proj.weight, std=inner**-0.5)
        elif isinstance(module, FeedForward):
            nn.init.normal_(module.up_proj.weight, std=module.up_proj.in_features**-0.5)
            nn.init.normal_(module.down_proj.weight, std=module.down_proj.in_features**-0.5)

    def forward(self, input_ids: Tensor, **_: Any) -> CausalLMOutput:
        """Logits `[batch, length, vocabulary]` of `input_ids` `[batch, length]`."""
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        turns = self.rotary_emb(self.model.embed_tokens.weight, positions)
        # The second half of the features repeats the first.
        cos, sin = (each[0, :, : self.config.head_dim // 2] for each in turns)
        return CausalLMOutput(logits=self.model(input_ids, cos, sin, None))


def register() -> None:
    """Let transformers' Auto classes load such checkpoints; calling it again does nothing."""
    AutoConfig.register("posgen_t5", PosGenT5Config, exist_ok=True)
    AutoModelForCausalLM.register(PosGenT5Config, PosGenT5ForCausalLM, exist_ok=True)
