"""What Resonance YaRN costs in vLLM beside YaRN, and what an swap costs beside a start.

    python benchmarks/bench_vllm.py MODEL [--pairs 30]

Ratios are of pairs that are measured alternately in one engine: a forward pass over 1,024 tokens
and 64 decoding steps. MODEL is a checkpoint folder with plain RoPE.
"""

import argparse
import json
import os
import statistics
import time

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}

from vllm import LLM, SamplingParams

from resonance_vllm.checkpoint.overrides import vllm_hf_overrides
from resonance_vllm.checkpoint.positions import PositionConfig

PROMPT = [{"prompt_token_ids": [7 * n % 97 + 3 for n in range(1024)]}]
STEPS = {
    "forward pass": SamplingParams(max_tokens=1, temperature=0, detokenize=False),
    "decoding": SamplingParams(max_tokens=64, temperature=0, ignore_eos=True, detokenize=False),
}


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--pairs", type=int, default=30)
    given = parser.parse_args()
    positions = PositionConfig.from_checkpoint(given.model)
    settings = {
        name: vllm_hf_overrides(positions.complete({"rope_type": name, "factor": 2}), positions)
        for name in ("yarn", "resonance_yarn")
    }
    started = time.perf_counter()
    engine = LLM(
        given.model, hf_overrides=settings["yarn"], max_model_len=2048, enforce_eager=True,
        worker_extension_cls="resonance_vllm.vllm.RopeWorker", enable_prefix_caching=False,
        skip_tokenizer_init=True, max_num_seqs=2, kv_cache_memory_bytes=2**30,
    )  # fmt: skip
    start, swaps = time.perf_counter() - started, []
    seconds: dict[tuple[str, str], list[float]] = {}
    for _ in range(given.pairs):
        for name, written in settings.items():
            before = time.perf_counter()
            engine.collective_rpc("set_rope", args=(written["rope_parameters"],))
            swaps.append(time.perf_counter() - before)
            for step, params in STEPS.items():
                before = time.perf_counter()
                engine.generate(PROMPT, params, use_tqdm=False)
                seconds.setdefault((name, step), []).append(time.perf_counter() - before)
    found = {"start": start, "swap": statistics.median(swaps)}
    for step in STEPS:
        pairs = zip(seconds["resonance_yarn", step], seconds["yarn", step], strict=True)
        ratios = sorted(ours / plain for ours, plain in pairs)
        found[step] = [
            ratios[len(ratios) // 4],
            statistics.median(ratios),
            ratios[-len(ratios) // 4],
        ]
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
