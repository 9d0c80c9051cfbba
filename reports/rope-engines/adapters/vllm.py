"""vLLM: `get_rope`, which its model files call, with the settings that vLLM reads from the config.

What a model file changes before that call (DeepSeek, gpt-oss) is not seen.
"""

import inspect
import logging
import os
from types import SimpleNamespace

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")

import torch
import vllm
from rope_vectors import longrope_table, read_table
from transformers import AutoConfig
from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers import rotary_embedding
from vllm.transformers_utils import config as vllm_configs

logging.getLogger("transformers").setLevel(logging.ERROR)
ROWS = 64
"""Rows of a table whose frequencies do not depend on its length."""


def version():
    """The library's version."""
    return vllm.__version__


def read(vector):
    """Frequencies from row 1 of the cos/sin table."""
    given = dict(vector["config"])
    config = AutoConfig.for_model(given.pop("model_type"), **given)
    head = given.get("qk_rope_head_dim") or given.get("head_dim")
    head = head or config.hidden_size // config.num_attention_heads
    if vector["method"] == "proportional":
        head = vector["rotary_dim"]
    follows_length = vector["method"] in ("dynamic", "longrope")
    rows = config.max_position_embeddings if follows_length else ROWS
    current = VllmConfig(device_config=DeviceConfig(device="cpu"))
    current.model_config = SimpleNamespace(max_model_len=vector["served_length"])
    rotary_embedding._ROPE_DICT.clear()
    with set_current_vllm_config(current):
        module = _module(config, head, rows, vector["layer_type"])
    return read_table(vector, *longrope_table(module, vector["served_length"]).chunk(2, dim=1))


def _module(config, head, rows, layer_type):
    """`get_rope` as it was before and after `rope_parameters` (0.12)."""
    get_rope = rotary_embedding.get_rope
    more = {"dtype": torch.float32}
    if "rope_parameters" in inspect.signature(get_rope).parameters:
        vllm_configs.patch_rope_parameters(config)
        rope = config.rope_parameters
        return get_rope(
            head, rows, rope_parameters=rope[layer_type] if layer_type else rope, **more
        )
    vllm_configs.patch_rope_scaling(config)
    base, scaling = getattr(config, "rope_theta", 10000), getattr(config, "rope_scaling", None)
    if layer_type == "sliding_attention":
        base, scaling = config.rope_local_base_freq, None
    if scaling and scaling["rope_type"] == "default":
        scaling = None
    if scaling and "original_max_position_embeddings" in vars(config):
        scaling["original_max_position_embeddings"] = config.original_max_position_embeddings
    share = getattr(config, "partial_rotary_factor", None) or getattr(config, "rotary_pct", 1.0)
    dim = getattr(config, "rotary_dim", head)
    return get_rope(head, dim, rows, base, True, scaling, partial_rotary_factor=share, **more)
