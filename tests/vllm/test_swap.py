"""Other RoPE settings in a running engine: every number is bitwise that of a fresh engine."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.engine("vllm"), pytest.mark.slow(long=True)]

SCRIPT = Path(__file__).with_name("swap_run.py")
ORDER = ("default", "yarn", "resonance_yarn", "linear", "default")
LENGTH = 512
SMALL = {
    "vocab_size": 128, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 64,
    "max_position_embeddings": LENGTH, "initializer_range": 0.15, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {},
    "gemma3_text": {
        "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 128,
        "num_key_value_heads": 1, "query_pre_attn_scalar": 64,
    },
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
}  # fmt: skip


def settings(base: float, original: int, wrap: Callable[[Any], Any] = dict) -> dict[str, Any]:
    """Name -> what `--hf-overrides` takes as `rope_parameters`; None is what is shipped."""
    scaled = {"rope_theta": base, "factor": 2.0, "original_max_position_embeddings": original}
    linear = {"rope_type": "linear", "rope_theta": base, "factor": 2.0}
    asked = {"yarn": {**scaled, "rope_type": "yarn"}, "linear": linear}
    asked["resonance_yarn"] = {**scaled, "rope_type": "resonance_yarn"}
    return {"default": None, **{name: wrap(rope) for name, rope in asked.items()}}


def run(tmp_path: Path, **asked: Any) -> Any:
    """What the script found."""
    given, out = tmp_path / "in.json", tmp_path / "out.json"
    asked = {"length": LENGTH, "eager": True, "order": ORDER, "refused": [], **asked}
    given.write_text(json.dumps(asked))
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(given), str(out)],
        capture_output=True, text=True, check=False, timeout=1500,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    # the engine may abort while the interpreter ends; what counts was written before
    assert out.exists(), done.stdout[-1000:] + done.stderr[-3000:]
    return json.loads(out.read_text())


def same_as_fresh(found: Any, *, features: int | None = None) -> None:
    """Every swap gave the numbers of a fresh engine, and settings that differ differ."""
    for step in found["swapped"]:
        assert step["answers"] == found["fresh"][step["name"]], step["name"]
        assert any(each["exact_phase"] for each in step["reports"]) == (
            step["name"] == "resonance_yarn"
        )
        assert features is None or len(step["reports"][0]["inv_freq"]) == features
    logprobs = {name: tuple(answers[0]) for name, answers in found["fresh"].items()}
    assert len(set(logprobs.values())) == len(logprobs)


def test_swap_in_a_real_model(tmp_path: Path, smollm2: Path) -> None:
    wrong = {"rope_theta": 1e5, "factor": 2.0}
    long = {"original_max_position_embeddings": 8192, "short_factor": [1.0] * 32}
    refused = {
        "fixes the base of 'dynamic' at the length": {**wrong, "rope_type": "dynamic"},
        "longrope": {**wrong, **long, "rope_type": "longrope", "long_factor": [2.0] * 32},
        "self_extend": {**wrong, "rope_type": "self_extend", "group_size": 4,
                        "window_size": 512, "original_max_position_embeddings": 8192},
        "did you mean 'beta_fast'": {**wrong, "rope_type": "yarn", "betafast": 3},
    }  # fmt: skip
    found = run(
        tmp_path,
        model=str(smollm2),
        settings=settings(1e5, 8192),
        refused=list(refused.values()),
        dtype="float32",
    )
    same_as_fresh(found, features=32)
    assert found["cached"] > 200
    assert found["swapped"][0]["cached"] == 0, (
        "documents are forgotten without a word of the caller"
    )
    for words, said in zip(refused, found["refused"], strict=True):
        assert words in str(said)
    assert "requests are running" in found["running"]


def small(folder: Path, family: str) -> dict[str, Any]:
    """`model` and `settings` of a small model of a family, float32."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**SMALL, **FAMILIES[family]})
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    shipped = config.rope_parameters

    def by_layer(rope: dict[str, Any]) -> dict[str, Any]:
        return {**shipped, "full_attention": rope}

    nested = "full_attention" in shipped
    base = (shipped["full_attention"] if nested else shipped)["rope_theta"]
    asked = settings(base, LENGTH, by_layer if nested else dict)
    return {"model": str(folder), "settings": asked, "dtype": "float32"}


@pytest.mark.parametrize("family", FAMILIES)
def test_swap_in_small_models_of_families(tmp_path: Path, family: str) -> None:
    same_as_fresh(run(tmp_path, **small(tmp_path / "model", family)))


def test_swap_reaches_compiled_graphs(tmp_path: Path) -> None:
    asked = small(tmp_path / "model", "llama")
    del asked["settings"]["linear"]
    order = ["yarn", "default", "resonance_yarn"]
    same_as_fresh(run(tmp_path, **asked, order=order, eager=False), features=32)
