"""Engines start on a CPU by default, and say why where they do not."""

import json
from pathlib import Path
from typing import Any

import pytest

from leval_harness.backends import get_backend, vllm_start
from leval_harness.backends.vllm_start import engine_reason, with_cpu_cache, with_token_budget
from resonance_vllm.common.errors import UserError

LOG = """\
INFO 11-26 [core.py:110] Initializing a V1 LLM engine
(EngineCore pid=9) ERROR 11-26 00:00:00 [core.py:1510] EngineCore failed to start.
(EngineCore pid=9) ERROR 11-26 00:00:00 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=9) ERROR 11-26 00:00:00 [core.py:1510] ValueError: To serve at least one request
(EngineCore pid=9) RuntimeError: Engine core initialization failed. See root cause above.
"""
POINTER = RuntimeError("Engine core initialization failed. See root cause above. Failed: {}")


def test_engine_reason_is_the_last_exception_of_a_log() -> None:
    assert engine_reason(POINTER, LOG) == "ValueError: To serve at least one request"
    assert engine_reason(RuntimeError("no\nlog"), LOG) == "no log", "it points to nothing"
    assert "root cause above" in engine_reason(POINTER, "INFO nothing\n")


@pytest.mark.parametrize("cause", ["ModuleNotFoundError: No module named 'torchvision'", None])
def test_engine_reason_names_code_that_cannot_be_imported(
    monkeypatch: pytest.MonkeyPatch, cause: str | None
) -> None:
    pytest.importorskip("vllm")
    import resonance_vllm.vllm.inspection as inspection

    message = "Model architectures ['Qwen3VLForConditionalGeneration'] failed to be inspected."
    monkeypatch.setattr(inspection, "architecture_failure", lambda error: cause)
    assert engine_reason(ValueError(message), LOG) == (cause or message)


@pytest.mark.parametrize(
    ("given", "variable", "cpu", "sized"),
    [
        ({}, "", True, True),
        ({}, "", False, False),
        ({}, "2", True, False),
        ({"kv_cache_memory_bytes": 7}, "", True, False),
        ({"gpu_memory_utilization": 0.5}, "", True, False),
    ],
)
def test_with_cpu_cache_passes_a_size_that_fits(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], variable: str, cpu: bool, sized: bool
) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", variable)
    monkeypatch.setattr(vllm_start, "_on_cpu", lambda: cpu)
    made = with_cpu_cache({"pretrained": "m", **given})
    assert ("kv_cache_memory_bytes" in made.keys() - given.keys()) is sized
    assert {key: made[key] for key in given} == given
    if sized:
        assert 1 << 28 < made["kv_cache_memory_bytes"] <= 4 << 30


@pytest.mark.parametrize(
    ("vocabulary", "given", "v2", "budget"),
    [
        (49_152, {}, False, 2048),
        (128_256, {}, False, 1046),
        (262_144, {}, False, 512),
        (2_000_000, {}, False, 256),
        (2_000_000, {"max_num_seqs": 300}, False, 300),
        (128_256, {}, True, None),  # which computes 1,024 positions at a time
        (128_256, {"max_num_batched_tokens": 9}, False, 9),
        (128_256, {"enable_chunked_prefill": False}, False, None),
        (None, {}, False, None),
    ],
)
def test_with_token_budget_lets_logprobs_fit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    vocabulary: int | None,
    given: dict[str, Any],
    v2: bool,
    budget: int | None,
) -> None:
    config = {"model_type": "llama", **({"vocab_size": vocabulary} if vocabulary else {})}
    if vocabulary is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(vllm_start, "expects_v2_runner", lambda: v2)
    made = with_token_budget(str(tmp_path), given)
    assert made.get("max_num_batched_tokens") == budget
    if budget is not None and not given:
        assert budget * (vocabulary or 0) * 16 <= 2 << 30 or budget == 256


@pytest.mark.engine("vllm")
@pytest.mark.parametrize("variable", ["0", "1", None])
def test_expects_v2_runner_as_vllm_decides(
    monkeypatch: pytest.MonkeyPatch, variable: str | None
) -> None:
    """vLLM's own decision, which it takes when it starts an engine."""
    from vllm.config import DeviceConfig, VllmConfig
    from vllm.triton_utils import HAS_TRITON

    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    engine = VllmConfig(device_config=DeviceConfig(device="cpu"))
    if variable is not None:
        monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", variable)
    assert vllm_start.expects_v2_runner() == engine.use_v2_model_runner
    if not HAS_TRITON:  # as on a CPU without Triton's backend for it
        assert vllm_start.expects_v2_runner() == (variable == "1")


@pytest.mark.parametrize("name", ["vllm", "vllm-long"])
def test_backend_refuses_data_parallel(name: str) -> None:
    (problem,) = get_backend(name).argument_problems({"data_parallel_size": 2})
    assert problem.startswith(f"data_parallel_size: 2 is not supported by {name}; ")
    assert list(get_backend(name).argument_problems({"data_parallel_size": 1})) == []


@pytest.mark.engine("vllm")
@pytest.mark.slow(long=True)
def test_backend_says_why_an_engine_does_not_start(smollm2: Path) -> None:
    from leval_harness.backends import backend_class

    engine = {"dtype": "float32", "enforce_eager": True, "max_model_len": 64, "max_num_seqs": 2}
    with pytest.raises(UserError, match=r"^vLLM does not start: \w*Error: .*requested memory"):
        backend_class("vllm")(str(smollm2), kv_cache_memory_bytes=1 << 50, **engine)
