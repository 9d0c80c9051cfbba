"""What the hook behind a rotary module costs on transformers: hook over no hook.

    python benchmarks/rope_hook.py MODEL [--threads 1] [--dtype bfloat16]

Resonance YaRN by `apply_rope`, with float32 rotation too, over plain YaRN, which has no hook. A
forward pass over 1,024 tokens and a decoding step after them are timed in alternating pairs;
printed are the median of the ratios of 30 pairs and their quartiles. Needs idle cores.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from resonance_vllm import hf
from resonance_vllm.checkpoint.positions import PositionConfig

TOKENS, PAIRS = 1024, 30
SIDES = {"hook": "model", "hook, float32 rotation": "float32"}


def timed(run: Callable[[], object]) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def works(model: torch.nn.Module, ids: torch.Tensor) -> dict[str, Callable[[], object]]:
    """What is timed: a forward pass, and one token after it."""
    past = model(ids, use_cache=True).past_key_values
    one = ids[:, -1:]

    def step() -> None:
        model(one, past_key_values=past, use_cache=True)
        past.crop(TOKENS)

    return {"forward pass": lambda: model(ids, use_cache=False), "decoding step": step}


@torch.no_grad()
def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    positions = PositionConfig.from_checkpoint(args.model)
    ids = torch.randint(5, 1000, (1, TOKENS), generator=torch.Generator().manual_seed(0))
    yarn, ours = (
        positions.complete({"rope_type": kind, "factor": 2.0})
        for kind in ("yarn", "resonance_yarn")
    )
    plain = works(hf.load(args.model, yarn, dtype=args.dtype).eval(), ids)
    for side, precision in SIDES.items():
        model = hf.load(args.model, ours, precision=precision, dtype=args.dtype).eval()
        for name, run in works(model, ids).items():
            timed(run), timed(plain[name])
            ratios = [timed(run) / timed(plain[name]) for _ in range(args.pairs)]
            low, median, high = statistics.quantiles(ratios, n=4)
            print(f"{name}, {side}: {median:.3f} (quartiles {low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
