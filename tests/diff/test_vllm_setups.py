"""vLLM as an engine against transformers, on the small real model."""

import pytest

import leval_harness as lh
from leval_harness.diff.local import LocalReader
from leval_harness.diff.setups import Setup
from resonance_vllm.common.errors import UserError

pytestmark = [pytest.mark.engine("vllm"), pytest.mark.slow(long=True)]
OPTIONS = {"length": 256, "count": 3, "isolated": False}


@pytest.fixture(autouse=True)
def no_cache_size(monkeypatch):
    """An engine starts by default: what a test's shell says of the cache does not count."""
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")


def engine(model, arguments=""):
    return f"vllm:{model},dtype=float32,enforce_eager=true,max_model_len=1024{arguments}"


def test_float32_on_both_libraries_is_the_same_to_rounding(smollm2):
    found = lh.diff(f"hf:{smollm2},dtype=float32", engine(smollm2), **OPTIONS)
    assert (found.verdict, found.findings) == ("same", ())
    assert found.apart < 1e-4


def test_an_argument_that_the_engine_does_not_take_is_named(smollm2):
    with pytest.raises(UserError, match="unexpected keyword argument 'kv_cache_dtipe'"):
        LocalReader(Setup.parse(engine(smollm2, ",kv_cache_dtipe=fp8_e4m3")))


def test_a_base_that_overrides_leave_out_is_found(smollm2):
    """vLLM takes 10,000 where a dictionary has no rope_theta; the checkpoint has 100,000."""
    wrong = ',hf_overrides={"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}'
    found = lh.diff(f"hf:{smollm2},dtype=float32", engine(smollm2, wrong), **OPTIONS)
    assert (found.verdict, found.exit_code) == ("worse", 4)
