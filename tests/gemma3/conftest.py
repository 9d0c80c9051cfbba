"""Gemma 3: a tiny model of its layout, and the real one of 270M parameters."""

from pathlib import Path
from typing import Any

import pytest

FULL = {"rope_type": "default", "rope_theta": 1e6}
SLIDING = {"rope_type": "default", "rope_theta": 1e4}
SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 6,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "sliding_window": 16,
    "max_position_embeddings": 64, "initializer_range": 0.3,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
}  # fmt: skip


@pytest.fixture
def tiny_gemma3() -> Any:
    """A model of random weights with the layers of Gemma 3 and a native context length of 64."""
    import torch
    from transformers import AutoModelForCausalLM, Gemma3TextConfig

    ropes = {"full_attention": dict(FULL), "sliding_attention": dict(SLIDING)}
    config = Gemma3TextConfig(**SIZES, rope_parameters=ropes)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.fixture(scope="session")
def gemma3() -> Path:
    """Checkpoint folder of Gemma 3 270M, made on first use and kept in the cache."""
    from leval_harness.models.prepare import prepare

    return prepare("gemma3-270m")
