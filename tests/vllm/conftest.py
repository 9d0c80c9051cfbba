"""Models small enough that an engine start is what a test costs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ORIGINAL = 256


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random float32 Llama, original length 256, 512 tokens, no tokenizer.

    Weights are wider than usual, so that attention is sharp and a wrong position shows.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=ORIGINAL,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        initializer_range=0.15,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    folder = tmp_path_factory.mktemp("tiny-llama")
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)
    return folder


@pytest.fixture
def edited(tiny_llama: Path, tmp_path: Path) -> Callable[..., Path]:
    """A copy of the tiny model's config.json (no weights) with keys replaced."""

    def edit(**changes: Any) -> Path:
        config = json.loads((tiny_llama / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
        return tmp_path

    return edit
