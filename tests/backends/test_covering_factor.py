"""Each request with the smallest factor that covers it, against models built with that factor."""

import naive_maps
import pytest
import torch
from lm_eval.api.instance import Instance
from naive_maps import BASE, TRAINED, settings, text, tiny

from leval_harness.backends.hf_long import HFLong
from resonance_vllm.hf.covering import CoveringFactor

COMMON = {"rope_theta": BASE, "factor": 3.0, "original_max_position_embeddings": TRAINED}
METHODS = {
    "yarn": {"rope_type": "yarn", **COMMON},
    "linear": {"rope_type": "linear", **COMMON},
    "ntk_aware": {"rope_type": "ntk_aware", **COMMON},
    "resonance_yarn": {"rope_type": "resonance_yarn", **COMMON},
    "self_extend": {**settings("self_extend"), "group_size": None},
}
# Length of a request -> the factor that covers it with steps of a half.
FACTORS = {10: 1.0, 24: 1.0, 25: 1.5, 36: 1.5, 37: 2.0, 60: 2.5, 61: 3.0, 72: 3.0}


def built(rope, **more):
    return tiny("llama", {k: v for k, v in {**rope, **more}.items() if v is not None})


@pytest.mark.parametrize("name", METHODS)
def test_a_likelihood_is_that_of_a_model_with_the_covering_factor(tokenizer, name):
    rope = METHODS[name]
    ours = HFLong(built(rope), tokenizer=tokenizer, device="cpu", max_length=72, factor_step=0.5)
    document = text(72)
    requests = [(None, document[:5], document[5 : n + 1] or document[5:]) for n in FACTORS]
    found = ours._loglikelihood_tokens(requests, disable_tqdm=True)
    for (length, factor), (_, context, scored), (total, _) in zip(
        FACTORS.items(), requests, found, strict=True
    ):
        plain = HFLong(built(rope, factor=factor), tokenizer=tokenizer, device="cpu", max_length=72)
        ((expected, _),) = plain._loglikelihood_tokens([(None, context, scored)], disable_tqdm=True)
        assert float(total) == pytest.approx(float(expected), abs=1e-3), (length, factor)
    ((again, _),) = ours._loglikelihood_tokens(requests[:1], disable_tqdm=True)
    assert float(again) == pytest.approx(float(found[0][0]), abs=1e-4)


def test_answers_share_prefixes_within_a_factor(tokenizer):
    document = " ".join(f"w{each}" for each in text(15))
    prompts = [f"{document} {more}" for more in ("w7", "w9 w11", "w1 " * 9)]
    given = {"until": ["w63"], "max_gen_toks": 6, "do_sample": False}
    requests = [
        Instance("generate_until", {}, (prompt, dict(given)), 0, ("task", at, 1))
        for at, prompt in enumerate(prompts)
    ]
    model, options = built(METHODS["yarn"]), {"tokenizer": tokenizer, "device": "cpu"}
    ours = HFLong(model, max_length=72, factor_step=0.5, **options)
    answers = ours.generate_until(requests, disable_tqdm=True)
    assert ours.telemetry()["near_ties"] == []
    assert ours.telemetry()["tokens_shared"] >= 15
    expected = []
    for request, factor in zip(requests, (1.0, 1.0, 1.5), strict=True):
        plain = HFLong(built(METHODS["yarn"], factor=factor), max_length=72, **options)
        expected += plain.generate_until([request], disable_tqdm=True)
    assert answers == expected


@torch.no_grad()
@pytest.mark.parametrize("name", METHODS)
def test_the_model_has_its_own_factor_afterwards(name):
    model, tokens = built(METHODS[name]), torch.tensor([text()])
    expected = model(tokens).logits
    factors = CoveringFactor(model, 1.0)
    found = {}
    for numbers in factors.groups({0: 10, 1: 60, 2: 24}):
        found[tuple(numbers)] = model(tokens).logits
    assert list(found) == [(0, 2), (1,)]
    assert float((found[0, 2] - expected).abs().max()) > 0.1
    torch.testing.assert_close(model(tokens).logits, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("length", [*FACTORS, 100])
def test_the_smallest_multiple_of_the_step(length):
    factors = CoveringFactor(built(METHODS["yarn"]), 0.5)
    assert factors.of(length) == FACTORS.get(length, 3.0)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "rope_theta": BASE},
        {"rope_type": "dynamic", "rope_theta": BASE, "factor": 2.0},
    ],
)
def test_methods_without_a_fixed_factor_run_as_they_are(rope, tokenizer, caplog):
    ours = HFLong(naive_maps.tiny("llama", rope), tokenizer=tokenizer, device="cpu", factor_step=1)
    assert ours.factors is None
    assert f"rope_type '{rope['rope_type']}' has no factor to choose" in caplog.text
