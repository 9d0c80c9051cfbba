"""What a task finds out about the model that will answer: tokenizer, context length, its limit."""

import json
from pathlib import Path
from typing import Any

import pytest
from llama31 import LLAMA31

from leval_tasks.common import model as of_model
from leval_tasks.common.errors import ContextLengthError
from leval_tasks.common.model import (
    find_limit,
    find_tokenizer,
    resolve_context,
    shipped_length,
    tokenizer_name,
)
from resonance_vllm.common.errors import SettingError

THETA = {"rope_theta": 1e5, "original_max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "factor": 4.0, **THETA}
RESONANCE = {**YARN, "rope_type": "resonance_yarn"}
LLAMA3 = {**LLAMA31, **THETA, "rope_type": "resonance_llama3"}
GEMMA = {"model_type": "gemma3_text", "max_position_embeddings": 4096}
HF = "lm_eval.models.huggingface:HFLM"
VLLM = "lm_eval.models.vllm_causallms:VLLM"
SERVER = "lm_eval.models.api_models:TemplateAPI"


@pytest.fixture
def checkpoint(tmp_path: Path):
    def write(**config: object) -> str:
        folder = tmp_path / f"m{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        base = {"model_type": "llama", "max_position_embeddings": 8192}
        (folder / "config.json").write_text(json.dumps({**base, **config}))
        return str(folder)

    return write


def length(**settings: object) -> int:
    return resolve_context(settings)


@pytest.mark.parametrize(
    ("config", "settings", "expected"),
    [
        ({}, {"context_length": 1000, "max_length": 2000}, 1000),
        ({}, {"max_length": 2000}, 2000),
        ({}, {"max_model_len": 3000}, 3000),
        ({}, {}, 8192),
        # the checkpoint's RoPE settings
        ({"max_position_embeddings": 32768, "rope_parameters": RESONANCE}, {}, 32768),
        ({"model_type": "gemma3", "text_config": GEMMA}, {}, 4096),
        ({"max_position_embeddings": 131072, "rope_parameters": LLAMA3}, {}, 131072),
        # servers: completions keep a token back, chat completions state no limit
        ({}, {"base_url": "http://h/v1/completions", "max_length": 4096}, 4095),
        ({}, {"base_url": "http://h/v1/completions", "context_length": 1024}, 1024),
        ({}, {"base_url": "http://h/v1/chat/completions", "context_length": 10000}, 10000),
    ],
)
def test_the_length_of_a_run(checkpoint, config, settings, expected):
    assert length(pretrained=checkpoint(**config), **settings) == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"context_length": 16384}, "context_length: 16384 is above the 8192 .*max_length=16384"),
        ({"base_url": "http://h/v1/completions", "context_length": 4096}, "above the 2048 tokens"),
        ({"base_url": "http://h/v1/completions"}, "max_length: not given, and a server does"),
        ({"base_url": "http://h/v1/chat/completions"}, "max_length: not given, and a server does"),
    ],
)
def test_a_length_that_would_be_cut_or_is_not_known(checkpoint, settings, message):
    with pytest.raises(ContextLengthError, match=message):
        length(pretrained=checkpoint(), **settings)


def test_no_model_and_no_length():
    with pytest.raises(ContextLengthError, match="max_length: not given; give it in"):
        length(model="no-such-model", tokenizer="no-such-model")
    for value in (0, -1, "many", 3.5, [4096]):
        with pytest.raises(SettingError, match=r"^context_length: Input should be "):
            length(pretrained="x", context_length=value)


@pytest.mark.parametrize("module", [HF, VLLM, "leval_harness.backends.hf_long:HFLong"])
def test_the_running_model_says_what_it_reads(checkpoint, while_running, module):
    # a RoPE type in config.json that the running model's own limit does not count
    asked = {"pretrained": checkpoint(rope_parameters=RESONANCE)}
    assert while_running(lambda: resolve_context(asked), module, max_length=8192) == 8192
    asked["context_length"] = 32768
    with pytest.raises(ContextLengthError, match=r"context_length: 32768 is above the 8192 "):
        while_running(lambda: resolve_context(asked), module, max_length=8192)


@pytest.mark.parametrize(
    ("tokenized", "given", "expected"), [(True, 2048, 2047), (False, 4096, 4096)]
)
def test_running_servers_are_asked_too(while_running, tokenized, given, expected):
    def asked() -> int:
        return length(context_length=given)

    running = {"max_length": 2047, "tokenized_requests": tokenized}
    assert while_running(asked, SERVER, **running) == expected


@pytest.mark.parametrize(
    ("module", "most", "refused", "message"),
    [
        # vLLM generates a token
        (VLLM, 255, 256, r"255 tokens.*1 of 256 is kept.*max_length=257"),
        (SERVER, 256, 257, "max_length=258"),  # lm-eval stores max_length - 1
        (HF, 256, 600, r"max_length=600 .*factor=3.0"),
    ],
)
def test_windows_of_a_text_on_each_backend(while_running, module, most, refused, message):
    running = {"max_length": 256, "tokenized_requests": True}
    limit: Any = while_running(lambda: find_limit({}), module, **running)
    limit.check(most, "context_length", extra=limit.after_window)
    with pytest.raises(ContextLengthError, match=message):
        limit.check(refused, "context_length", extra=limit.after_window)


def test_tokenizer_is_named_by_the_run():
    named = {"tokenizer": "t", "pretrained": "p", "model": "m"}
    for first in list(named):
        assert tokenizer_name(named) == named.pop(first)
    with pytest.raises(SettingError, match="none is known to the task"):
        tokenizer_name({"dtype": "float32"})


def test_shipped_length_ignores_lengths_of_the_run(checkpoint):
    run = {"max_length": 32768, "rope_parameters": YARN}
    assert shipped_length({"pretrained": checkpoint(), **run}) == 8192
    assert shipped_length({"tokenizer": checkpoint(), "model": "served", **run}) == 8192
    assert shipped_length({"model": "served", **run}) is None


def test_the_running_models_own_tokenizer_is_used(while_running):
    own = type("Tokenizer", (), {"is_fast": True})()
    module = "leval_harness.backends.vllm_long:VLLMLong"
    assert while_running(lambda: find_tokenizer({"pretrained": "m"}), module, tokenizer=own) is own


def test_running_model_under_cache_and_outside():
    assert of_model.running_model() is None
    cached = type("CachingLM", (), {"lm": "the model"})()
    scope = {"__name__": "lm_eval.evaluator", "running_model": of_model.running_model}
    exec("def evaluate(lm):\n    return running_model()", scope)
    assert scope["evaluate"](cached) == "the model"
    assert scope["evaluate"]("bare") == "bare"


def test_slow_tokenizer_is_refused_by_name():
    from transformers import ByT5Tokenizer

    with pytest.raises(SettingError, match=r"ByT5Tokenizer is a slow tokenizer.*tokenizer="):
        of_model.tokenize_with_offsets(ByT5Tokenizer(), "a text")
