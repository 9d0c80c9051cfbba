"""`check` runs a small model in vLLM: model code reads RoPE settings in its forward pass too."""

import json

import pytest
from transformers import CONFIG_MAPPING

from resonance_vllm.config import ModelPositions, vllm_hf_overrides
from resonance_vllm.core.spec import RopeRequest
from resonance_vllm.vllm.build import look_at

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

SMALL = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "pad_token_id": 0, "kv_lora_rank": 32,
    "q_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32,
    "moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip
REQUESTS = ("resonance", "linear:factor=4", "ntk_aware:factor=4,replace=true")


def test_requests_run_and_what_crashes_is_refused_with_its_reason(tmp_path):
    path = str(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG_MAPPING["mistral4"](**SMALL).to_dict()))
    model = ModelPositions.of_checkpoint(path)
    specs = [model.complete(RopeRequest.parse(text)) for text in REQUESTS]
    overrides = [vllm_hf_overrides(spec, model, 256) for spec in specs]
    job = {"model": path, "max_model_len": 256, "run": True}
    raw = {"rope_type": "linear", "rope_theta": 1e6, "factor": 4.0, "llama_4_scaling_beta": 0.1}
    overrides.append({"rope_parameters": raw})
    *right, crashing = look_at([{**job, "hf_overrides": each} for each in overrides])
    for found in right:
        assert set(found) == {"held"}
        (module,) = found["held"]
        assert len(module["inv_freq"]) == 8
    # It builds, with 16 features, and the pass fails.
    assert crashing["refused"].startswith("its forward pass fails: RuntimeError: The size of tens")
