"""Scores at given tokens alone, as vLLM's V2 model runner returns them, and where it can run."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.engine("vllm")

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


def test_v2_runner_runs_where_triton_does(monkeypatch: pytest.MonkeyPatch, smollm2: Any) -> None:
    """On a CPU without a Triton backend it cannot; `benchmarks/gpu` has these checks for GPUs."""
    from vllm.triton_utils import HAS_TRITON

    if not HAS_TRITON:
        pytest.skip("vLLM's V2 model runner needs Triton, which has no backend for this CPU")
    from leval_harness.backends import backend_class
    from leval_harness.backends.vllm_long import scores_given_ids
    from leval_tasks.common.token_logprobs import score_by_vllm, scoring_of

    lm = backend_class("vllm-long")(str(smollm2), dtype="float32", max_model_len=512)
    try:
        assert scores_given_ids(lm.model)
        requests = [(list(range(100, 140)), list(range(200, 260)))]
        (scores,) = scoring_of(lm).score(lm, requests)
        (ranked,) = score_by_vllm(lm, requests)
        np.testing.assert_allclose(scores, ranked, atol=1e-4)
    finally:
        lm.close()


def test_ignored_settings_are_those_that_change_answers(tmp_path: Path) -> None:
    from leval_harness.backends.vllm_long import ignored_settings

    assert ignored_settings(str(tmp_path), None) == {}
    config = {"repetition_penalty": 1.1, "eos_token_id": 2, "do_sample": True, "temperature": 0.6}
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    assert ignored_settings(str(tmp_path), None) == {"repetition_penalty": 1.1}
