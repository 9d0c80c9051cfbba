"""The log-probability of each given token, on every lm-eval backend that can report it.

lm-eval's own requests return one sum per request. Here the same requests are scored on the backends
`hf`, `hf-long`, `vllm` and `vllm-long`, and the value of every token is returned. Softmax and
logarithm are float32 there, whatever the dtype of the model is.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from resonance_vllm.common.errors import SettingError

Logprobs = npt.NDArray[np.float32]
Request = tuple[Sequence[int], Sequence[int]]
"""Ids of the context, at least one, and ids of the tokens to score, at least one."""

SLICE = 1 << 24
"""Logits that are made float32 at a time: 64 MiB."""

REQUEST = "token_logprobs"
"""lm-eval's kind of a request that `scored_requests` answers; see `WindowRequest`."""

_NONE: Logprobs = np.zeros(0, np.float32)


class SumOfLogprobs(float):
    """The sum of tokens' log-probabilities, which lm-eval expects, and each of them.

    `logprobs` are natural, float32 `[tokens]`; empty where a server gives the sum alone.
    """

    logprobs: Logprobs

    def __new__(cls, total: float, logprobs: Logprobs = _NONE) -> Self:
        """Return a float with an attribute; pickling calls this with the float alone."""
        self = super().__new__(cls, total)
        self.logprobs = logprobs
        return self


def scored_requests(lm: Any, requests: Sequence[Any]) -> list[SumOfLogprobs]:
    """Return the answers of lm-eval's model to requests whose `token_parts` are token ids.

    Nothing is put in front of the context: a BOS token is part of it where one is wanted. With
    several processes (`accelerate launch`), each has its own requests. A backend that does not
    report each token, such as a server, gives the sums alone.
    """
    parts = [request.token_parts for request in requests]
    if not parts:
        return []
    score = _scorer(lm)
    if score is None:
        return [SumOfLogprobs(float(total)) for total, _ in lm._loglikelihood_tokens(parts)]
    token_ids = [(context, scored) for _, context, scored in parts]
    answers = []
    for logprobs in score(lm, token_ids):
        total = float(logprobs.sum(dtype=np.float64))
        answers.append(SumOfLogprobs(total, logprobs))
    return answers


def check_reports_tokens(lm: Any) -> None:
    """Refuse a model whose backend does not report the log-probability of each token.

    Raises:
        SettingError: names the backends that do.
    """
    if _scorer(lm) is None:
        raise SettingError(
            f"model: {type(lm).__name__} does not report the log-probability of each token; "
            "allowed: hf, hf-long, vllm, vllm-long with a decoder-only model"
        )


Scorer = Callable[[Any, Sequence[Request]], Iterator[Logprobs]]


def _scorer(lm: Any) -> Scorer | None:
    if hasattr(lm, "teacher_forced"):
        return _by_hf_long
    if "vllm" in type(lm).__module__:
        return _by_vllm
    decoder = getattr(lm, "backend", None) == "causal" and hasattr(lm, "_model_call")
    return _by_hf if decoder else None  # servers of lm-eval are "causal" too


def _by_hf_long(lm: Any, requests: Sequence[Request]) -> Iterator[Logprobs]:
    asked = [(None, list(context), list(scored)) for context, scored in requests]
    for total, _ in lm._loglikelihood_tokens(asked):
        yield total.logprobs


def _by_hf(lm: Any, requests: Sequence[Request]) -> Iterator[Logprobs]:
    """Score requests in one forward pass each; logits in the model's dtype, the softmax in float32."""
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
