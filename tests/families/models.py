"""Tiny random models of the families, everything that positions depend on as published."""

import copy
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedConfig

from resonance_vllm.core.methods import METHODS
from resonance_vllm.hf_build import model_class
from resonance_vllm.hf_request import by_layer, configs

# Sizes -> the most that is built.
_MOST = {
    "vocab_size": 512, "vocab_size_per_layer_input": 512, "intermediate_size": 64,
    "intermediate_size_mlp": 64, "moe_intermediate_size": 32, "shared_intermediate_size": 64,
    "shared_expert_intermediate_size": 32, "n_routed_experts": 8, "num_experts": 4,
    "num_local_experts": 4, "num_experts_per_tok": 2, "kv_lora_rank": 16, "q_lora_rank": 16,
    "qk_nope_head_dim": 16, "v_head_dim": 16, "hidden_size_per_layer_input": 16,
}  # fmt: skip


def config_of(folder: Path) -> Any:
    """The folder's config with small sizes, its layers cut to one pattern of layer types."""
    config = AutoConfig.from_pretrained(folder)
    for each in configs(config):
        _shrink(each)
    return config


def _shrink(config: PreTrainedConfig) -> None:
    state: Any = config
    for key, most in _MOST.items():
        value = getattr(config, key, None)
        if isinstance(value, list):
            setattr(state, key, [min(each, most) for each in value])
        elif isinstance(value, int) and value > most:
            setattr(state, key, most)
    heads = getattr(config, "num_attention_heads", None)
    if not isinstance(heads, int) or not isinstance(getattr(config, "hidden_size", None), int):
        return
    per_head = state.hidden_size // heads
    few = min(heads, 4)
    # A head size of each layer type cannot be read here, so it is explicit.
    explicit = config.is_heterogeneous or getattr(config, "head_dim", None) is not None
    if isinstance(getattr(config, "num_key_value_heads", None), int):
        state.num_key_value_heads = max(1, few * state.num_key_value_heads // heads)
    state.num_attention_heads = few
    state.hidden_size = min(state.hidden_size, 64) if explicit else per_head * few
    _cut_layers(state)


def _cut_layers(config: Any) -> None:
    kinds = getattr(config, "layer_types", None)
    count = getattr(config, "num_hidden_layers", 0)
    if count > 2 and kinds:
        count = max(kinds.index(kind) for kind in set(kinds)) + 1
    elif count > 2:
        count = 2
    if count == getattr(config, "num_hidden_layers", 0):
        return
    for key, value in vars(config).items():
        if isinstance(value, list) and len(value) == config.num_hidden_layers:
            setattr(config, key, value[:count])
    config.num_hidden_layers = count


def model_of(config: Any, **keywords: Any) -> Any:
    """A model with random weights, the same ones for the same sizes."""
    torch.manual_seed(0)
    config = copy.deepcopy(config)
    return model_class(config)._from_config(config, dtype=torch.float32, **keywords).eval()


def asked(config: Any, rope: dict[str, Any]) -> Any:
    """The config with `rope` in place of the text model's own scaling, on the global layers."""
    changed = copy.deepcopy(config)
    text = changed.get_text_config()
    shipped = by_layer(text)
    key = "full_attention" if "full_attention" in shipped else None
    own = shipped.get(key) or {}
    kept = {k: v for k, v in own.items() if k not in SCALING}
    new = {**kept, **rope}
    text.rope_parameters = new if key is None else {**text.rope_parameters, key: new}
    return changed


def shipped_of(config: Any) -> dict[str, Any]:
    """The text model's own settings, on the global layers."""
    rope = by_layer(config.get_text_config())
    return dict(rope.get("full_attention") or rope.get(None) or {})


SCALING = {key for method in METHODS.values() if method.stock for key in method.model_fields} - {
    "rope_theta",
    "partial_rotary_factor",
} | {"rope_type", "type"}
"""Keys that say how a model's positions are scaled; others are the model's own."""
