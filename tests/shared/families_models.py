"""Tiny random models of the families, everything that positions depend on as published."""

import copy
import functools
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedConfig

from resonance_vllm.core.methods import METHODS
from resonance_vllm.core.spec import LENGTH
from resonance_vllm.hf.build import model_class
from resonance_vllm.hf.model import layer_types, rotary_modules
from resonance_vllm.hf.request import configs
from resonance_vllm.model_config.family import by_layer, global_layers, windowed

# Sizes -> the most that is built.
_MOST = {
    "vocab_size": 512, "vocab_size_per_layer_input": 512, "intermediate_size": 64,
    "intermediate_size_mlp": 64, "moe_intermediate_size": 64, "shared_intermediate_size": 64,
    "shared_expert_intermediate_size": 32, "n_routed_experts": 8, "num_experts": 4,
    "num_local_experts": 4, "num_experts_per_tok": 2, "q_lora_rank": 16, "qk_nope_head_dim": 16,
    "v_head_dim": 16, "swa_v_head_dim": 16, "hidden_size_per_layer_input": 16,
}  # fmt: skip
# The latent's own size (`kv_lora_rank`) stays: vLLM has kernels for the published one only.


_OF_HEADS = ("q_lora_rank", "qk_nope_head_dim", "v_head_dim")
_AS_WIDE = ("conv_dim", "conv_dim_out", "block_dim")  # LFM2's other names for the hidden size


def config_of(folder: Path) -> Any:
    """The folder's config with small sizes, its layers cut to one pattern of layer types."""
    return _small(folder, narrow=_runs_narrow(folder))


@functools.cache
def _runs_narrow(folder: Path) -> bool:
    """Whether code runs at another width than the published one: some sizes follow from others."""
    try:
        output(model_of(_small(folder, narrow=True)), torch.ones(1, 4, dtype=torch.int64))
    except RuntimeError:
        return False
    return True


def _small(folder: Path, narrow: bool) -> Any:
    config = AutoConfig.from_pretrained(folder)
    for each in configs(config):
        _shrink(each, narrow)
        if hasattr(each, "initializer_range"):
            each.initializer_range = 0.2  # positions shall count for the logits
    return config


def _shrink(config: PreTrainedConfig, narrow: bool) -> None:
    state: Any = config
    if (getattr(config, "pad_token_id", None) or 0) >= _MOST["vocab_size"]:
        state.pad_token_id = 0
    for key, most in _MOST.items():
        value = getattr(config, key, None)
        if isinstance(value, list):
            setattr(state, key, [min(each, most) for each in value])
        elif isinstance(value, int) and value > most and (narrow or key not in _OF_HEADS):
            setattr(state, key, most)
    heads = getattr(config, "num_attention_heads", None)
    if not isinstance(heads, int) or not isinstance(getattr(config, "hidden_size", None), int):
        return
    if not narrow:
        _cut_layers(state)
        return
    per_head = state.hidden_size // heads
    few = min(heads, 4)
    if isinstance(getattr(config, "swa_num_attention_heads", None), int):  # MiMo's sliding layers
        state.swa_num_key_value_heads = max(1, few * state.swa_num_key_value_heads // heads)
        state.swa_num_attention_heads = few
    # A head size of each layer type cannot be read here, so it is explicit.
    explicit = (
        getattr(config, "is_heterogeneous", False) or getattr(config, "head_dim", None) is not None
    )
    if isinstance(getattr(config, "num_key_value_heads", None), int):
        state.num_key_value_heads = max(1, few * state.num_key_value_heads // heads)
    state.num_attention_heads = few
    wide = state.hidden_size
    state.hidden_size = min(wide, 64) if explicit else per_head * few
    for key in _AS_WIDE:
        if getattr(config, key, None) == wide:
            setattr(state, key, state.hidden_size)
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
    if getattr(config, "num_kv_shared_layers", None):
        config.num_kv_shared_layers = 0


def model_of(config: Any) -> Any:
    """A float32 model with random weights, the same ones for the same sizes.

    Of a family whose other parts need a package that is not installed, the text model.
    """
    torch.manual_seed(0)
    config = copy.deepcopy(config)
    try:
        return model_class(config)._from_config(config, dtype=torch.float32).eval()
    except ImportError:
        text = config.get_text_config()
        return model_class(text)._from_config(text, dtype=torch.float32).eval()


def output(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Logits, or the hidden states of a model that has none."""
    with torch.no_grad():
        found = model(ids)
    result: torch.Tensor = found.logits if hasattr(found, "logits") else found[0]
    return result


def shipped_of(config: Any) -> dict[str, Any]:
    """The text model's own settings, on the global layers."""
    rope = by_layer(config.get_text_config())
    return dict(rope[None] if None in rope else rope[global_layers(rope)] if rope else {})


def asked(config: Any, rope: dict[str, Any], length: int | None = None) -> Any:
    """The config with `rope` in place of the text model's own scaling, on the global layers.

    `length` is the trained one, wherever a config has a place for it.
    """
    changed = copy.deepcopy(config)
    text = changed.get_text_config()
    if length is not None:
        text.max_position_embeddings = length
        if getattr(text, LENGTH, None) is not None:
            setattr(text, LENGTH, length)
    new = {key: value for key, value in shipped_of(config).items() if key not in SCALING}
    new |= rope
    there = by_layer(text)
    if there and None not in there:
        text.rope_parameters = {**text.rope_parameters, global_layers(there): new}
    else:
        text.rope_parameters = new
    return changed


def global_rotations(model: Any) -> list[tuple[Any, str, str | None]]:
    """Rotary modules of the text model, prefix of their attributes and layer type.

    The sliding layers of a model with several rotations aside: they turn as shipped.
    """
    return [
        (module, "" if kind is None else f"{kind}_", kind)
        for _, module in rotary_modules(model)
        for kind in layer_types(module)
        if not windowed(kind)
    ]


def answers(module: Any, kind: str | None, positions: list[int]) -> list[torch.Tensor]:
    """cos and sin of a rotary module, real and imaginary part where it is complex."""
    keywords = {} if kind is None else {"layer_type": kind}
    answer = module(torch.zeros(1), torch.tensor([positions]), **keywords)
    if isinstance(answer, torch.Tensor):
        return [answer.real, answer.imag]
    return list(answer)


SCALING = {key for method in METHODS.values() for key in method.key_names()} - {
    "rope_theta",
    "partial_rotary_factor",
    LENGTH,  # some model code reads it for itself
} | {"rope_type", "type"}
"""Keys that say how a model's positions are scaled; others are the model's own."""
