"""Position remapping as the distance of a query and a key, written from the papers, and tiny models."""

import naive_llama
import torch

BASE, NATIVE, LENGTH = 100.0, 24, 61

# rope_type -> settings at factor 3 with small windows, and the distance of positions i >= j.
MAPS = {
    "self_extend": (
        {"window_size": 6, "group_size": 5},
        lambda i, j: i - j if i - j < 6 else i // 5 - j // 5 + 6 - 6 // 5,
    ),
    "dual_chunk": (
        {"chunk_size": 14},
        lambda i, j: (
            i - j if i // 14 == j // 14
            else (min(i % 14 + 14, 23) if i // 14 - j // 14 == 1 else 23) - j % 14
        ),
    ),
}  # fmt: skip


# Types that only transformers runs.
MOVING = {f"{prefix}{name}" for name in MAPS for prefix in ("", "resonance_")}


def settings(name, **more):
    common = {"rope_theta": BASE, "factor": 3.0, "original_max_position_embeddings": NATIVE}
    return {"rope_type": name, **common, **MAPS[name][0], **more}


def expected(model, tokens, name, frequencies=None, **more):
    """The naive logits of a model with a map."""
    if frequencies is None:
        frequencies = naive_llama.inverse_frequencies(BASE, 8)
    return naive_llama.logits(model, tokens, MAPS[name][1], frequencies, **more)


def tiny(family, rope, **more):
    """A random model of two layers with grouped heads, float32."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from resonance_vllm import hf

    hf.register()
    sizes = {
        "vocab_size": 120, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "max_position_embeddings": 3 * NATIVE, "initializer_range": 0.3,
        "pad_token_id": 3, "bos_token_id": 1, "eos_token_id": None,
    }  # fmt: skip
    config = AutoConfig.for_model(family, **{**sizes, **more})
    config.rope_parameters = rope  # Phi 3's class lets no other type pass
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    hf.apply_rope(model)
    return model


def text(length=LENGTH, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, 120, (length,), generator=generator).tolist()
