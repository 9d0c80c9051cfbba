"""Rotation in float32 reaches every family whose code turns q and k by functions."""

import importlib

import pytest
import torch
import transformers

from resonance_vllm.hf.float32 import rotations
from resonance_vllm.hf.model import set_rope_precision
from resonance_vllm.hf.tiny import forward, model_of

pytestmark = pytest.mark.hf

TYPES = ["deepseek_v4", "glm4", "gpt_neox", "gpt_oss", "llama", "mistral4", "qwen3", "stablelm"]


@pytest.mark.parametrize("model_type", TYPES)
def test_model_code_has_rotations_that_take_cos_and_sin(model_type):
    name = f"transformers.models.{model_type}.modeling_{model_type}"
    assert dict(rotations(importlib.import_module(name)))


def test_a_model_without_such_a_rotation_keeps_its_precision(caplog):
    sizes = {"vocab_size": 64, "n_embd": 32, "n_layer": 1, "n_head": 2}
    model = model_of(transformers.GPT2Config(**sizes))
    set_rope_precision(model, "float32")
    assert model.rope_precision_used == "model"
    assert "rotates in its own precision, not in float32" in caplog.text


def test_float32_in_a_model_of_bfloat16_runs_forward():
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2)
    model = model_of(config).to(torch.bfloat16)
    before = forward(model).logits
    set_rope_precision(model, "float32")
    after = forward(model).logits
    assert model.rope_precision_used == "float32"
    assert after.dtype == torch.bfloat16
    torch.testing.assert_close(after, before, atol=0.05, rtol=0.05)
