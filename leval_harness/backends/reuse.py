"""Which way of sharing documents gives a loaded model's own answers.

A cache of a document is right for every continuation only if nothing about the document depends on
what follows, and if the model's code keeps all of its state in the cache. Each model is tested once:
a short text is read in parts, continued, and compared with the model's own forward pass.
"""

import copy
import logging
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from leval_harness.backends.forward import Head, input_device
from leval_harness.backends.prefill import CHUNK
from leval_harness.backends.reading import COPIED, SHARED, WINDOWED, Reader
from leval_harness.backends.token_counts import TokenCounts
from resonance_vllm.common.errors import error_message

logger = logging.getLogger(__name__)

NONE = "none"
"""Documents are not shared: every request is read by itself."""

DOCUMENT_TOKENS = 40
QUESTION_TOKENS = 14
"""Tokens of the text of the self-check, and of the longer one of two rows after it."""

# Mean difference of log-probabilities over their mean spread. Rounding is up to 1e-5, in float16
# 4e-3, in bfloat16 4e-2 (twelve layouts of random weights, and SmolLM2-135M); a lost key, a wrong
# position or a state that was not restored 0.1 to 1. Four times the rounding, for more layers.
_TOLERANCE = {torch.float32: 5e-3, torch.float64: 5e-3, torch.float16: 2e-2}
_TOLERANCE_OF_OTHERS = 0.15


class Reuse(NamedTuple):
    """How a model shares documents.

    Attributes:
        mode: `shared`, `windowed`, `copied` or `none`.
        reason: why modes that would be better do not suit the model; empty if there are none.
    """

    mode: str
    reason: str = ""


def possible_modes(model: Any) -> Iterator[str]:
    """Yield the modes that the layers of a model's cache allow, the best one first."""
    cache: Any = DynamicCache(config=model.config)
    kinds = {type(layer) for layer in cache.layers}
    if kinds == {DynamicLayer}:
        yield SHARED
    elif DynamicSlidingWindowLayer in kinds and kinds <= {DynamicLayer, DynamicSlidingWindowLayer}:
        yield WINDOWED
    yield COPIED


def find_reuse(head: Head) -> Reuse:
    """Return the best way to share documents that gives a loaded model's own answers."""
    failures: list[str] = []
    tolerance = _TOLERANCE.get(head.model.dtype, _TOLERANCE_OF_OTHERS)
    # The tokens of the self-check do not count as those of a run.
    checked = copy.copy(head)
    checked.counts = TokenCounts(head.model)
    for mode in possible_modes(head.model):
        try:
            difference = self_check(checked, mode)
            failure = f"log-probabilities differ by {difference:.2g} of their spread from `hf`"
        # Any error that someone else's model raises here means that this mode is not for it.
        except Exception as error:  # noqa: BLE001
            difference = math.inf
            failure = f"{type(error).__name__}: {error_message(error)}"
        if difference <= tolerance:
            return Reuse(mode, "; ".join(failures))
        failures.append(f"{mode}: {failure}")
        logger.warning("documents cannot be %s", failures[-1])
    return Reuse(NONE, "; ".join(failures))


@torch.no_grad()
def self_check(head: Head, mode: str) -> float:
    """Return how far a mode of reading is from the model's own log-probabilities.

    A text is read in two parts, with another text between them, and two rows of unequal length
    continue it by two new tokens: every operation that is used later.

    Returns:
        Mean difference of log-probabilities over their mean spread, of the worse row.
    """
    tokens = spread_tokens(head.vocabulary, DOCUMENT_TOKENS + QUESTION_TOKENS)
    document = tokens[:DOCUMENT_TOKENS]
    rows = [document + tokens[DOCUMENT_TOKENS + 3 :], tokens]
    half = document[: DOCUMENT_TOKENS // 2]
    reader = Reader(head, mode, CHUNK)
    reader.read(half)
    reader.keep()
    reader.read(half + tokens[3:9])
    reader.read(document)
    batches = [rows]
    if not reader.can_be_cut:
        batches = [[row] for row in rows]
    worst = 0.0
    for batch in batches:
        output = reader.generate(
            batch,
            pad=0,
            new=2,
            do_sample=False,
            min_new_tokens=2,
            return_dict_in_generate=True,
            output_logits=True,
        )
        logits = torch.stack(output.logits, dim=1)
        for row, ids, row_logits in zip(batch, output.sequences.tolist(), logits, strict=True):
            first_new_token = ids[-2]
            expected = own_logits(head.model, [*row, first_new_token])
            worst = max(worst, relative_difference(expected, row_logits))
    return worst


def spread_tokens(vocabulary: int, count: int) -> list[int]:
    """Return token ids spread over a vocabulary."""
    step = max(1, int(vocabulary * 0.618) - 1)
    return [(4 + step * index) % vocabulary for index in range(1, count + 1)]


def own_logits(model: Any, row: list[int]) -> Tensor:
    """Return logits `[2, vocabulary]` after all but the last token of a row, and after the last."""
    ids = torch.tensor([row], device=input_device(model))
    logits: Tensor = model(input_ids=ids, use_cache=False).logits[0, -2:]
    return logits


def relative_difference(expected: Tensor, actual: Tensor) -> float:
    """Return the mean difference of log-probabilities over their mean spread.

    Args:
        expected: logits `[positions, vocabulary]`.
        actual: logits of the same shape.

    Returns:
        The difference; infinite where a logit is NaN.
    """
    expected_logprobs = expected.double().log_softmax(-1)
    actual_logprobs = actual.double().log_softmax(-1)
    mean = expected_logprobs.mean(-1, keepdim=True)
    spread = (expected_logprobs - mean).abs().mean()
    difference = ((actual_logprobs - expected_logprobs).abs().mean() / spread).item()
    if math.isnan(difference):
        return math.inf
    return difference
