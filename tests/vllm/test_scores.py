"""Scores at given tokens alone, as vLLM's V2 model runner returns them, and where it can run."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from loaded_hf import load_hf

pytestmark = pytest.mark.engine("vllm")

V2_RUN = Path(__file__).with_name("v2_run.py")
REQUESTS = [([5, 6, 7], [8, 9]), ([4], [3, 2, 1])]


class Engine:
    """Stands for a backend with an engine: it keeps what it is asked, and checks it as vLLM does."""

    def __init__(self, v2: bool) -> None:
        config = SimpleNamespace(use_v2_model_runner=v2)
        self.model = SimpleNamespace(llm_engine=SimpleNamespace(vllm_config=config))

    def _model_generate(self, requests: Any, generate: bool, sampling_params: Any = None) -> Any:
        outputs = []
        for prompt, params in zip(requests, sampling_params or [None] * len(requests), strict=True):
            if params is None:
                by_token = [{token: SimpleNamespace(logprob=-1.0 * token)} for token in prompt]
                outputs.append(SimpleNamespace(prompt_logprobs=[None, *by_token[1:]]))
                continue
            rows = params.prompt_logprob_token_ids
            start = params.prompt_logprob_start
            assert len(rows) == len(prompt) - 1 - start, "vLLM refuses another number of rows"
            assert [row[0] for row in rows] == prompt[start + 1 :]
            scores = -1.0 * np.array(rows, np.float32)
            outputs.append(SimpleNamespace(prompt_token_id_logprobs=scores))
        return outputs


@pytest.mark.parametrize("v2", [False, True])
def test_score_given_tokens_on_both_runners(v2: bool) -> None:
    from leval_harness.backends.vllm_long import score_given_tokens

    scores = list(score_given_tokens(Engine(v2), REQUESTS))
    assert [row.tolist() for row in scores] == [[-8.0, -9.0], [-3.0, -2.0, -1.0]]
    assert {row.dtype for row in scores} == {np.dtype("float32")}


def by_transformers(model: Any, context: list[int], scored: list[int]) -> np.ndarray:
    """Log-probability of each scored token."""
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([[*context, *scored]])).logits[0, len(context) - 1 : -1]
    return logits.log_softmax(-1).gather(-1, torch.tensor(scored)[:, None])[:, 0].numpy()


@pytest.mark.slow(long=True)
def test_v2_runner_scores_as_transformers(tiny_llama: Path, smollm2: Path, tmp_path: Path) -> None:
    """vLLM's default on GPUs, after a swap of settings, too; `benchmarks/gpu` compares it there."""
    from transformers import AutoModelForCausalLM

    pytest.importorskip("triton", reason="vLLM's V2 model runner needs Triton")
    methods: dict[str, Any] = {"unmodified": None}
    methods |= {kind: {"rope_type": kind, "factor": 2.0} for kind in ("yarn", "resonance_yarn")}
    tokens = [(7 * n * n + 3 * n) % 499 + 3 for n in range(480)]
    requests = [(tokens[:300], tokens[300:]), (tokens[:1], tokens[1:200]), (tokens[:20], [5])]
    asked, out = tmp_path / "in.json", tmp_path / "out.json"
    given = {"model": str(tiny_llama), "tokenizer": str(smollm2), "methods": methods}
    asked.write_text(json.dumps({**given, "requests": requests}))
    done = subprocess.run(
        [sys.executable, str(V2_RUN), str(asked), str(out)],
        capture_output=True, text=True, check=False, timeout=800,
    )  # fmt: skip
    assert out.exists(), done.stdout[-1000:] + done.stderr[-3000:]
    found = json.loads(out.read_text())
    for name, rope in methods.items():
        model = AutoModelForCausalLM.from_pretrained(tiny_llama)
        if rope is not None:
            model = load_hf(tiny_llama, rope, 512)
        for (context, scored), *reported in zip(
            requests, found[name]["given"], found[name]["ranked"], strict=True
        ):
            expected = by_transformers(model, context, scored)
            for scores in reported:
                np.testing.assert_allclose(scores, expected, atol=1e-3)
    assert found["yarn"]["given"] != found["unmodified"]["given"]
    assert found["resonance_yarn"]["given"] != found["yarn"]["given"]


def test_ignored_settings_are_those_that_change_answers(tmp_path: Path) -> None:
    from leval_harness.backends.vllm_long import ignored_settings

    assert ignored_settings(str(tmp_path), None) == {}
    config = {"repetition_penalty": 1.1, "eos_token_id": 2, "do_sample": True, "temperature": 0.6}
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    assert ignored_settings(str(tmp_path), None) == {"repetition_penalty": 1.1}
