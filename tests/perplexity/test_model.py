"""What the tasks find out about the model that will answer."""

from types import SimpleNamespace
from typing import Any

import pytest

from leval_tasks.errors import ContextLengthError
from leval_tasks.perplexity import model


class Tokenizer:
    is_fast = True
    bos_token_id = 0


def reader_of(monkeypatch: pytest.MonkeyPatch, module: str, **attributes: Any) -> model.Reader:
    kind = type("Backend", (SimpleNamespace,), {"__module__": module})
    running = kind(tokenizer=Tokenizer(), max_length=256, **attributes)
    monkeypatch.setattr(model, "running_model", lambda: running)
    return model.find_reader({})


@pytest.mark.parametrize("module", ["lm_eval.models.vllm_causallms", "leval_backends.vllm_long"])
def test_vllm_keeps_a_position_for_the_token_it_generates(monkeypatch, module):
    reader = reader_of(monkeypatch, module)
    reader.check_window(255)
    with pytest.raises(
        ContextLengthError, match=r"255 positions.*vLLM keeps one.*max_model_len=257"
    ):
        reader.check_window(256)


def test_a_server_has_one_position_less_than_its_max_length(monkeypatch):
    # lm-eval's API models store max_length - 1
    reader = reader_of(monkeypatch, "lm_eval.models.openai_completions")
    reader.check_window(256)
    with pytest.raises(ContextLengthError, match="max_length=258"):
        reader.check_window(257)


def test_hf_takes_windows_of_its_full_length(monkeypatch):
    reader = reader_of(monkeypatch, "lm_eval.models.huggingface")
    reader.check_window(256)
    with pytest.raises(ContextLengthError, match=r"max_length=600 .*factor=3.0"):
        reader.check_window(600)


def test_without_an_evaluation_there_is_no_model():
    assert model.running_model() is None


def test_a_cached_model_is_unwrapped():
    class CachingLM:
        lm = "the model"

    scope = {"__name__": "lm_eval.evaluator", "running_model": model.running_model}
    exec("def evaluate(lm):\n    return running_model()", scope)
    assert scope["evaluate"](CachingLM()) == "the model"
    assert scope["evaluate"]("bare") == "bare"
