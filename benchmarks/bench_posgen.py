"""PosGen training steps: a stack of models against one model at a time, and the hardware's limit.

Run: python benchmarks/bench_posgen.py [--models 4] [--hidden 128] [--steps 6] [--device cpu]

Prints model steps per second (one model, one optimiser step on 128 sequences) of the stack and of
the plain loop over single transformers models, and the share of the matrix-product rate that the
same device reaches on the feed-forward layer's product, all from one process; and how long the
sequences take.
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch.nn.functional import cross_entropy

from leval_harness.training.posgen_models import Batches, StackData, build_model, build_stack
from leval_harness.training.posgen_settings import Architecture, PosGenRun, Recipe
from leval_tasks.posgen.encodings import PUBLISHED
from leval_tasks.posgen.sequences import splits


def seconds(step: Callable[[], object], repeats: int, device: str) -> float:
    """Median time of a step after one that warms up."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return sorted(times[1:])[repeats // 2]


def training_flops(recipe: Recipe) -> float:
    """Floating-point operations of the matrix products of one model step (forward, backward)."""
    a = recipe.architecture
    inner = a.heads * a.head_dim
    weights = a.layers * (4 * a.hidden * inner + 3 * a.hidden * a.feed_forward) + a.hidden * 22
    tokens = recipe.batch_size * 64
    attention = a.layers * 2 * 64 * inner * tokens
    return 6.0 * weights * tokens + 6.0 * attention


def product_rate(models: int, recipe: Recipe, repeats: int, device: str) -> float:
    """FLOP/s of the stack's feed-forward product by itself."""
    a = recipe.architecture
    x = torch.randn(models, recipe.batch_size * 64, a.hidden, device=device)
    w = torch.randn(models, a.hidden, a.feed_forward, device=device)
    flops = 2.0 * x.numel() * a.feed_forward
    return flops / seconds(lambda: torch.bmm(x, w), 5 * repeats, device)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    architecture = Architecture(
        hidden=args.hidden, heads=args.hidden // 64, feed_forward=4 * args.hidden
    )
    recipe = Recipe(architecture=architecture)
    runs = [PosGenRun("cot", PUBLISHED[i % 4], i) for i in range(args.models)]
    data = StackData(recipe, runs)
    ids = Batches(data)[0].to(args.device)

    stack = build_stack(recipe, runs).to(args.device).train()
    optimizer = torch.optim.AdamW(stack.parameters())

    def stacked() -> None:
        optimizer.zero_grad()
        stack(ids, data.first_target)["loss"].backward()
        optimizer.step()

    singles = [build_model(recipe, run).to(args.device).train() for run in runs]
    optimizers = [torch.optim.AdamW(m.parameters()) for m in singles]

    def loop() -> None:
        for model, optimizer, rows in zip(singles, optimizers, ids, strict=True):
            optimizer.zero_grad()
            logits = model(input_ids=rows[:, :-1]).logits[:, data.first_target - 1 :]
            targets = rows[:, data.first_target :]
            cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
            optimizer.step()

    made = seconds(lambda: splits(recipe.settings("cot")), 3, "cpu")
    together = args.models / seconds(stacked, args.steps, args.device)
    one_by_one = args.models / seconds(loop, args.steps, args.device)
    limit = product_rate(args.models, recipe, args.steps, args.device) / training_flops(recipe)
    print(f"{made:.3f} s for the 12,000 sequences of 256 numbers")
    print(f"{args.models} models, width {args.hidden}, float32, {args.device}")
    print(f"stack       {together:8.2f} model steps/s")
    print(f"plain loop  {one_by_one:8.2f} model steps/s (stack is {together / one_by_one:.2f}x)")
    print(
        f"products    {limit:8.2f} model steps/s would be the limit: {together / limit:.0%} of it"
    )


if __name__ == "__main__":
    main()
