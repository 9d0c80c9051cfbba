"""Losses that are no numbers are refused, with their document and first position."""

from typing import Any

import numpy as np
import pytest
from lm_eval.api.instance import Instance

from leval_harness.sweep.not_finite import not_finite, refuse_not_finite
from leval_tasks.common.token_logprobs import SumOfLogprobs
from leval_tasks.perplexity.task import Window, WindowRequest
from resonance_vllm.common.errors import RunError

NAN = float("nan")
INFINITE = float("inf")


def request(kind: str = "loglikelihood") -> Instance:
    return Instance(kind, {"document_id": "d-7"}, ("text", "more"), 0, ("some_task", 7, 1))


def window_request() -> WindowRequest:
    """A window whose first scored token has position 513 of its document, BOS counted."""
    window = Window(1024, 100, 512, 516, bos=True)
    return WindowRequest(
        window, [1] * 413, [2] * 4, doc={"document_id": "d-7"}, idx=0, metadata=("some_task", 7, 1)
    )


def total(*logprobs: float) -> SumOfLogprobs:
    """An answer with these log-probabilities; NaN alone, as of a server, without any."""
    values = np.array(logprobs, np.float32)
    return SumOfLogprobs(float(values.sum()) if logprobs else NAN, values)


@pytest.mark.parametrize("answer", [(NAN, False), NAN, [np.nan, True], (np.float32(NAN), True)])
def test_nan_log_likelihood_is_refused(answer: Any) -> None:
    with pytest.raises(RunError, match="some_task, document d-7: the log-likelihood is NaN"):
        refuse_not_finite(request(), answer)


@pytest.mark.parametrize(
    ("logprobs", "words"),
    [
        ([-1, -2, NAN, NAN], "position 515 is NaN (the first of 2"),
        ([-1, -INFINITE, -1, NAN], "position 514 is infinite (the first of 2"),
        ([INFINITE, -1, -1, -1], "position 513 is infinite (the first of 1"),
        ([NAN] * 4, "position 513 is NaN (the first of 4"),
        ([], "position 513 is NaN (the first of 1"),
    ],
)
def test_losses_of_text_name_the_position(logprobs: list[float], words: str) -> None:
    with pytest.raises(RunError) as caught:
        refuse_not_finite(window_request(), total(*logprobs))
    assert str(caught.value).startswith("some_task, document d-7: the loss of ")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "answer", ["nan", "", None, (-1.0, True), -INFINITE, (-INFINITE, False), -3.0]
)
def test_other_answers_are_not_refused(answer: Any) -> None:
    refuse_not_finite(request(), answer)
    refuse_not_finite(window_request(), total(-1, -2, -3, -4))


def test_not_finite_says_which() -> None:
    assert not_finite(total(-1, NAN, -INFINITE)).tolist() == [False, True, True]
    assert not_finite((-INFINITE, True)).tolist() == [False]
