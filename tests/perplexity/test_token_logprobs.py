"""Log-probabilities of tokens on each backend, against a plain transformers loop."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lm_eval.api.registry import get_model

import leval_harness.backends
from leval_tasks.token_logprobs import token_logprobs
from resonance_vllm.errors import SettingError

DRAW = random.Random(3)
SHARED = DRAW.choices(range(2, 250), k=40)
REQUESTS = [
    (SHARED, DRAW.choices(range(2, 250), k=100)),
    (SHARED[:1], SHARED[1:9]),
    (SHARED, DRAW.choices(range(2, 250), k=3)),
    ([*SHARED, 7], [8]),
]


def plain(path: Path, context: list[int], scored: list[int], dtype: str) -> np.ndarray:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).eval()
    with torch.no_grad():
        logits = model(torch.tensor([context + scored])).logits[0].double().log_softmax(-1)
    places = range(len(context), len(context) + len(scored))
    return np.array([logits[at - 1, token] for at, token in zip(places, scored, strict=True)])


def build(backend: str, path: Path, **settings: Any) -> Any:
    leval_harness.backends.register()
    return get_model(backend)(str(path), device="cpu", dtype="float32", **settings)


@pytest.fixture(scope="module")
def want(tiny: Path) -> list[np.ndarray]:
    return [plain(tiny, *request, "float32") for request in REQUESTS]


def check(found: list[np.ndarray], want: list[np.ndarray]) -> None:
    assert [each.dtype for each in found] == [np.float32] * len(REQUESTS)
    for ours, theirs in zip(found, want, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


@pytest.mark.hf
@pytest.mark.parametrize("backend", ["hf", "hf-long"])
def test_each_token_is_that_of_a_plain_loop(backend, tiny, want):
    check(token_logprobs(build(backend, tiny), REQUESTS), want)


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["vllm-long", pytest.param("vllm", marks=pytest.mark.long)])
def test_vllm_reports_the_same(backend, tiny, want):
    engine = {"enforce_eager": True, "max_num_seqs": 4, "kv_cache_memory_bytes": 2**28}
    lm = build(backend, tiny, max_model_len=256, gpu_memory_utilization=0.1, **engine)
    check(token_logprobs(lm, REQUESTS), want)
    with pytest.raises(SettingError, match="256 tokens is longer than the 255"):
        token_logprobs(lm, [([5] * 128, [5] * 128)])
    lm.model.llm_engine.engine_core.shutdown()


@pytest.mark.hf
def test_the_softmax_of_a_bfloat16_model_is_float32(tiny):
    lm = get_model("hf")(str(tiny), device="cpu", dtype="bfloat16")
    assert str(lm.model.dtype) == "torch.bfloat16"
    want = plain(tiny, *REQUESTS[0], "bfloat16")
    np.testing.assert_allclose(token_logprobs(lm, REQUESTS[:1])[0], want, atol=1e-5)


@pytest.mark.hf
def test_what_cannot_be_read_is_refused(tiny):
    lm = build("hf", tiny)
    assert token_logprobs(lm, []) == []
    with pytest.raises(SettingError, match="257 tokens is longer than the 256"):
        token_logprobs(lm, [([5] * 200, [5] * 57)])
    with pytest.raises(SettingError, match="DummyLM does not report"):
        token_logprobs(get_model("dummy")(), [([5], [5])])
