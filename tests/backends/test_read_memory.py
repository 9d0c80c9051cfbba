"""What begins a document that was read under the same RoPE settings is not read again."""

import random

import pytest
from tiny_backends import build

from leval_harness.backends.hf_long import HFLong
from leval_tasks.common.token_logprobs import REQUEST

RNG = random.Random(0)
DOCUMENT = [4 + RNG.randrange(100) for _ in range(90)]
FULL = (DOCUMENT[:20], DOCUMENT[20:])
FIRST_WINDOW = (DOCUMENT[:20], DOCUMENT[20:60])
SECOND_WINDOW = (DOCUMENT[30:60], DOCUMENT[60:])
YARN = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 256,
}  # fmt: skip


def loaded(tokenizer):
    return HFLong(build("llama"), tokenizer=tokenizer, device="cpu", max_length=256)


def fresh(tokenizer, request, rope=None):
    lm = loaded(tokenizer)
    lm.set_rope(rope, "float32")
    return lm.score_token_ids([request])[0]


@pytest.mark.parametrize("in_one_call", [True, False])
def test_first_window_is_that_of_the_full_read(tokenizer, in_one_call):
    lm = loaded(tokenizer)
    lm.set_rope({"rope_type": "default", "rope_theta": 1e4}, "float32")
    requests = [FULL, FIRST_WINDOW, SECOND_WINDOW]
    if in_one_call:
        answers = lm.score_token_ids(requests)
    else:
        answers = lm.score_token_ids(requests[:1])
        lm.set_rope(None, "float32")  # the reference: the unmodified model
        answers += lm.score_token_ids(requests[1:])
    read = len(FULL[0] + FULL[1]) - 1 + len(SECOND_WINDOW[0] + SECOND_WINDOW[1]) - 1
    assert lm.telemetry()["tokens_prefilled"] == read
    for request, answer in zip(requests, answers, strict=True):
        assert answer == pytest.approx(fresh(tokenizer, request), abs=1e-5)


def test_other_settings_and_other_tokens_are_read_again(tokenizer):
    lm = loaded(tokenizer)
    lm.set_rope(None, "float32")
    lm.score_token_ids([FULL])
    other_end = (DOCUMENT[:20], [*DOCUMENT[20:59], 7])
    earlier_start = (DOCUMENT[:10], DOCUMENT[10:60])
    for request in (other_end, earlier_start):
        assert lm.score_token_ids([request])[0] == pytest.approx(
            fresh(tokenizer, request), abs=1e-5
        )
    lm.set_rope(YARN, "float32")
    answer = lm.score_token_ids([FIRST_WINDOW])[0]
    assert answer == pytest.approx(fresh(tokenizer, FIRST_WINDOW, YARN), abs=1e-5)


def test_no_method_is_named_as_a_kind_of_request() -> None:
    """lm-eval would call it with requests, and the tasks would not give the model their own."""
    assert not hasattr(HFLong, REQUEST)
