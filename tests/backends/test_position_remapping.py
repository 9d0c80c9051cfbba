"""Position remapping on `hf-long`: shared prefixes, chunks, batches and windows change no score."""

import naive_maps
import pytest
import torch
from naive_maps import MAPS, settings, text, tiny

from leval_harness.backends.hf_long import HFLong
from resonance_vllm.hf import key_slices


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(key_slices, "_QUERIES", 8)
    monkeypatch.setattr(key_slices, "_UNMASKED", 2)


def logprobs(model, tokens, name, first, window=None):
    """Of the tokens from `first` on, by the naive implementation."""
    found = naive_maps.expected(model, tokens, name, window=window)
    after = found.log_softmax(-1)[first - 1 : -1]
    return after.gather(-1, torch.tensor(tokens[first:])[:, None])[:, 0]


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {"prefill_chunk": 7}),
        ("llama", {"prefill_chunk": 64}),
        ("qwen3", {"prefill_chunk": 16}),
        ("mistral", {"prefill_chunk": 16, "sliding_window": 12}),
    ],
)
def test_likelihoods_after_a_shared_prefix(tokenizer, name, family, options):
    """Four continuations of unequal length of two prefixes, and one text alone."""
    window = options.pop("sliding_window", None)
    model = tiny(family, settings(name), **({"sliding_window": window} if window else {}))
    ours = HFLong(model, tokenizer=tokenizer, device="cpu", max_length=72, **options)
    rows = [(text(40, seed), text(more, 9 + more)) for seed in (0, 1) for more in (5, 12, 21, 3)]
    rows.append((text(30, 5), text(20, 6)))
    found = ours._loglikelihood_tokens([(None, *row) for row in rows], disable_tqdm=True)
    for (context, scored), (total, _) in zip(rows, found, strict=True):
        expected = logprobs(model, context + scored, name, len(context), window)
        torch.testing.assert_close(
            torch.tensor(total.logprobs).double(), expected, atol=5e-4, rtol=0
        )
    assert ours.telemetry()["tokens_prefilled"] < sum(len(a) + len(b) for a, b in rows) - 100
    assert ours.reuse.mode == "copied"
