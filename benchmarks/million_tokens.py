"""What long documents take by the cost model, and how well it predicts what a CPU measures.

python benchmarks/million_tokens.py                      # the tables of docs/reference/million-tokens.md
python benchmarks/million_tokens.py --measure MODEL      # measured and predicted memory and time
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from leval_harness.sweep.cost import PASS_TOKENS, ModelSize, model_size, peak_memory
from leval_harness.sweep.estimate import duration, operations_text, rate_of_cpu

GB = 1e9
DEVICE_TFLOPS = 300
"""Operations per second of one GPU in 10^12, an assumption: a third of an H100's peak in bfloat16."""
DEVICE_GB = 80 * 0.9
"""Memory of one GPU that a process may use."""
LENGTHS = (131_072, 262_144, 1_048_576)
CONFIGS = {
    "1B (Llama 3.2)": {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
        "tie_word_embeddings": True,
    },
    "8B (Llama 3.1)": {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    },
    "27B (Gemma 3), 5 of 6 layers with a window": {
        "hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 62,
        "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128,
        "vocab_size": 262208, "tie_word_embeddings": True, "sliding_window": 1024,
        "layer_types": ["full_attention" if layer % 6 == 5 else "sliding_attention"
                        for layer in range(62)],
    },
    "30B-A3B (Qwen3 MoE)": {
        "hidden_size": 2048, "moe_intermediate_size": 768, "num_hidden_layers": 48,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "vocab_size": 151936, "num_experts": 128, "num_experts_per_tok": 8,
    },
    "70B (Llama 3.1)": {
        "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
        "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256,
    },
}  # fmt: skip
"""Name -> the keys of config.json that decide what a forward pass takes, from the published files."""
MEASURED = ((512, 512), (2048, 512), (2048, 2048))
"""Tokens of a text, and of one forward pass."""


def sizes() -> dict[str, ModelSize]:
    """Return the sizes of the models of the tables."""
    known = {}
    for name, config in CONFIGS.items():
        size = model_size(config, "bfloat16")
        assert size is not None
        known[name] = size
    return known


def gpus_for(gigabytes: float) -> int:
    """Return how many GPUs hold so much: 1, 2, 4, 8 and so on."""
    gpus = 1
    while gpus * DEVICE_GB < gigabytes:
        gpus *= 2
    return gpus


def rows() -> Iterator[str]:
    """Yield the table of one document that is read once, in chunks, all its losses computed."""
    yield "| model, bfloat16 | tokens | weights | KV cache | pass of 2,048 tokens | in one pass | operations | GPUs | time |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for name, size in sizes().items():
        for tokens in LENGTHS:
            chunked = peak_memory(size, tokens, chunk=PASS_TOKENS)
            whole = peak_memory(size, tokens, chunk=tokens)
            flops = size.prefill_flops(tokens, scored=tokens)
            gpus = gpus_for(chunked.total / GB)
            hours = flops / (DEVICE_TFLOPS * 1e12 * gpus) / 3600
            cells = [
                name, f"{tokens:,}", f"{chunked.weights / GB:,.0f} GB",
                f"{chunked.kv_cache / GB:,.1f} GB",
                f"{(chunked.activations + chunked.logits) / GB:,.1f} GB",
                f"{(whole.activations + whole.logits) / GB:,.0f} GB",
                operations_text(flops), str(gpus), duration(hours),
            ]  # fmt: skip
            yield f"| {' | '.join(cells)} |"


def memory_of_process(name: str) -> int:
    """Return a value of /proc/self/status in bytes: `VmRSS`, what is resident, or `VmHWM`, its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    kilobytes = next(line.split()[1] for line in lines if line.startswith(f"{name}:"))
    return int(kilobytes) * 1024


def read_once(model: str, tokens: int, chunk: int) -> dict[str, float]:
    """Return the memory before and while a text of some tokens is read once, and the CPU seconds."""
    from leval_harness.backends.hf_long import HFLong

    lm = HFLong(model, dtype="float32", device="cpu", max_length=tokens, prefill_chunk=chunk)
    text = [10 + index % 1000 for index in range(tokens)]
    lm._loglikelihood_tokens([(None, text[:1], text[1:33])], disable_tqdm=True)
    before = memory_of_process("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # begins a new peak
    started = time.process_time()
    lm._loglikelihood_tokens([(None, text[:1], text[1:])], disable_tqdm=True)
    seconds = time.process_time() - started
    return {"before": before, "peak": memory_of_process("VmHWM"), "cpu_seconds": seconds}


def measure(model: str) -> Iterator[str]:
    """Yield the table of what was measured, each length in a process of its own."""
    config = json.loads((Path(model) / "config.json").read_text())
    size = model_size(config, "float32")
    assert size is not None
    yield "| tokens | in passes of | KV cache and pass, predicted | measured | CPU seconds | operations per CPU second |"
    yield "|---:|---:|---:|---:|---:|---:|"
    for tokens, chunk in MEASURED:
        command = [sys.executable, __file__, "--read", str(tokens), str(chunk), model]
        result = json.loads(subprocess.check_output(command).splitlines()[-1])
        memory = peak_memory(size, tokens, chunk=chunk)
        predicted = memory.total - memory.weights
        measured = result["peak"] - result["before"]
        flops = size.prefill_flops(tokens, scored=tokens)
        yield (
            f"| {tokens:,} | {chunk:,} | {predicted / GB:.2f} GB | {measured / GB:.2f} GB | "
            f"{result['cpu_seconds']:.0f} | {flops / result['cpu_seconds'] / 1e9:.1f} GFLOP |"
        )
    yield f"Benchmark of the estimate: {rate_of_cpu('float32') / 1e9:.1f} GFLOP/s of this process"


def main() -> None:
    """Print the tables that the options ask for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", metavar="MODEL", help="a checkpoint folder")
    parser.add_argument(
        "--read", nargs=3, metavar=("TOKENS", "CHUNK", "MODEL"), help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    if options.read:
        tokens, chunk, model = options.read
        print(json.dumps(read_once(model, int(tokens), int(chunk))))
        return
    for line in measure(options.measure) if options.measure else rows():
        print(line, flush=True)


if __name__ == "__main__":
    main()
