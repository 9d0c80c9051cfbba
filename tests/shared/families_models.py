"""Tiny random models of the families, everything that positions depend on as published."""

import copy
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedConfig

from resonance_vllm import hf
from resonance_vllm.checkpoint.positions import config_value
from resonance_vllm.checkpoint.rope_dict import (
    global_layer_type,
    global_layer_types,
    is_windowed,
    rope_by_layer_type,
)
from resonance_vllm.core.spec import METHODS, ORIGINAL_LENGTH_KEY
from resonance_vllm.hf.building import build_on_meta, model_class
from resonance_vllm.hf.rotary import layer_types, rotary_modules

MOST_WEIGHTS = 200_000_000
"""Larger ones are not run; the usual small model has less than a million."""
# Sizes -> the most that is built. The latent's own size (`kv_lora_rank`) stays: vLLM has kernels
# for the published one only. What weights take in is a multiple of 32: on processors with AMX its
# kernels for matrices accept no other.
_MOST = {
    "vocab_size": 512, "vocab_size_per_layer_input": 512, "intermediate_size": 64,
    "intermediate_size_mlp": 64, "moe_intermediate_size": 64, "shared_intermediate_size": 64,
    "shared_expert_intermediate_size": 32, "n_routed_experts": 8, "num_experts": 4,
    "num_local_experts": 4, "num_experts_per_tok": 2, "q_lora_rank": 32, "qk_nope_head_dim": 32,
    "v_head_dim": 32, "swa_v_head_dim": 32, "hidden_size_per_layer_input": 32,
}  # fmt: skip
_OF_HEADS = ("q_lora_rank", "qk_nope_head_dim", "v_head_dim")
_AS_WIDE = ("conv_dim", "conv_dim_out", "block_dim")  # LFM2's other names for the hidden size


def config_of(folder: Path) -> Any:
    """The folder's config with small sizes, its layers cut to one pattern of layer types."""
    return copy.deepcopy(_small(folder))


@functools.cache
def _small(folder: Path) -> Any:
    hf.register()
    published = AutoConfig.from_pretrained(folder)
    try:
        config = tiny_config(published)
    except AttributeError:  # transformers 5.24.0: Llama 4's class for images fails on text alone
        config = tiny_config(published.get_text_config())
    for each in configs(config):
        if hasattr(each, "initializer_range"):
            each.initializer_range = 0.2  # positions shall count for the logits
    return config


def tiny_config(config: Any) -> Any:
    """A copy with small sizes; where a narrow model does not run, as wide as published.

    Raises:
        ValueError: it has more than `MOST_WEIGHTS` still.
    """
    narrow = _shrunk(config, narrow=True)
    try:
        output(model_of(narrow), torch.arange(1, 9)[None])
    except RuntimeError:
        return _shrunk(config, narrow=False)
    return narrow


def configs(config: Any) -> Iterator[Any]:
    """A config and those nested in it."""
    if isinstance(config, PreTrainedConfig):
        yield config
        for each in vars(config).values():
            yield from configs(each)


def model_of(config: Any) -> Any:
    """A float32 model with random weights, the same ones for the same sizes."""
    text = config.get_text_config(decoder=True)
    for each in (config, text):
        torch.manual_seed(0)
        try:
            made = model_class(each)._from_config(copy.deepcopy(each), dtype=torch.float32)
        except ImportError:  # parts for images need a package
            if each is text:
                raise
        else:
            return made.eval()
    raise AssertionError


def applied(config: Any) -> Any:
    """`model_of`, turning exactly as its config asks."""
    model = model_of(config)
    hf.apply_rope(model)
    return model


def _shrunk(config: Any, *, narrow: bool) -> Any:
    config = copy.deepcopy(config)
    for each in configs(config):
        _shrink(each, narrow)
    weights = sum(each.numel() for each in build_on_meta(copy.deepcopy(config)).parameters())
    if weights > MOST_WEIGHTS:
        raise ValueError(f"{weights:,} weights at a small size; allowed: up to {MOST_WEIGHTS:,}")
    return config


def _shrink(state: Any, narrow: bool) -> None:
    if (getattr(state, "pad_token_id", None) or 0) >= _MOST["vocab_size"]:
        state.pad_token_id = 0
    for key, most in _MOST.items():
        value = config_value(state, key)
        if isinstance(value, list):
            setattr(state, key, [min(each, most) for each in value])
        elif isinstance(value, int) and value > most and (narrow or key not in _OF_HEADS):
            setattr(state, key, most)
    heads = getattr(state, "num_attention_heads", None)
    wide = getattr(state, "hidden_size", None)
    if not isinstance(heads, int) or not isinstance(wide, int):
        return
    if narrow:
        _narrow(state, heads, wide)
    _cut_layers(state)


