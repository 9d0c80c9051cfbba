"""Answers without a number: NaN, and infinite losses of text."""

from typing import Any

import numpy as np

from resonance_vllm.common.errors import RunError


def not_finite(answer: Any) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """Return which of the log-probabilities in an answer make every mean over them useless.

    NaN does everywhere, infinity where text is scored. A choice of a question may have the
    probability 0; of generated text nothing is wrong.
    """
    logprobs = _logprobs_in(answer)
    if hasattr(answer, "logprobs"):
        return ~np.isfinite(logprobs)
    return np.isnan(logprobs)


def _logprobs_in(answer: Any) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Return the log-probabilities in an answer to a request of any kind.

    Args:
        answer: one with the attribute `logprobs` (of scored tokens), lm-eval's pair for a choice
            (log-likelihood, whether it is the greedy answer), a single number, or a generated text.

    Returns:
        Natural log-probabilities, `[tokens]`; one number where the answer has the sum alone; none
        for generated text.
    """
    values = getattr(answer, "logprobs", answer)
    if isinstance(values, tuple | list):
        values = values[0]
    elif np.size(values) == 0:
        values = answer  # a server reported the sum alone: the answer is a number itself
    if values is None or isinstance(values, str):
        return np.zeros(0)
    return np.atleast_1d(np.asarray(values, dtype=np.float64))


def refuse_not_finite(request: Any, answer: Any) -> None:
    """Refuse an answer with a log-probability that is not a number.

    Raises:
        RunError: names task, document and the first position.
    """
    wrong = not_finite(answer)
    if not wrong.any():
        return
    document = request.doc_id
    if isinstance(request.doc, dict):
        document = request.doc.get("document_id", document)
    what = "the log-likelihood is NaN"
    window = getattr(request, "window", None)
    if window is not None:
        from leval_tasks.perplexity.task import first_not_finite

        first = _logprobs_in(answer)[np.argmax(wrong)]
        kind = "NaN" if np.isnan(first) else "infinite"
        what = (
            f"the loss of position {first_not_finite(window, answer)} is {kind} "
            f"(the first of {wrong.sum()} in its window)"
        )
    raise RunError(
        f"{request.task_name}, document {document}: {what}; the activations overflow, or weights or "
        "rotation are damaged: try dtype float32 or bfloat16, and `leval-harness check`"
    )
