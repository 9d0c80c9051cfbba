"""Engines start on a CPU by default, and say why where they do not."""

from pathlib import Path
from typing import Any

import pytest

from leval_harness.backends import vllm_start
from leval_harness.backends.vllm_start import engine_reason, with_cpu_cache
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


@pytest.mark.engine("vllm")
@pytest.mark.slow(long=True)
def test_backend_says_why_an_engine_does_not_start(smollm2: Path) -> None:
    from leval_harness.backends import backend_class

    engine = {"dtype": "float32", "enforce_eager": True, "max_model_len": 64, "max_num_seqs": 2}
    with pytest.raises(UserError, match=r"^vLLM does not start: \w*Error: .*requested memory"):
        backend_class("vllm")(str(smollm2), kv_cache_memory_bytes=1 << 50, **engine)
