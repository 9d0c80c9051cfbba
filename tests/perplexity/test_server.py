"""The same windows through lm-eval's `local-completions`, whose server is answered for here."""

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def served(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Echoes prompts of token ids with their log-probabilities, as completion servers do."""
    import torch
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32).eval()

    def answer(index: int, ids: list[int]) -> dict[str, Any]:
        with torch.no_grad():
            logprobs = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
        gold = logprobs[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
        top = [{"best": value} for value in logprobs.max(-1).values.tolist()]
        # the first token has no probability; the last entry is the generated token
        values = {"token_logprobs": [None, *gold, 0.0], "top_logprobs": [None, *top]}
        return {"index": index, "logprobs": values}

    def call(self: Any, messages: list[list[int]], **options: Any) -> dict[str, Any]:
        return {"choices": [answer(at, ids) for at, ids in enumerate(messages)]}

    monkeypatch.setattr(LocalCompletionsAPI, "model_call", call)


def test_a_completion_server_scores_the_same_windows_alike(tiny, data_dir, served, evaluate):
    metadata = {"context_length": [48, 96], "stride": 16, "data_dir": str(data_dir), "num_docs": 2}
    server = {"base_url": "http://served/v1/completions", "tokenizer": str(tiny), "max_length": 97}
    results = [evaluate("local-completions", tiny, metadata, **server)]
    results.append(evaluate("hf", tiny, metadata))
    for a, b in zip(*(each["samples"]["ppl_govreport"] for each in results), strict=True):
        assert a["arguments"] == b["arguments"]
        for name in ("token_perplexity@48", "token_perplexity@96"):
            assert a[name][1] == b[name][1]
            assert a[name][0] / a[name][1] == pytest.approx(b[name][0] / b[name][1], abs=1e-4)
