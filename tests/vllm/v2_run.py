"""An engine with vLLM's V2 model runner, on a CPU too: `v2_run.py IN.json OUT.json`.

IN has `model`, `tokenizer`, `methods` (name -> what `set_rope` takes) and `requests` (context and
scored token ids). OUT has by method the scores that the backend reports (`given`), and those of
vLLM's ranked prompt log-probabilities (`ranked`).

V2's kernels are written in Triton, which has no compiler for this CPU. Its interpreter runs the same
kernels in NumPy; vLLM takes it for a CPU backend of Triton because one is entered under that name.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

os.environ |= {
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "TRITON_INTERPRET": str(int(not torch.cuda.is_available())),  # read where kernels are defined
}

import triton.backends
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.driver import driver

ON_CPU = not torch.cuda.is_available()


class Interpreter(DriverBase):
    """What Triton asks of a backend around kernels; the interpreter does not compile any."""

    def __init__(self) -> None:
        pass

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_target(self) -> Any:
        return GPUTarget("cpu", 0, 0)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_benchmarker(self) -> Any:
        raise NotImplementedError


def main() -> None:
    """Entry point."""
    if ON_CPU:
        compiler = triton.backends.backends["nvidia"].compiler  # any: it is not called
        triton.backends.backends["cpu"] = triton.backends.Backend(compiler, Interpreter)
        driver.set_active(Interpreter())

    from leval_harness.backends import backend_class
    from leval_harness.backends.vllm_long import scores_given_ids
    from leval_tasks.common.token_logprobs import score_by_vllm, scoring_of

    asked = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    lm = backend_class("vllm-long")(
        asked["model"],
        tokenizer=asked["tokenizer"],
        dtype="float32",
        hf_overrides={"max_position_embeddings": 512},
        max_model_len=512,
        max_num_seqs=4,
        enforce_eager=ON_CPU,
        kv_cache_memory_bytes=2**28,
    )
    assert lm.model.llm_engine.vllm_config.use_v2_model_runner
    assert scores_given_ids(lm.model)
    found = {}
    for name, rope in asked["methods"].items():
        lm.model.collective_rpc("set_rope", args=(rope,))
        given = scoring_of(lm).score(lm, asked["requests"])
        ranked = score_by_vllm(lm, asked["requests"])
        found[name] = {
            "given": [scores.tolist() for scores in given],
            "ranked": [scores.tolist() for scores in ranked],
        }
    Path(sys.argv[2]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
