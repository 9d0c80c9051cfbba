"""Sliding-window perplexity as a task, against a bare forward pass and the loop everyone copies.

    python benchmarks/bench_perplexity.py MODEL --windows 8192 16384 --count 2

needs no data: the text is the language reference inside Python (task `ppl_pydocs`). MODEL is a
checkpoint folder. Every variant reads the same `count` windows (the first and its successors, moved
by the stride) in a process of its own, one after the other; printed are seconds from the first
request to the last answer, peak memory of the process, both as ratios to the bare forward pass, and
the mean negative log-likelihood a scored token.

- bare: forward passes of the windows, logits at the scored positions only, float32 softmax of them
- hf-long, hf: `ppl_pydocs` through lm-eval with that backend, requests and aggregation included
- loop: labels of -100 and the model's own loss, as in the transformers documentation
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

VARIANTS = ("bare", "hf-long", "hf", "loop")


def task(args: argparse.Namespace, window: int) -> dict[str, Any]:
    import lm_eval
    import lm_eval.models
    from lm_eval.api.registry import get_model
    from lm_eval.tasks import TaskManager

    import leval_harness.backends
    import leval_tasks.perplexity

    leval_harness.backends.register()
    settings = {"pretrained": args.model, "dtype": args.dtype, "max_length": window}
    if args.variant == "hf":
        settings |= {"softmax_dtype": "float32"}
    model = get_model(args.variant).create_from_arg_obj(
        settings, {"batch_size": 1, "device": "cpu"}
    )
    metadata = settings | {
        "context_length": window,
        "mode": "sliding",
        "stride": args.stride,
        "num_docs": 1,
        "max_tokens": window - 1 + (args.count - 1) * args.stride,
    }
    manager = TaskManager(
        include_path=str(Path(leval_tasks.perplexity.__file__).parent / "tasks"),
        include_defaults=False,
        metadata=metadata,
    )
    warm_up(model.model)
    start = time.perf_counter()
    results = lm_eval.simple_evaluate(
        model=model, tasks=["ppl_pydocs"], task_manager=manager, bootstrap_iters=0
    )
    (sample,) = results["samples"]["ppl_pydocs"]
    assert len(sample["arguments"]) == args.count
    nll, count = sample[f"token_perplexity@{window}"]
    return {"seconds": time.perf_counter() - start, "nll": nll / count, "scored": count}


def warm_up(model: Any) -> None:
    """A short pass, so that reading weights for the first time is not counted."""
    import torch

    with torch.no_grad():
        model(torch.arange(64)[None], use_cache=False)


def by_hand(args: argparse.Namespace, window: int) -> dict[str, Any]:
    """The same windows without our code or lm-eval: document `seed 0` of ppl_pydocs, cut again."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from leval_tasks.context import LengthLimit
    from leval_tasks.metadata import PerplexitySettings
    from leval_tasks.model import Reader
    from leval_tasks.perplexity.documents import draw_pydocs
    from leval_tasks.perplexity.task import complete_settings

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=getattr(torch, args.dtype))
    model.eval()
    length = window - 1 + (args.count - 1) * args.stride
    given = PerplexitySettings(
        context_length=(window,), stride=args.stride, num_docs=1, max_tokens=length
    )
    settings = complete_settings(given, LengthLimit("unknown", None, ""), has_bos=True)
    drawn, _, _ = draw_pydocs(Reader(tokenizer, None, "").encode, settings)
    ids = torch.tensor(drawn[0].tokens)
    bos = torch.tensor([tokenizer.bos_token_id])
    total, count, previous = 0.0, 0, 0
    warm_up(model)
    start = time.perf_counter()
    with torch.no_grad():
        for begin in range(0, args.count * args.stride, args.stride):
            end = begin + window - 1
            tokens = torch.cat([bos, ids[begin:end]])[None]
            new = end - previous
            if args.variant == "loop":
                labels = tokens.clone()
                labels[0, :-new] = -100
                total += model(tokens, labels=labels).loss.item() * new
            else:
                logits = model(tokens[:, :-1], logits_to_keep=new, use_cache=False).logits[0]
                for part, gold in zip(logits.split(512), tokens[0, -new:].split(512), strict=True):
                    loss = torch.nn.functional.cross_entropy(part.float(), gold, reduction="sum")
                    total += loss.item()
            count += new
            previous = end
    return {"seconds": time.perf_counter() - start, "nll": total / count, "scored": count}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--windows", type=int, nargs="+", default=[8192, 16384])
    parser.add_argument("--count", type=int, default=2, help="windows read at each length")
    parser.add_argument("--stride", type=int, default=256)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.variant:
        run = task if args.variant in ("hf", "hf-long") else by_hand
        result = run(args, args.windows[0])
        result["gigabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(json.dumps(result))
        return
    for window in args.windows:
        print(f"\n{args.count} windows of {window}, stride {args.stride}, {args.dtype}")
        bare: dict[str, Any] = {}
        for variant in args.variants:
            command = [sys.executable, __file__, *sys.argv[1:], "--variant", variant]
            command += ["--windows", str(window)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            if done.returncode:
                print(f"{variant:8} failed with exit status {done.returncode}")
                continue
            row = json.loads(done.stdout.splitlines()[-1])
            bare = bare or row
            print(
                f"{variant:8} {row['seconds']:7.1f} s {row['seconds'] / bare['seconds']:5.2f}×  "
                f"{row['gigabytes']:5.2f} GB {row['gigabytes'] / bare['gigabytes']:5.2f}×  "
                f"nll {row['nll']:.5f} over {row['scored']} tokens",
                flush=True,
            )


if __name__ == "__main__":
    main()
