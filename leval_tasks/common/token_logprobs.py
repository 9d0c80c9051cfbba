"""The log-probability of each token of given texts, on every lm-eval model that can report it.

lm-eval's own requests return one sum per request. Here the same requests are scored, and the value of
every token is returned. How a class of models does it is its `TokenScoring`: a class of this package
has it as the attribute `token_scoring`, those of lm-eval are listed in `STOCK_CLASSES`, and
subclasses inherit it. Softmax and logarithm are float32, whatever the dtype of the model is.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from resonance_vllm.common.errors import RunError, SettingError, error_message

if TYPE_CHECKING:
    import torch

Logprobs = npt.NDArray[np.float32]
Request = tuple[Sequence[int], Sequence[int]]
"""Ids of the context, at least one, and ids of the tokens to score, at least one."""
Scorer = Callable[[Any, Sequence[Request]], Iterator[Logprobs]]
"""Yields the log-probabilities of the scored tokens of each request, for a model of lm-eval."""

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


@dataclass(frozen=True, kw_only=True)
class TokenScoring:
    """How the models of a class score the tokens of a given text.

    Attributes:
        score: reports the log-probability of each token; None if the class cannot.
        reason: why it cannot, and what can.
        reports_sums: whether the class reports at least the sum over a text.
        generated: tokens that a model generates after a scored text. They take positions of its
            limit.
    """

    score: Scorer | None
    reason: str = ""
    reports_sums: bool = True
    generated: int = 0


def scoring_of(lm: Any) -> TokenScoring:
    """Return how a model of lm-eval scores tokens."""
    if getattr(lm, "backend", "causal") != "causal":
        return ENCODER_DECODER
    return scoring_of_class(type(lm))


def scoring_of_class(model_class: type) -> TokenScoring:
    """Return how the models of a class score tokens."""
    for base in model_class.__mro__:
        scoring = vars(base).get("token_scoring") or STOCK_CLASSES.get(class_path(base))
        if scoring is not None:
            return scoring
    return UNKNOWN


def class_path(model_class: type) -> str:
    """Return `module:class`."""
    return f"{model_class.__module__}:{model_class.__qualname__}"


def scored_requests(lm: Any, requests: Sequence[Any]) -> list[SumOfLogprobs]:
    """Return the answers of lm-eval's model to requests whose `token_parts` are token ids.

    Nothing is put in front of the context: a BOS token is part of it where one is wanted. With
    several processes (`accelerate launch`), each has its own requests. A model that does not report
    each token gives the sums alone.
    """
    parts = [request.token_parts for request in requests]
    if not parts:
        return []
    score = scoring_of(lm).score
    if score is None:
        return [SumOfLogprobs(float(total)) for total, _ in lm._loglikelihood_tokens(parts)]
    token_ids = [(context, scored) for _, context, scored in parts]
    answers = []
    for logprobs in score(lm, token_ids):
        total = float(logprobs.sum(dtype=np.float64))
        answers.append(SumOfLogprobs(total, logprobs))
    return answers


def check_reports_tokens(scoring: TokenScoring, name: str) -> None:
    """Refuse models that do not report the log-probability of each token.

    Args:
        scoring: of the model's class.
        name: of the class or backend, for the message.

    Raises:
        SettingError: says why, and what can be used.
    """
    if scoring.score is None:
        raise SettingError(
            f"model: {name} does not report the log-probability of each token: {scoring.reason}"
        )


def check_scores_text(scoring: TokenScoring, name: str) -> None:
    """Refuse models that cannot score a given text at all; arguments as above.

    Raises:
        SettingError: says why, and what can be used.
    """
    if not scoring.reports_sums:
        raise SettingError(f"model: {name} cannot score a given text: {scoring.reason}")


def score_by_forward_pass(lm: Any, requests: Sequence[Request]) -> Iterator[Logprobs]:
    """Score requests in one forward pass each; logits in the model's dtype, the softmax in float32."""
    import torch
    from tqdm import tqdm

    for context, scored in tqdm(requests, desc="Reading", disable=lm.rank != 0):
        token_ids = torch.tensor([[*context, *scored]], device=lm.device)
        logits = lm._model_call(token_ids[:, :-1])[0, len(context) - 1 :]
        targets = token_ids[0, len(context) :]
        size = max(1, SLICE // logits.shape[-1])
        slices = zip(logits.split(size), targets.split(size), strict=True)
        parts = [logprobs_of(some_logits, some_targets) for some_logits, some_targets in slices]
        yield torch.cat(parts).cpu().numpy()


def logprobs_of(logits: "torch.Tensor", targets: "torch.Tensor") -> "torch.Tensor":
    """Return the natural logarithm of each target's probability, float32 `[positions]`.

    Args:
        logits: `[positions, vocabulary]` in any dtype; all of them are made float32 at once.
        targets: token ids `[positions]`.
    """
    logits = logits.float()
    chosen = logits.gather(-1, targets.to(logits.device)[:, None]).squeeze(-1)
    return chosen - logits.logsumexp(-1)


def score_by_own_method(lm: Any, requests: Sequence[Request]) -> Iterator[Logprobs]:
    """Score requests with the model's method `score_token_ids`, which takes and returns the same."""
    return iter(lm.score_token_ids(requests))


def score_by_vllm(lm: Any, requests: Sequence[Request]) -> Iterator[Logprobs]:
    """Score requests in vLLM's engine, which returns log-probabilities of a prompt's tokens."""
    prompts = [[*context, *scored] for context, scored in requests]
    outputs = lm._model_generate(requests=prompts, generate=False)
    for (context, scored), output in zip(requests, outputs, strict=True):
        candidates = output.prompt_logprobs[len(context) :]
        pairs = zip(scored, candidates, strict=True)
        yield np.array([by_token[token].logprob for token, by_token in pairs], np.float32)


def score_by_server(lm: Any, requests: Sequence[Request]) -> Iterator[Logprobs]:
    """Score requests on a server that repeats a prompt with its log-probabilities (`echo`).

    lm-eval's client sends the requests, several at a time where `num_concurrent` says so. It
    returns what its `parse_logprobs` makes of an answer, which `_reporting_each_token` replaces for
    the while by `_echoed_logprobs`.

    Args:
        lm: lm-eval's client of the server.
        requests: token ids of context and scored tokens.

    Yields:
        The log-probability of each scored token of a request, float32 `[tokens]`.

    Raises:
        RunError: the server does not answer, or not with the log-probabilities of the prompt.
    """
    import aiohttp
    import requests as http

    parts = [(None, list(context), list(scored)) for context, scored in requests]
    try:
        with _reporting_each_token(lm):
            answers = lm._loglikelihood_tokens(parts)
    except (aiohttp.ClientError, http.RequestException, TimeoutError) as error:
        raise RunError(f"{lm.base_url} does not score texts: {error_message(error)}") from error
    for sum_of_logprobs, _ in answers:
        yield sum_of_logprobs.logprobs


@contextmanager
def _reporting_each_token(lm: Any) -> Iterator[None]:
    """Let lm-eval's client of a server report each token's log-probability beside their sum.

    Its parser of answers is replaced by `_echoed_logprobs`, and both are as before afterwards. So
    is its cache of answers, which is put aside: it stores answers by the text of a request, and
    requests of token ids have none.
    """
    from lm_eval.api.model import CacheHook

    cache_hook = lm.cache_hook
    lm.cache_hook = CacheHook(None)
    lm.parse_logprobs = _echoed_logprobs
    try:
        yield
    finally:
        del lm.parse_logprobs
        lm.cache_hook = cache_hook


def _echoed_logprobs(
    outputs: Any, tokens: Sequence[Sequence[int]], ctxlens: Sequence[int], **_: Any
) -> list[tuple[SumOfLogprobs, bool]]:
    """Return the log-probabilities of scored tokens, in the form of lm-eval's `parse_logprobs`.

    Args:
        outputs: the server's answer, or a list of such.
        tokens: ids of each prompt.
        ctxlens: tokens of each prompt that are not scored.
        _: further arguments of lm-eval.

    Raises:
        RunError: the answer does not hold the log-probabilities of the prompt.
    """
    responses = outputs if isinstance(outputs, list) else [outputs]
    choices = [
        choice
        for response in responses
        for choice in sorted(response["choices"], key=lambda choice: choice["index"])
    ]
    answers = []
    for choice, prompt, context in zip(choices, tokens, ctxlens, strict=True):
        values = (choice.get("logprobs") or {}).get("token_logprobs") or []
        of_prompt = values[: len(prompt)]
        # One more value belongs to the token that is generated after the prompt.
        if len(values) != len(prompt) + 1 or None in of_prompt[context:]:
            raise RunError(
                f"the server returned {len(values)} log-probabilities for a prompt of {len(prompt)} "
                "tokens and 1 generated token; texts can be scored on servers whose /v1/completions "
                "has `echo` with `logprobs`, as that of `vllm serve`"
            )
        logprobs = np.array(of_prompt[context:], np.float32)
        # The second value says whether the text is the greedy answer, which nobody asks here.
        answers.append((SumOfLogprobs(float(logprobs.sum(dtype=np.float64)), logprobs), False))
    return answers


CAN_REPORT = "hf, hf-long, vllm, vllm-long with a decoder-only model, or local-completions"
UNKNOWN = TokenScoring(score=None, reason=f"allowed: {CAN_REPORT}")
"""Of a class that neither this package nor the table below knows."""
ENCODER_DECODER = TokenScoring(
    score=None, reason=f"it is an encoder-decoder; allowed: {CAN_REPORT}"
)
SERVER_WITH_SUMS = TokenScoring(score=None, reason=f"allowed: {CAN_REPORT}", generated=1)
CHAT = TokenScoring(
    score=None,
    reason="chat endpoints do not return log-probabilities of a prompt; use local-completions with "
    "the address of /v1/completions",
    reports_sums=False,
    generated=1,
)

STOCK_CLASSES = MappingProxyType(
    {
        "lm_eval.models.huggingface:HFLM": TokenScoring(score=score_by_forward_pass),
        "lm_eval.models.vllm_causallms:VLLM": TokenScoring(score=score_by_vllm, generated=1),
        "lm_eval.models.openai_completions:LocalCompletionsAPI": TokenScoring(
            score=score_by_server, generated=1
        ),
        # These three inherit from the client of completions, and have protocols of their own.
        "lm_eval.models.sglang_generate_API:SGLANGGENERATEAPI": SERVER_WITH_SUMS,
        "lm_eval.models.openai_completions:LocalChatCompletion": CHAT,
        "lm_eval.models.anthropic_llms:AnthropicChat": CHAT,
    }
)
"""Class of lm-eval, as `module:class` -> how its models score tokens."""
