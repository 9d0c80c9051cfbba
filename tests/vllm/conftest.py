"""Models small enough that an engine start is what a test costs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ORIGINAL = 256


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory, save_llama: Callable[..., Path]) -> Path:
    """Random float32 Llama, original length 256, 512 tokens, no tokenizer.

    Weights are wider than usual, so that attention is sharp and a wrong position shows.
    """
    return save_llama(
        tmp_path_factory.mktemp("tiny-llama"),
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_key_value_heads=1,
        max_position_embeddings=ORIGINAL,
        initializer_range=0.15,
        bos_token_id=None,
        eos_token_id=None,
    )


@pytest.fixture
def edited(tiny_llama: Path, tmp_path: Path) -> Callable[..., Path]:
    """A copy of the tiny model's config.json (no weights) with keys replaced."""

    def edit(**changes: Any) -> Path:
        config = json.loads((tiny_llama / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
        return tmp_path

    return edit


@pytest.fixture(autouse=True)
def _few_lm_eval_tasks(few_lm_eval_tasks: None) -> None:
    """lm-eval reads few of its own tasks here."""
