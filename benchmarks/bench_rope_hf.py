"""Rotary embedding on transformers: what the exact phase costs, as ratios within one run.

    python benchmarks/bench_rope_hf.py --length 4096 --repeats 7 [--device cuda] [--dtype bfloat16]

Each repeat measures all variants one after the other; printed is the median of the paired ratios
to plain YaRN in the model's own dtype.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from resonance_vllm import hf

VARIANTS = {
    "yarn": ("yarn", "model"),
    "yarn, float32 rotation": ("yarn", "float32"),
    "resonance_yarn": ("resonance_yarn", "model"),
    "resonance_yarn, float32 rotation": ("resonance_yarn", "float32"),
}


def build(rope_type: str, precision: str, args: argparse.Namespace) -> torch.nn.Module:
    """A random Llama of SmolLM2-135M's width, with fewer layers."""
    rope = {
        "rope_type": rope_type,
        "rope_theta": 100000.0,
        "factor": 2.0,
        "original_max_position_embeddings": 8192,
    }
    config = AutoConfig.for_model(
        "llama",
        vocab_size=512,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=args.layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        max_position_embeddings=16384,
        rope_parameters=rope,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, args.dtype))
    hf.set_rope_precision(model, precision)
    return model.to(args.device).eval()


def seconds(work: Callable[[], object], device: str) -> float:
    """Wall time of one call, device work included."""
    started = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()
    hf.register()
    models = {name: build(*variant, args) for name, variant in VARIANTS.items()}
    ids = torch.randint(0, 512, (1, args.length), device=args.device)
    positions = torch.arange(args.length, device=args.device)[None]
    like = torch.zeros(1, device=args.device, dtype=getattr(torch, args.dtype))
    measured: dict[str, dict[str, list[float]]] = {"rotary module": {}, "prefill": {}}
    for repeat in range(args.repeats + 1):
        for name, model in models.items():
            works = {
                "rotary module": lambda m=model: m.model.rotary_emb(like, positions),
                "prefill": lambda m=model: m(ids, logits_to_keep=1),
            }
            for part, work in works.items():
                spent = seconds(work, args.device)
                if repeat:  # the first round warms up
                    measured[part].setdefault(name, []).append(spent)
    for part, times in measured.items():
        print(f"{part}, {args.length} tokens, {args.device}, {args.dtype}")
        for name, values in times.items():
            pairs = zip(values, times["yarn"], strict=True)
            ratio = statistics.median(a / b for a, b in pairs)
            print(f"  {name:34} {1000 * statistics.median(values):9.2f} ms   ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
