"""What the tasks find out about the model that will answer."""

from typing import Any

import pytest

from leval_tasks import model
from leval_tasks.context import LengthLimit, find_limit
from leval_tasks.errors import ContextLengthError
from leval_tasks.model import find_reader


@pytest.fixture
def limit_of(while_running):
    def limit(module: str, **attributes: Any) -> LengthLimit:
        return while_running(lambda: find_limit({}), module, max_length=256, **attributes)

    return limit


def check_window(limit: LengthLimit, length: int) -> None:
    limit.check(length, "context_length", extra=limit.after_window)


@pytest.mark.parametrize(
    "module", ["lm_eval.models.vllm_causallms", "leval_harness.backends.vllm_long"]
)
def test_vllm_keeps_a_position_for_the_token_it_generates(limit_of, module):
    limit = limit_of(module)
    check_window(limit, 255)
    assert limit.known - limit.after_window == 255
    with pytest.raises(
        ContextLengthError, match=r"255 tokens.*1 of 256 is kept.*max_model_len=257"
    ):
        check_window(limit, 256)


def test_a_server_has_one_position_less_than_its_max_length(limit_of):
    # lm-eval's API models store max_length - 1
    limit = limit_of("lm_eval.models.openai_completions", tokenized_requests=True)
    check_window(limit, 256)
    assert limit.tokens - limit.after_window == 256
    with pytest.raises(ContextLengthError, match="max_length=258"):
        check_window(limit, 257)


def test_hf_takes_windows_of_its_full_length(limit_of):
    limit = limit_of("lm_eval.models.huggingface")
    check_window(limit, 256)
    with pytest.raises(ContextLengthError, match=r"max_length=600 .*factor=3.0"):
        check_window(limit, 600)


class Tokenizer:
    is_fast = True


def test_the_running_models_own_tokenizer_is_used(while_running):
    own = Tokenizer()
    found = while_running(
        lambda: find_reader({"pretrained": "m"}), "leval_harness.backends.vllm_long", tokenizer=own
    )
    assert found.tokenizer is own
    assert found.softmax == "float32"


def test_without_an_evaluation_there_is_no_model():
    assert model.running_model() is None


def test_a_cached_model_is_unwrapped():
    class CachingLM:
        lm = "the model"

    scope = {"__name__": "lm_eval.evaluator", "running_model": model.running_model}
    exec("def evaluate(lm):\n    return running_model()", scope)
    assert scope["evaluate"](CachingLM()) == "the model"
    assert scope["evaluate"]("bare") == "bare"
