"""litgpt: the cache of `GPT.rope_cache` for a `Config` with `rope_base` and `rope_adjustments`.

litgpt reads no config.json. This adapter writes the settings as `litgpt/config.py` does for models
that litgpt knows; what `rope_adjustments` has no keys for is not supported.
"""

import importlib.metadata

import torch
from litgpt import GPT, Config
from rope_vectors import read_table

KEYS = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
}
LONGEST = 131072


def version():
    """The library's version."""
    return importlib.metadata.version("litgpt")


def read(vector):
    """Frequencies from row 1 of the tables."""
    if vector["layer_type"]:
        raise NotImplementedError("rotations by layer type are written for Gemma 3 alone")
    rope, dim = vector["rope"], vector["rotary_dim"]
    rows = min(max(vector["positions"]) + 1, LONGEST)
    config = Config(
        block_size=rows,
        n_layer=1,
        n_head=1,
        n_embd=dim,
        head_size=dim,
        padded_vocab_size=8,
        intermediate_size=8,
        rotary_percentage=1.0,
        rope_base=rope["rope_theta"],
        rope_adjustments=_adjustments(rope),
    )
    with torch.device("meta"):
        model = GPT(config)
    cos, sin = model.rope_cache(device=torch.device("cpu"))
    half = dim // 2
    return read_table(vector, cos[:, :half], sin[:, :half])


def _adjustments(rope):
    kind = rope["rope_type"]
    if kind == "default":
        return None
    if kind not in KEYS or "attention_factor" in rope:
        missing = kind if kind not in KEYS else "attention_factor"
        raise ValueError(f"rope_adjustments has no keys for {missing}")
    given = {"beta_fast": 32.0, "beta_slow": 1.0, **rope} if kind == "yarn" else rope
    adjustments = {key: given[key] for key in KEYS[kind] if key in given}
    if kind != "linear":
        adjustments["original_max_seq_len"] = rope["original_max_position_embeddings"]
    return adjustments
