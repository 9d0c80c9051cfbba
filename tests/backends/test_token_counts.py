"""Counts of tokens that move while a forward pass runs, and forward passes on a real model."""

import pytest
import torch
from tiny_backends import asked, build

from leval_harness.backends.hf import HF
from leval_harness.backends.hf_long import HFLong
from leval_tasks.common.token_logprobs import scoring_of

DOCUMENT = list(range(4, 84))
REQUEST = (DOCUMENT[:1], DOCUMENT[1:])
READ = len(DOCUMENT) - 1


@pytest.mark.parametrize(
    ("backend", "options", "passes"),
    [(HF, {}, [READ]), (HFLong, {}, [READ]), (HFLong, {"prefill_chunk": 40}, [40, READ - 40])],
)
def test_prefilled_tokens_rise_by_layers(tokenizer, backend, options, passes):
    model = build("llama", num_hidden_layers=4)
    lm = backend(model, tokenizer=tokenizer, device="cpu", **options)
    if backend is HFLong:
        _ = lm.reuse  # the self-check does not count
    prefilled = []
    for layer in model.model.layers:
        layer.register_forward_hook(lambda *_: prefilled.append(lm.counts.prefilled))
    list(scoring_of(lm).score(lm, [REQUEST]))
    expected = []
    before = 0
    for tokens in passes:
        # The watching hook runs before the counting one, which is added for each pass.
        expected += [before + tokens * layers // 4 for layers in range(4)]
        before += tokens
    assert prefilled == expected
    assert lm.telemetry()["tokens_prefilled"] == READ


@pytest.mark.parametrize("backend", [HF, HFLong])
def test_generated_tokens_rise_with_each_step(tokenizer, backend):
    model = build("llama")
    lm = backend(model, tokenizer=tokenizer, device="cpu", batch_size=2)
    prompts = ["w1 w2 w3 w4", "w1 w2 w3 w5 w6"]
    lm.generate_until(asked(prompts, until=[], max_gen_toks=6, min_new_tokens=6), True)
    lm.count_anew()
    generated = []
    model.register_forward_pre_hook(lambda *_: generated.append(lm.counts.generated))
    lm.generate_until(asked(prompts, until=[], max_gen_toks=6, min_new_tokens=6), True)
    assert generated[-6:] == [0, 2, 4, 6, 8, 10]
    assert lm.telemetry()["tokens_generated"] == 12


def test_a_pass_that_fails_counts_nothing(tokenizer):
    model = build("llama")
    lm = HFLong(model, tokenizer=tokenizer, device="cpu")
    _ = lm.reuse

    def broken(*_):
        raise ValueError("broken layer")

    model.model.layers[1].register_forward_hook(broken)
    with pytest.raises(ValueError, match="broken layer"):
        lm.score_token_ids([REQUEST])
    assert lm.telemetry()["tokens_prefilled"] == 0
    assert not model.model.layers[0]._forward_hooks, "the hooks are removed"


@pytest.mark.slow
def test_questions_share_forward_passes_on_smollm2(smollm2):
    """Its generation_config.json has `output_attentions: false`, which once ended batching."""
    lm = HFLong(str(smollm2), device="cpu", dtype="float32", max_length=512)
    document = "The Danube rises in the Black Forest and ends in the Black Sea. " * 8
    prompts = [
        f"{document}\nQuestion {letter}: where does it end?" for letter in "ABCDEFGHIJKLMNOP"
    ]
    _ = lm.reuse
    passes = []
    lm.model.get_decoder().register_forward_hook(lambda *_: passes.append(1))
    steps = 4
    with torch.no_grad():
        lm.generate_until(asked(prompts, until=[], max_gen_toks=steps), True)
    # One for the document; the questions are one batch, and their own tokens the first of its steps.
    assert len(passes) == 1 + steps
    assert lm.reuse.mode == "shared"
