"""Shared prefixes on every layout of layers: windows, chunks, recurrent states, borrowed keys.

The families of tests/families and the layouts below, at small sizes with windows that a document
outgrows, against lm-eval's own `hf` in float32.
"""

import random
from typing import Any

import families_models
import pytest
from families_models import model_of
from families_record import every, folders
from lm_eval.models.huggingface import HFLM
from tiny_backends import SIZES, VOCAB, asked, build, words

from leval_harness.backends.hf_long import HFLong

pytestmark = pytest.mark.slow

WINDOW = 16
MAMBA = {
    "mamba_d_ssm": 96, "mamba_n_heads": 8, "mamba_d_head": 12, "mamba_d_state": 8,
    "mamba_n_groups": 1, "mamba_expand": 2, "mamba_d_conv": 4, "mamba_chunk_size": 16,
}  # fmt: skip
LAYOUTS: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": WINDOW},
    "cohere2": {
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "llama4_text": {
        "attention_chunk_size": WINDOW, "num_local_experts": 2, "intermediate_size_mlp": 64,
        "layer_types": ["chunked_attention", "full_attention"], "no_rope_layers": [1, 0],
    },
    "falcon_h1": MAMBA,
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "olmo_hybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "zamba2": {
        "num_hidden_layers": 3, "layers_block_type": ["mamba", "hybrid", "mamba"],
        "hybrid_layer_ids": [1], "mamba_d_state": 8, "n_mamba_heads": 8, "mamba_ngroups": 1,
        "chunk_size": WINDOW, "kv_channels": 12, "attention_head_dim": 24,
        "num_key_value_heads": 4, "use_mem_rope": True,
    },
}  # fmt: skip
WINDOWED = ("mistral", "cohere2")
# Their caches cannot be cut or copied, or give other answers: every request runs by itself.
UNSHARED = {
    "jamba": {
        "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "mamba_d_state": 8,
        "mamba_dt_rank": 4, "use_mamba_kernels": False,
    },
    "minimax": {"num_local_experts": 2, "layer_types": ["linear_attention", "full_attention"]},
}  # fmt: skip
NOT_RUN = {
    "kimi_k2": "transformers does not know it",
    "ling2_bailing": "transformers does not know it",
    "modernbert": "generates no text",
    "step35": "generates no text",
    "t5gemma_2b": "has an encoder",
}
OF_TOKENS = ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")
RNG = random.Random(0)


# A frame, two documents longer than the windows, questions of unequal length about each, one long.
FRAME = words(RNG, 3)
PROMPTS = [
    f"{FRAME} {document} {words(RNG, n)}"
    for document in (words(RNG, 40), words(RNG, 55))
    for n in (3, 9, 5, 1, 5, 40)
]
PROMPTS += [words(RNG, 20), "w7"]


def of_layout(name):
    return build(name, initializer_range=0.3, **{**LAYOUTS, **UNSHARED}[name])


def of_family(folder):
    """A model with a short vocabulary and short windows."""
    config = families_models.config_of(folder)
    for each in (config, config.get_text_config(decoder=True)):
        each.initializer_range = 0.3
        for key in OF_TOKENS:
            setattr(each, key, SIZES[key])
        if getattr(each, "vocab_size_per_layer_input", None):
            each.vocab_size_per_layer_input = VOCAB
        for key in ("sliding_window", "attention_chunk_size"):
            if 0 < (getattr(each, key, None) or 0) < 1 << 16:
                setattr(each, key, WINDOW)
        # To the size that is left of the others, where no key of its own says it.
        if getattr(each, "mamba_d_head", None) and not getattr(each, "mamba_d_ssm", None):
            each.mamba_n_heads = each.mamba_expand * each.hidden_size // each.mamba_d_head
    model = model_of(config).float()
    model.generation_config.pad_token_id, model.generation_config.eos_token_id = 3, 2
    return model


def compare(model, tokenizer, **options):
    """`hf-long` against `hf`; the tokens read for answers over the unique ones."""
    theirs = HFLM(model, tokenizer=tokenizer, device="cpu", logits_cache=False)
    ours = HFLong(model, tokenizer=tokenizer, device="cpu", prefill_chunk=24, **options)
    assert ours.generate_until(asked(PROMPTS, max_gen_toks=8), True) == theirs.generate_until(
        asked(PROMPTS, max_gen_toks=8), True
    )
    read = ours.telemetry()["tokens_prefilled"]
    ids = [tokenizer(prompt)["input_ids"] for prompt in PROMPTS]
    unique = len({tuple(row[:n]) for row in ids for n in range(1, len(row) + 1)})
    scored = [(None, row[:-2], row[-2:]) for row in ids[:6]]
    scored += [(None, ids[0][:n], ids[0][n : n + 9]) for n in (10, 20, 30)]
    scored += [(None, ids[0][:40], [n]) for n in (10, 11)]
    got = [value for value, _ in ours._loglikelihood_tokens(scored, disable_tqdm=True)]
    expected = [value for value, _ in theirs._loglikelihood_tokens(scored, disable_tqdm=True)]
    assert got == pytest.approx(expected, abs=1e-3, rel=3e-5)  # rounding at these weights
    return ours, read / unique


def check_shared(model, tokenizer):
    ours, ratio = compare(model, tokenizer)
    assert ours.reuse.mode != "none", ours.reuse.reason
    assert ratio <= 1.01
    return ours.reuse.mode


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_are_read_once_and_answer_as_hf(tokenizer, name):
    expected = "windowed" if name in WINDOWED else "copied"
    assert check_shared(of_layout(name), tokenizer) == expected


@pytest.mark.parametrize("folder", every(20, (f for f in folders() if f.name not in NOT_RUN)))
def test_families_are_read_once_and_answer_as_hf(tokenizer, folder):
    check_shared(of_family(folder), tokenizer)


@pytest.mark.parametrize("name", UNSHARED)
def test_what_cannot_be_shared_says_so_and_answers_as_hf(tokenizer, name, caplog):
    ours, ratio = compare(of_layout(name), tokenizer)
    assert ours.reuse.mode == "none"
    assert f"requests that share no text: {ours.reuse.reason}" in caplog.text
    assert ratio > 2
