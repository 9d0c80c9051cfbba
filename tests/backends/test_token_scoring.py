"""How lm-eval's models report the log-probability of each token, by their classes."""

from types import SimpleNamespace

import pytest
from lm_eval.api.registry import get_model, model_registry

import leval_harness.backends
from leval_tasks.common import token_logprobs
from leval_tasks.common.token_logprobs import (
    CHAT,
    SERVER_WITH_SUMS,
    TokenScoring,
    check_reports_tokens,
    check_scores_text,
    scoring_of,
    scoring_of_class,
)
from resonance_vllm.common.errors import RunError, SettingError

CANNOT = {"chat": "chat endpoints do not return", "sums": "allowed: hf, hf-long"}
NOT_INSTALLED = (ImportError, ValueError)
"""What lm-eval raises for a model whose package is missing."""


def expected(name: str, bases: set[str]) -> str:
    """Return how the models of a class score, decided by hand for lm-eval's own registry."""
    if "chat" in name:
        return "chat"
    if name == "hf-long":
        return "score_by_own_method"
    if "HFLM" in bases:
        return "score_by_forward_pass"
    if "RopeVLLM" in bases:
        return "score_given_tokens"
    if "VLLM" in bases:
        return "score_by_vllm"
    if name in ("local-completions", "openai-completions"):
        return "score_by_server"
    return "sums"


@pytest.mark.slow
def test_scoring_of_every_class_in_the_registry() -> None:
    leval_harness.backends.register()
    seen = set()
    for name in list(model_registry):
        try:
            model_class = get_model(name)
        except NOT_INSTALLED:
            continue
        scoring = scoring_of_class(model_class)
        bases = {base.__name__ for base in model_class.__mro__}
        found = (
            scoring.score.__name__ if scoring.score else "sums" if scoring.reports_sums else "chat"
        )
        if name == "litellm":  # which is a chat, too
            name = "litellm-chat"
        assert found == expected(name, bases), name
        seen.add(found)
    assert {
        "chat",
        "sums",
        "score_by_forward_pass",
        "score_by_server",
        "score_by_own_method",
    } <= seen


def test_scoring_of_encoder_decoders_is_refused() -> None:
    model = SimpleNamespace(backend="seq2seq", token_scoring=TokenScoring(score=None))
    with pytest.raises(SettingError, match="it is an encoder-decoder"):
        check_reports_tokens(scoring_of(model), "hf")


def test_models_that_cannot_score_are_refused() -> None:
    check_scores_text(SERVER_WITH_SUMS, "sglang-generate")
    for check in (check_reports_tokens, check_scores_text):
        with pytest.raises(SettingError, match=r"chat endpoints .* use local-completions"):
            check(CHAT, "local-chat-completions")


def answer(values: list[float | None] | None, index: int = 0) -> dict[str, object]:
    """Return a server's choice; None is one without log-probabilities."""
    logprobs = None if values is None else {"token_logprobs": values}
    return {"index": index, "logprobs": logprobs}


def test_echoed_logprobs_are_those_of_scored_tokens() -> None:
    choices = [answer([None, -3.0, -4.0], 1), answer([None, -1.0, -2.0, -9.0], 0)]
    totals = token_logprobs._echoed_logprobs(
        {"choices": choices}, tokens=[[5, 6, 7], [5, 6]], ctxlens=[1, 1]
    )
    assert [total.logprobs.tolist() for total, _ in totals] == [[-1.0, -2.0], [-3.0]]
    assert float(totals[0][0]) == -3.0


@pytest.mark.parametrize(
    "values",
    [
        None,  # a server without log-probabilities
        [-1.0],  # of the generated token alone, as llama.cpp's server
        [None, -1.0, -2.0, -3.0, -4.0],  # the server put a BOS token in front
        [None, None, -2.0, -3.0],
    ],
)
def test_echoed_logprobs_of_other_tokens_are_refused(values: list[float | None] | None) -> None:
    with pytest.raises(RunError, match=r"for a prompt of 3 tokens .*`echo` with `logprobs`"):
        token_logprobs._echoed_logprobs(
            {"choices": [answer(values)]}, tokens=[[5, 6, 7]], ctxlens=[1]
        )
