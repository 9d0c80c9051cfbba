"""Types that a family's code names itself, beside those that its config says."""

import math

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama

from resonance_vllm.errors import RopeConfigError
from resonance_vllm.hf import registration as hf

SIZES = {
    "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "vocab_size": 32, "max_position_embeddings": 64,
}  # fmt: skip
SLOWER = 1.5
# A key that no code of the family reads is a spelling mistake; this one is in published files.
KEY = "finetuned"


class _Turns(modeling_llama.LlamaRotaryEmbedding):
    """As HunYuan's in transformers 5.20: `dynamic` with a key beside it is a type of its own."""

    chosen = "by settings"

    def __init__(self, config):
        super().__init__(config)
        rope = config.rope_parameters
        if self.chosen == "always" or (rope["rope_type"] == "dynamic" and rope.get(KEY)):
            self.rope_type = "slower"
            self.inv_freq = self.inv_freq / SLOWER
            self.original_inv_freq = self.inv_freq.clone()


class _Anyway(_Turns):
    chosen = "always"


def built(monkeypatch, rotary, **rope):
    hf.register()
    monkeypatch.setattr(modeling_llama, "LlamaRotaryEmbedding", rotary)
    length = {"original_max_position_embeddings": 64}
    rope = {"rope_theta": 10000.0, **(length if "factor" in rope else {}), **rope}
    return LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=rope)).model.rotary_emb


def test_what_the_code_chose_by_the_settings_is_rounded_at_every_length(monkeypatch):
    rope = {"rope_type": "resonance_dynamic", "factor": 1.0, KEY: True}
    module = built(monkeypatch, _Turns, **rope)
    wanted = [
        2 * math.pi / max(round(2 * math.pi * SLOWER * 10000 ** (2 * j / 32)), 1) for j in range(16)
    ]
    for length in (10, 64, 65, 1000, 10):
        cos, _ = module(torch.zeros(1), torch.arange(length)[None])
        turned = torch.arange(length, dtype=torch.float64)[:, None] * torch.tensor(wanted).double()
        torch.testing.assert_close(cos[0, :, :16].double(), turned.cos(), rtol=0, atol=2e-5)
    assert module.rope_type == "slower"  # transformers fills such a module by this name


def test_resonance_on_a_type_that_the_code_always_has(monkeypatch):
    module = built(monkeypatch, _Anyway, rope_type="resonance")
    assert 2 * math.pi / float(module.inv_freq[0]) == pytest.approx(round(2 * math.pi * SLOWER))


@pytest.mark.parametrize(
    ("rotary", "rope", "words"),
    [
        (_Turns, {"rope_type": "resonance_dynamic", "factor": 4.0, KEY: True}, "factor 4 does not"),
        (_Anyway, {"rope_type": "resonance_yarn", "factor": 4.0}, "'slower' of its own;"),
        (_Anyway, {"rope_type": "ntk_aware", "factor": 4.0}, "'slower' of its own;"),
    ],
)
def test_a_request_that_the_code_would_ignore_is_refused(monkeypatch, rotary, rope, words):
    with pytest.raises(RopeConfigError, match=words):
        built(monkeypatch, rotary, **rope)
