"""What a run costs, compared with the weights and the counted operations of real modules."""

import json
from pathlib import Path

import pytest

from leval_harness.sweep.cost import (
    ComputedShare,
    Cost,
    Pass,
    attended_pairs,
    cost_of,
    model_size,
    peak_memory,
)

CONFIGS = Path(__file__).parents[1] / "families" / "configs"
LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256, "head_dim": 16,
    "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def llama():
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    settings = {key: value for key, value in LLAMA.items() if key != "model_type"}
    return LlamaForCausalLM(LlamaConfig(**settings, attn_implementation="eager")).eval()


def test_parameters_equal_those_of_a_module(llama):
    norms = sum(p.numel() for name, p in llama.named_parameters() if "norm" in name)
    whole = sum(p.numel() for p in llama.parameters())
    assert model_size(LLAMA).parameters == whole - norms
    tied = model_size({**LLAMA, "tie_word_embeddings": True}).parameters
    assert tied == whole - norms - 64 * 256


def test_flops_equal_those_that_torch_counts(llama):
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    tokens = 96
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        llama(torch.zeros((1, tokens), dtype=torch.long))
    size = model_size(LLAMA)
    causal = size.layers * 4 * size.heads * size.head_dim * attended_pairs(tokens)
    # eager attention computes all pairs, also those that the mask then hides
    all_pairs = size.layers * 4 * size.heads * size.head_dim * tokens**2
    expected = size.prefill_flops(tokens, scored=tokens) - causal + all_pairs
    assert counter.get_total_flops() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("tokens", [1, 5, 12])
@pytest.mark.parametrize("cached", [0, 3, 20])
@pytest.mark.parametrize("window", [None, 1, 4, 100])
def test_attended_pairs_by_counting(tokens, cached, window):
    pairs = sum(
        min(position + 1, window or position + 1) for position in range(cached, cached + tokens)
    )
    assert attended_pairs(tokens, cached, window) == pairs


def test_prefill_in_chunks_costs_the_same():
    size = model_size({**LLAMA, "sliding_window": 8})
    assert size.windowed_layers == 3
    whole = size.prefill_flops(40, scored=40)
    parts = sum(size.prefill_flops(10, scored=10, cached=start) for start in (0, 10, 20, 30))
    assert parts == pytest.approx(whole)


def test_kv_cache_of_windows_stops_growing():
    full, windowed = model_size(LLAMA), model_size({**LLAMA, "sliding_window": 8})
    assert full.kv_cache_bytes(1000) == 2 * 3 * 2 * 16 * 2 * 1000
    assert windowed.kv_cache_bytes(1000) == windowed.kv_cache_bytes(8)


def test_known_models():
    llama_70b = model_size(
        {
            "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
            "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256,
        }
    )  # fmt: skip
    assert llama_70b.parameters == pytest.approx(70.6e9, rel=0.01)
    assert llama_70b.kv_cache_bytes(131_072) == 40 * 2**30
    mixtral = model_size(
        {
            "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000,
            "num_local_experts": 8, "num_experts_per_tok": 2,
        }
    )  # fmt: skip
    assert mixtral.parameters == pytest.approx(46.7e9, rel=0.01)
    active = mixtral.parameters - mixtral.idle_feed_forward
    assert active == pytest.approx(12.9e9, rel=0.01)


@pytest.mark.parametrize(
    "family", sorted(path.parent.name for path in CONFIGS.glob("*/config.json"))
)
def test_every_family_has_a_plausible_size(family):
    size = model_size(json.loads((CONFIGS / family / "config.json").read_text()))
    if size is None:
        return
    assert 1e6 < size.parameters < 3e12
    assert size.kv_cache_bytes(1024) > 0
    assert 0 <= size.windowed_layers <= size.layers


def test_costs_add_up():
    size = model_size(LLAMA)
    first, second = Pass(100, scored=100), Pass(50, scored=50)
    both = cost_of(size, [first, second], documents=2)
    assert cost_of(size, [first], 1) + cost_of(size, [second], 1) == both
    assert both.prefill_tokens == 150
    assert Cost(flops=3.6e15).hours(1.0) == pytest.approx(1.0)


def test_answers_prefill_a_shared_document_once():
    size = model_size(LLAMA)
    shared = [Pass(110, generated=4), Pass(120, cached=100, generated=4)]
    cost = cost_of(size, shared, documents=2)
    assert (cost.documents, cost.prefill_tokens, cost.decode_tokens) == (2, 130, 8)
    alone = cost_of(size, [one._replace(cached=0) for one in shared], documents=2)
    assert alone.flops > cost.flops


def test_cost_without_sizes_counts_tokens():
    cost = cost_of(None, [Pass(10, generated=2)], documents=1)
    assert (cost.prefill_tokens, cost.decode_tokens, cost.flops) == (10, 2, 0)


def test_share_counts_operations_not_tokens():
    size = model_size(LLAMA)
    passes = [Pass(1000, scored=500), Pass(1000, cached=900, generated=10), Pass(400)]
    share = ComputedShare(size, passes, chunk=100)
    assert [share.after(tokens) for tokens in (0, 1510, 9999)] == [0.0, 1.0, 1.0]
    whole = cost_of(size, passes, 3).flops
    # the logits of the last token of a prompt are not among those of its chunks
    assert share.after(1000) == pytest.approx(cost_of(size, passes[:1], 1).flops / whole, rel=0.01)
    assert share.after(1110) == pytest.approx(cost_of(size, passes[:2], 1).flops / whole, rel=0.01)
    assert share.after(250) < 250 / 1510 < share.after(750)
    shares = [share.after(tokens) for tokens in range(0, 1511, 10)]
    assert shares == sorted(shares)


def test_share_within_a_pass_is_that_of_its_layers():
    size = model_size(LLAMA)
    assert ComputedShare(size, [Pass(1000)], chunk=1000).after(250) == 0.25
    assert ComputedShare(size, [Pass(1000)], chunk=100).after(250) < 0.2


def test_share_without_sizes_counts_tokens():
    assert ComputedShare(None, [Pass(30), Pass(9, generated=1)], chunk=7).after(10) == 0.25
    assert ComputedShare(None, [], chunk=7).after(0) == 1.0


def test_peak_memory_of_chunks_grows_as_the_cache():
    size = model_size(LLAMA)
    short, long = (peak_memory(size, length, chunk=100) for length in (1_000, 9_000))
    assert long.kv_cache - short.kv_cache == size.kv_cache_bytes(8_000)
    assert long.total - short.total == size.kv_cache_bytes(8_000)
    assert short.weights == size.weight_bytes
    whole = peak_memory(size, 9_000, chunk=9_000)
    assert whole.activations > long.activations
    assert peak_memory(size, 9_000, chunk=9_000, all_logits=True).logits > whole.logits
    assert peak_memory(size, 1_000, chunk=100, rows=2).kv_cache == 2 * short.kv_cache
