"""A family's model at a small size, for one forward pass: model code reads RoPE settings there too.

Head sizes, layer types and everything else that positions depend on stay as published.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import AutoConfig

from resonance_vllm.hf.build import made, on_meta
from resonance_vllm.hf.request import configs
from resonance_vllm.positions import value_of
from resonance_vllm.verifier import NoRope

TOKENS = 8
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


def tiny_config(config: Any) -> Any:
    """A copy of a config with small sizes, its layers cut to one pattern of layer types.

    Where some sizes follow from others, so that a narrow model does not run, as wide as published.

    Raises:
        ValueError: it has more than `MOST_WEIGHTS` still.
    """
    narrow = _shrunk(config, narrow=True)
    try:
        forward(model_of(narrow))
    except RuntimeError:
        return _shrunk(config, narrow=False)
    return narrow


def model_of(config: Any) -> Any:
    """A float32 model with random weights, the same ones for the same sizes."""
    torch.manual_seed(0)
    return made(
        copy.deepcopy(config),
        lambda cls, each: cls._from_config(each, dtype=torch.float32).eval(),
    )


def forward(model: Any) -> Any:
    """What a model answers on a few tokens."""
    with torch.no_grad():
        return model(torch.arange(1, TOKENS + 1)[None])


class NotRunError(Exception):
    """A small model is not built, or fails as shipped: its forward pass says nothing."""


def write_tiny(path: str, folder: str) -> None:
    """Write the config of a checkpoint at a small size.

    Args:
        path: checkpoint folder or hub name.
        folder: where config.json goes.

    Raises:
        NotRunError: there is none, or it does not run.
    """
    try:
        tiny_config(AutoConfig.from_pretrained(path)).save_pretrained(folder)
    except Exception as error:
        raise NotRunError(_line(error)) from error


def forward_problem(
    run: Callable[[str, Mapping[str, Any]], object], folder: str, overrides: Mapping[str, Any]
) -> str | None:
    """Why a forward pass fails with overrides of the config and not without them.

    Args:
        run: builds the model of a small checkpoint with overrides and runs it.
        folder: from `write_tiny`.
        overrides: keys of its config.

    Returns:
        The reason; None where it runs.

    Raises:
        NotRunError: it does not run as shipped either, or the layers that are left have no RoPE.
    """
    try:
        run(folder, overrides)
    except NoRope as error:
        raise NotRunError(_line(error)) from error
    except Exception as error:  # noqa: BLE001 - model code raises anything
        reason = _line(error)
        try:
            run(folder, {})
        except Exception as shipped:
            raise NotRunError(_line(shipped)) from shipped
        return f"its forward pass fails: {reason[:300]}"
    return None


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def run_forward(folder: str, overrides: Mapping[str, Any]) -> None:
    """Build a small checkpoint with overrides by transformers and run it."""
    forward(model_of(AutoConfig.from_pretrained(folder, **overrides)))


def _shrunk(config: Any, *, narrow: bool) -> Any:
    config = copy.deepcopy(config)
    for each in configs(config):
        _shrink(each, narrow)
    weights = sum(each.numel() for each in on_meta(copy.deepcopy(config)).parameters())
    if weights > MOST_WEIGHTS:
        raise ValueError(f"{weights:,} weights at a small size; allowed: up to {MOST_WEIGHTS:,}")
    return config


def _shrink(state: Any, narrow: bool) -> None:
    if (getattr(state, "pad_token_id", None) or 0) >= _MOST["vocab_size"]:
        state.pad_token_id = 0
    for key, most in _MOST.items():
        value = value_of(state, key)
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
