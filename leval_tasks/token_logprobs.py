"""The log-probability of each given token, on every lm-eval backend that can report it.

lm-eval's own requests return one sum a request. `token_logprobs` scores the same requests on the
backends `hf`, `hf-long`, `vllm` and `vllm-long` and keeps every token apart.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from resonance_vllm.errors import SettingError

Logprobs = npt.NDArray[np.float32]
Request = tuple[Sequence[int], Sequence[int]]
"""Ids of the context, at least one, and ids of the tokens to score, at least one."""

SLICE = 1 << 24
"""Logits that are made float32 at a time: 64 MiB."""


_NONE: Logprobs = np.zeros(0, np.float32)


class SumOfLogprobs(float):
    """The sum of tokens' log-probabilities, which lm-eval expects, and each of them.

    Attributes:
        logprobs: Natural logarithms, float32 `[tokens]`.
    """

    logprobs: Logprobs

    def __new__(cls, total: float, logprobs: Logprobs = _NONE) -> Self:
        """A float with an attribute; pickling calls this with the float alone."""
        self = super().__new__(cls, total)
        self.logprobs = logprobs
        return self


def token_logprobs(lm: Any, requests: Sequence[Request]) -> list[Logprobs]:
    """Natural logarithm of the probability of each scored token, given all tokens before it.

    Nothing is put in front of the context: a BOS token is part of it where one is wanted. A request
    is never cut. Softmax and logarithm are float32 whatever the dtype of the model is.

    With several processes (`accelerate launch`), each calls this function with its own requests.

    Args:
        lm: lm-eval's model: one of `hf`, `hf-long`, `vllm`, `vllm-long`.
        requests: pairs of token ids.

    Returns:
        For each request a float32 array, `[scored tokens]`, in the order of `requests`.

    Raises:
        SettingError: the backend does not report log-probabilities of tokens, a part of a request
            is empty, or a request is longer than the backend reads.
    """
    if hasattr(lm, "teacher_forced"):  # hf-long
        score, room = _by_hf_long, 0
    elif "vllm" in type(lm).__module__:
        score, room = _by_vllm, 1  # vLLM generates a token after each prompt
    elif getattr(lm, "backend", None) == "causal":
        score, room = _by_hf, 0
    else:
        raise SettingError(
            f"model: {type(lm).__name__} does not report the log-probability of each token; "
            "allowed: hf, hf-long, vllm, vllm-long with a decoder-only model"
        )
    for context, scored in requests:
        if not context or not scored:
            raise SettingError("a request needs at least one token of context and one to score")
        if len(context) + len(scored) + room > lm.max_length:
            raise SettingError(
                f"a request of {len(context) + len(scored)} tokens is longer than the "
                f"{lm.max_length - room} that the model reads; give a larger max_length "
                "(max_model_len on vLLM)"
            )
    return list(score(lm, requests)) if requests else []


def _by_hf_long(lm: Any, requests: Sequence[Request]) -> Iterator[Logprobs]:
    asked = [(None, list(context), list(scored)) for context, scored in requests]
    for total, _ in lm._loglikelihood_tokens(asked):
        yield total.logprobs


def _by_hf(lm: Any, requests: Sequence[Request]) -> Iterator[Logprobs]:
    """One forward pass a request; logits as the model gives them, the softmax in float32."""
    import torch
    from tqdm import tqdm

    for context, scored in tqdm(requests, desc="Reading", disable=lm.rank != 0):
        ids = torch.tensor([[*context, *scored]], device=lm.device)
        logits = lm._model_call(ids[:, :-1])[0, len(context) - 1 :]
        aims = ids[0, len(context) :]
        parts = []
        step = max(1, SLICE // logits.shape[-1])
        for first in range(0, len(aims), step):
            part = logits[first : first + step].float()
            chosen = part.gather(-1, aims[first : first + step, None].to(part.device))
            parts.append(chosen.squeeze(-1) - part.logsumexp(-1))
        yield torch.cat(parts).cpu().numpy()


def _by_vllm(lm: Any, requests: Sequence[Request]) -> Iterator[Logprobs]:
    prompts = [[*context, *scored] for context, scored in requests]
    outputs = lm._model_generate(requests=prompts, generate=False)
    for (context, scored), output in zip(requests, outputs, strict=True):
        known = zip(scored, output.prompt_logprobs[len(context) :], strict=True)
        yield np.array([each[token].logprob for token, each in known], np.float32)
