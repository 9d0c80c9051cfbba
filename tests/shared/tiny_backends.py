"""Tiny models of random weights and questions to them, for the tests of backends."""

import random
from typing import Any

import torch
from lm_eval.api.instance import Instance

VOCAB = 120
SIZES = {
    "vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12,
    "max_position_embeddings": 256, "initializer_range": 0.4, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 3,
}  # fmt: skip


def build(kind: str, attention: str = "sdpa", **more: Any) -> Any:
    """A causal model of a model type; `more` are settings of its config."""
    import transformers as t

    torch.manual_seed(0)
    known = t.AutoConfig.for_model(kind)
    sizes = {key: value for key, value in SIZES.items() if hasattr(known, key)}
    config = t.AutoConfig.for_model(kind, **sizes | more)
    return t.AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()


def words(rng: random.Random, n: int) -> str:
    return " ".join(f"w{rng.randrange(100)}" for _ in range(n))


def asked(prompts: Any, **options: Any) -> list[Instance]:
    """A request for greedy text of each prompt."""
    given = {"until": ["w5"], "max_gen_toks": 12, "do_sample": False, **options}
    return [
        Instance("generate_until", {}, (prompt, dict(given)), 0, ("task", at, 1))
        for at, prompt in enumerate(prompts)
    ]
