"""What Resonance costs in vLLM: the cos/sin table, prefill and decode, against vLLM's own YaRN.

python benchmarks/bench_vllm.py table    building the table for 131,072 positions, head size 128
python benchmarks/bench_vllm.py engine   throughput of one engine, settings swapped between runs

Every number is a ratio of things measured alternately in one run on one machine.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STOCK = {"rope_theta": 10000.0, "factor": 32.0, "original_max_position_embeddings": 4096}
ROWS = 131_072
HEAD = 128


class RopeWorker:
    """Worker extension: every layer's embedding rebuilt for other settings."""

    model_runner: Any

    def use_rope(self, rope_parameters: dict[str, Any]) -> str:
        """Swap the embeddings; returns the class of the new one."""
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.models import llama

        config = self.model_runner.vllm_config
        layers = self.model_runner.model.model.layers
        with set_current_vllm_config(config):
            made = llama.get_rope(
                layers[0].self_attn.head_dim,
                max_position=config.model_config.max_model_len,
                rope_parameters=rope_parameters,
                dtype=config.model_config.dtype,
            )
        for layer in layers:
            layer.self_attn.rotary_emb = made
        return type(made).__name__


def status(field: str) -> int:
    """Bytes in a field of this process's status: VmRSS now, VmHWM at most."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return int(text.split(f"{field}:")[1].split()[0]) * 1024


def peak_bytes(build: Callable[[], Any]) -> int:
    """Memory that `build` needs at most beyond what is held before."""
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    kept = build()
    peak = status("VmHWM") - before
    del kept
    return peak


def table(runs: int) -> dict[str, Any]:
    """Processor time (one thread) and peak memory of building the table, ours and vLLM's."""
    import torch

    torch.set_num_threads(1)
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers import rotary_embedding

    from resonance_vllm.vllm import register

    register()

    def builder(rope_type: str, dtype: torch.dtype) -> Callable[[], Any]:
        def build() -> Any:
            rotary_embedding._ROPE_DICT.clear()
            rope = {"rope_type": rope_type, **STOCK}
            return rotary_embedding.get_rope(HEAD, ROWS, True, rope, dtype=dtype)

        return build

    report: dict[str, Any] = {}
    with set_current_vllm_config(VllmConfig(device_config=DeviceConfig(device="cpu"))):
        for dtype in (torch.float32, torch.bfloat16):
            seconds: dict[str, list[float]] = {"yarn": [], "resonance_yarn": []}
            peaks: dict[str, list[int]] = {"yarn": [], "resonance_yarn": []}
            size = ROWS * HEAD * dtype.itemsize
            for name in seconds:
                assert builder(name, dtype)().cos_sin_cache.nbytes == size
            for _ in range(runs):
                for name in seconds:
                    start = time.process_time()
                    builder(name, dtype)()
                    seconds[name].append(time.process_time() - start)
                    rotary_embedding._ROPE_DICT.clear()
                    peaks[name].append(peak_bytes(builder(name, dtype)))
                    rotary_embedding._ROPE_DICT.clear()
            pairs = zip(seconds["resonance_yarn"], seconds["yarn"], strict=True)
            report[str(dtype)] = {
                "table_mib": size / 2**20,
                "time_ratio": statistics.median(ours / stock for ours, stock in pairs),
                "seconds": {name: statistics.median(times) for name, times in seconds.items()},
                "peak_over_table": {name: max(p) / size for name, p in peaks.items()},
            }
    return report


def engine(runs: int, prompt_tokens: int, new_tokens: int) -> dict[str, Any]:
    """Prefill and decode of SmolLM2 under the two settings, alternately in one engine."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # its log shares standard output
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    sys.path.insert(0, here)
    from vllm import LLM, SamplingParams

    from leval_harness.smollm2 import prepare
    from resonance_vllm import config as settings
    from resonance_vllm.config import ModelPositions

    path = prepare()
    positions = ModelPositions.of_checkpoint(str(path))
    overrides = {
        name: settings.vllm_hf_overrides(
            positions.complete({"rope_type": name, "factor": 2}), positions
        )
        for name in ("yarn", "resonance_yarn")
    }
    llm = LLM(
        str(path),
        hf_overrides=overrides["resonance_yarn"],
        max_model_len=16384,
        enforce_eager=True,
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        max_num_seqs=4,
        kv_cache_memory_bytes=2**30,
        worker_extension_cls="bench_vllm.RopeWorker",
    )
    text = [(i * 7919) % 49000 for i in range(prompt_tokens)]

    def seconds(prompts: list[list[int]], tokens: int) -> float:
        params = SamplingParams(
            temperature=0, max_tokens=tokens, min_tokens=tokens, ignore_eos=True, detokenize=False
        )
        start = time.perf_counter()
        llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        return time.perf_counter() - start

    phases = {
        "prefill": lambda: seconds([text], 1),
        "decode": lambda: seconds([text[i : i + 16] for i in range(4)], new_tokens),
    }
    taken: dict[str, dict[str, list[float]]] = {
        phase: {name: [] for name in overrides} for phase in phases
    }
    for run in range(runs + 1):
        # The order turns around from pair to pair; the first pair warms up and does not count.
        for name in sorted(overrides, reverse=bool(run % 2)):
            llm.collective_rpc("use_rope", args=(overrides[name]["rope_parameters"],))
            for phase, measure in phases.items():
                duration = measure()
                if run:
                    taken[phase][name].append(duration)
    report = {}
    for phase, times in taken.items():
        pairs = zip(times["yarn"], times["resonance_yarn"], strict=True)
        ratios = sorted(stock / ours for stock, ours in pairs)
        tokens = prompt_tokens if phase == "prefill" else 4 * new_tokens
        report[phase] = {
            "throughput_ratio": statistics.median(ratios),
            "ratios": ratios,
            "tokens_per_second": {n: tokens / statistics.median(t) for n, t in times.items()},
        }
    llm.llm_engine.engine_core.shutdown()
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("part", choices=["table", "engine"])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--prompt-tokens", type=int, default=2048)
    parser.add_argument("--new-tokens", type=int, default=64)
    args = parser.parse_args()
    if args.part == "table":
        report = table(args.runs)
    else:
        report = engine(args.runs, args.prompt_tokens, args.new_tokens)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
