"""What a model that ships a scaling would run with, for every rope type, and what is refused."""

import json

import pytest
from golden_access import fine, run

BASE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "vocab_size": 32,
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 256}
PLAIN = BASE | {"rope_theta": 10000.0, "rope_scaling": None}
SHIPS_LLAMA3 = BASE | {"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", **LLAMA3}}
TWO, FOUR = "factor=2", "factor=4.0"
STOCK = (
    *("default", f"linear:{TWO}", f"ntk_aware:{FOUR}", "ntk_aware:factor=4,base_scaling=paper"),
    *(f"dynamic:{TWO}", "dynamic:factor=1", f"yarn:{FOUR}"),
    *("yarn:factor=4,beta_fast=16,beta_slow=2", "yarn:factor=4,truncate=false"),
    *("yarn:factor=4,attention_factor=1.0", "yarn:factor=8,mscale=0.707,mscale_all_dim=1.0"),
    *("yarn:factor=2,original_max_position_embeddings=1024,rope_theta=20000",),
    f"llama3:{','.join(f'{k}={v}' for k, v in LLAMA3.items())}",
)
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 16,
    "long_factor": [1 + i / 4 for i in range(16)],
    "original_max_position_embeddings": 512,
}
ASKED = (
    *STOCK,
    *("resonance" if rope == "default" else f"resonance_{rope}" for rope in STOCK),
    *(json.dumps(LONGROPE | {"rope_type": name}) for name in ("longrope", "resonance_longrope")),
)


# What vLLM holds is compared where it runs; here it would be asked two hundred times.
pytestmark = pytest.mark.usefixtures("without_vllm")


def told(folder, *options):
    """What `check --json` says; or how it refuses."""
    ran = run("check", folder, *options, "--json")
    if ran.code:
        return {"refused": True}
    facts = json.loads(ran.out)
    for module in facts["transformers"]["modules"]:
        module["inv_freq"] = module["inv_freq"][::3]
    return facts


def test_every_type(golden, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SHIPS_LLAMA3))
    found = {"as it is": told(tmp_path)}
    found |= {rope: told(tmp_path, "--rope", rope) for rope in ASKED}
    for rope in ("dynamic:factor=1", "ntk_aware:factor=4", "resonance_dynamic:factor=2"):
        found[f"{rope} at 3000"] = told(tmp_path, "--rope", rope, "--context-length", 3000)
    golden("check.txt", "".join(f"{name}: {json.dumps(facts)}\n" for name, facts in found.items()))


def test_printed(golden, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(PLAIN))
    text = fine("check", tmp_path, "--rope", "resonance_yarn:factor=2", "--context-length", 4096)
    golden("check-printed.txt", text)
