"""sglang: `get_rope`, which its model files call, with the settings of the config.

What a model file changes before that call (DeepSeek, gpt-oss) is not seen. Only what the module
imports has to be installed; no GPU is needed.
"""

import importlib.metadata
import logging
from types import SimpleNamespace

import torch
from rope_vectors import longrope_table, read_table
from sglang.srt import server_args
from sglang.srt.layers.rotary_embedding import get_rope
from transformers import AutoConfig

logging.getLogger("transformers").setLevel(logging.ERROR)
if importlib.metadata.version("sglang").startswith("0.5.5"):  # its modules read them
    _none = SimpleNamespace(rl_on_policy_target=None)
    server_args.set_global_server_args_for_scheduler(_none)
ROWS = 64
"""Rows of a table whose frequencies do not depend on its length."""


def version():
    """The library's version."""
    return importlib.metadata.version("sglang")


def read(vector):
    """Frequencies from row 1 of the cos/sin table."""
    given = dict(vector["config"])
    config = AutoConfig.for_model(given.pop("model_type"), **given)
    head = given.get("qk_rope_head_dim") or given.get("head_dim")
    head = head or config.hidden_size // config.num_attention_heads
    rope = getattr(config, "rope_parameters", None)
    if rope is None:  # transformers 4
        rope = getattr(config, "rope_scaling", None)
        base = getattr(config, "rope_theta", 10000)
    else:
        rope = dict(rope[vector["layer_type"]] if vector["layer_type"] else rope)
        base = rope["rope_theta"]
    share = (rope or {}).get("partial_rotary_factor") or given.get("partial_rotary_factor") or 1.0
    share = given.get("rotary_pct", share)
    follows_length = vector["method"] in ("dynamic", "longrope")
    rows = config.max_position_embeddings if follows_length else ROWS
    if vector["method"] == "proportional":
        head = vector["rotary_dim"]
    dim = given["rotary_dim"] if "rotary_dim" in given and share == 1.0 else head
    module = get_rope(
        head, dim, rows, base, True, rope, dtype=torch.float32, partial_rotary_factor=share
    )
    return read_table(vector, *longrope_table(module, vector["length"]).chunk(2, dim=1))