def _narrow(state: Any, heads: int, wide: int) -> None:
    per_head, few = wide // heads, min(heads, 4)
    if isinstance(getattr(state, "swa_num_attention_heads", None), int):  # MiMo's sliding layers
        state.swa_num_key_value_heads = max(1, few * state.swa_num_key_value_heads // heads)
        state.swa_num_attention_heads = few
    # A head size of each layer type cannot be read here, so it is explicit.
    explicit = getattr(state, "is_heterogeneous", False) or getattr(state, "head_dim", None)
    if isinstance(getattr(state, "num_key_value_heads", None), int):
        state.num_key_value_heads = max(1, few * state.num_key_value_heads // heads)
    state.num_attention_heads = few
    state.hidden_size = min(wide, 64) if explicit else per_head * few
    for key in _AS_WIDE:
        if getattr(state, key, None) == wide:
            setattr(state, key, state.hidden_size)


def _cut_layers(config: Any) -> None:
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
    before = count = getattr(config, "num_hidden_layers", 0)
    if count > 2:
        count = max(kinds.index(kind) for kind in set(kinds)) + 1 if kinds else 2
    if count == before:
        return
    for key, value in vars(config).items():
        if isinstance(value, list) and len(value) == before:
            setattr(config, key, value[:count])
    config.num_hidden_layers = count
    if getattr(config, "num_kv_shared_layers", None):
        config.num_kv_shared_layers = 0


def output(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Logits, or the hidden states of a model that has none."""
    with torch.no_grad():
        found = model(ids)
    result: torch.Tensor = found.logits if hasattr(found, "logits") else found[0]
    return result


def shipped_of(config: Any) -> dict[str, Any]:
    """The text model's own settings, on the global layers."""
    rope = rope_by_layer_type(config.get_text_config())
    return dict(rope[None] if None in rope else rope[global_layer_types(rope)[0]] if rope else {})


def asked(config: Any, rope: dict[str, Any], length: int | None = None) -> Any:
    """The config with `rope` in place of the text model's own scaling, on the global layers.

    Written by hand, not by `with_rope`. `length` is the trained one, wherever a config has a place
    for it.
    """
    changed = copy.deepcopy(config)
    text = changed.get_text_config()
    if length is not None:
        text.max_position_embeddings = length
    if getattr(text, ORIGINAL_LENGTH_KEY, None) is not None:  # it wins over that of the settings
        setattr(
            text,
            ORIGINAL_LENGTH_KEY,
            length or rope.get(ORIGINAL_LENGTH_KEY) or getattr(text, ORIGINAL_LENGTH_KEY),
        )
    if vars(text).get("head_dim", 0) is None and rope["rope_type"] != "default":
        text.head_dim = text.hidden_size // text.num_attention_heads
    new = {key: value for key, value in shipped_of(config).items() if key not in SCALING}
    new |= rope
    there = rope_by_layer_type(text)
    if there and None not in there:
        text.rope_parameters = {**text.rope_parameters, global_layer_type(there): new}
    else:
        text.rope_parameters = new
    return changed


def global_rotations(model: Any) -> list[tuple[Any, str, str | None]]:
    """Rotary modules of the text model, prefix of their attributes and layer type.

    The sliding layers of a model with several rotations aside: they turn unmodified.
    """
    return [
        (module, "" if kind is None else f"{kind}_", kind)
        for _, module in rotary_modules(model)
        for kind in layer_types(module)
        if not is_windowed(kind)
    ]


def answers(module: Any, kind: str | None, positions: Any) -> list[torch.Tensor]:
    """cos and sin of a rotary module, real and imaginary part where it is complex."""
    keywords = {} if kind is None else {"layer_type": kind}
    answer = module(torch.zeros(1), torch.as_tensor([positions]), **keywords)
    if isinstance(answer, torch.Tensor):
        return [answer.real, answer.imag]
    return list(answer)


SCALING = {key for method in METHODS.values() for key in method.key_names()} - {
    "rope_theta",
    "partial_rotary_factor",
    ORIGINAL_LENGTH_KEY,  # some model code reads it for itself
} | {"rope_type", "type"}
"""Keys that say how a model's positions are scaled; others are the model's own."""
