"""Methods on Gemma 3: its full-attention layers get them, its sliding-window layers keep their RoPE."""

from typing import Any

import pytest
import torch

from resonance_vllm import hf
from resonance_vllm.checkpoint.positions import PositionConfig, complete_rope
from resonance_vllm.core.frequencies import closed_form_inv_freq
from resonance_vllm.core.method import plain_frequencies

TEXT = torch.randint(3, 64, (1, 100), generator=torch.Generator().manual_seed(1))
"""Longer than the native context length of 64."""
LISTS = {"short_factor": [1.0] * 8, "long_factor": [1 + feature / 4 for feature in range(8)]}
METHODS: dict[str, Any] = {
    "linear": "linear:factor=2",
    "ntk_aware": "ntk_aware:factor=2",
    "yarn": "yarn:factor=2",
    "longrope": {"rope_type": "longrope", "factor": 2.0, **LISTS},
    "longrope, one list": {
        "rope_type": "longrope", "factor": 2.0, **LISTS, "short_factor": LISTS["long_factor"],
    },
    "resonance": "resonance",
    "resonance_yarn": "resonance_yarn:factor=2",
}  # fmt: skip


def logits(model: Any, tokens: int = 100) -> torch.Tensor:
    with torch.no_grad():
        return model(TEXT[:, :tokens]).logits


@pytest.mark.parametrize("name", METHODS)
def test_methods_change_full_attention_alone(tiny_gemma3, name):
    plain = logits(tiny_gemma3)
    spec = complete_rope(METHODS[name], PositionConfig.from_config(tiny_gemma3.config))
    reports = {report.layer_type: report for report in hf.apply_rope(tiny_gemma3, spec)}
    sliding = plain_frequencies(1e4, 16)
    assert reports["sliding_attention"].inv_freq == pytest.approx(sliding.tolist())
    expected = closed_form_inv_freq(spec, 16)
    assert reports["full_attention"].inv_freq == pytest.approx(expected.tolist(), rel=1e-6)
    first = logits(tiny_gemma3)
    assert not first.equal(plain)
    logits(tiny_gemma3, 50)
    assert logits(tiny_gemma3).equal(first), "a second long text, after a short one"
    hf.apply_rope(tiny_gemma3)
    assert logits(tiny_gemma3).equal(plain)
