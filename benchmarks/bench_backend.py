"""Time and memory of `hf-long` against lm-eval's `hf` and the per-question loop.

    python benchmarks/bench_backend.py plan DATA MODEL
    python benchmarks/bench_backend.py prefix DATA MODEL
    python benchmarks/bench_backend.py generate DATA MODEL --tasks tpo --docs 2 --new-tokens 16

DATA is the folder with `leval/closed`; MODEL a checkpoint folder. Every variant runs
in a process of its own, one after the other, so that peak memory is its own; ratios are printed.
`plan` and `prefix` count tokens without a model: what `hf-long` computes, and what vLLM computes
with a prefix cache of a given size in the order of `vllm-long` and in that of lm-eval's `vllm`.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections import OrderedDict
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

TASKS = ("tpo", "quality", "coursera", "sci_fi", "gsm100", "topic_retrieval_longchat")
SYSTEM = (
    "Now you are given a very long document. Please follow the instruction based on this "
    "document. For multi-choice questions, there is only a sinlge correct option. Please only "
    "provide the letter corresponding to the answer (like A or B) when answering. For other "
    "questions, please directly give the concise and accurate answer. "
)


def prompts(data: Path, task: str, docs: int | None, questions: int | None) -> list[str]:
    """Prompts of a task in L-Eval's frame: document first, question last."""
    out = []
    with (data / "leval" / "closed" / f"{task}.jsonl").open(encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    if task == "gsm100" and docs is not None:
        records = records[:20]  # every record is one question about the same text
    elif docs is not None:
        records = records[:docs]
    for record in records:
        for question in record["instructions"][:questions]:
            if task in ("gsm100", "topic_retrieval_longchat"):
                out.append(f"{SYSTEM}{record['input']}\n\n{question}")
            else:
                out.append(
                    f"{SYSTEM}Document is as follows. {record['input']} \nQuestion: {question}.  "
                    "Please directly give the answer without any additional output or "
                    "explanation \nAnswer:"
                )
    return out


def unique_tokens(documents: list[list[int]]) -> int:
    """Tokens that have to be read if each beginning is read once."""
    from leval_harness.backends.documents import common_prefix

    again = sum(common_prefix(a, b) for a, b in pairwise(sorted(documents)))
    return sum(map(len, documents)) - again


def plan(args: argparse.Namespace) -> None:
    from transformers import AutoTokenizer

    from leval_harness.backends.documents import batches, common_prefix

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    for task in args.tasks:
        tokens = tokenizer(prompts(args.data, task, None, None))["input_ids"]
        total, unique, computed, path = sum(map(len, tokens)), unique_tokens(tokens), 0, []
        for shared, rows in batches(tokens, [len(each) - 1 for each in tokens]):
            computed += len(shared) - common_prefix(path, shared)
            computed += sum(len(tokens[row]) - len(shared) for row in rows)
            path = shared
        print(
            f"{task:26} prompts {total:9,} unique {unique:8,} computed {computed:8,} "
            f"ratio {computed / unique:.4f} saved {total / computed:.1f}x"
        )


def prefix(args: argparse.Namespace) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    for task in args.tasks:
        documents = prompts(args.data, task, None, None)
        tokens = tokenizer(documents)["input_ids"]
        ours = sorted(range(len(tokens)), key=tokens.__getitem__)
        stock = sorted(range(len(documents)), key=lambda i: (-len(tokens[i]), documents[i]))
        unique, longest = unique_tokens(tokens), max(map(len, tokens))
        for size in args.cache:
            computed = [
                uncached([tokens[i] for i in order], int(size * longest)) / unique
                for order in (ours, stock)
            ]
            print(
                f"{task:26} cache for {size:g} prompts: computed / unique {computed[0]:.3f} "
                f"in the order of vllm-long, {computed[1]:.3f} in that of vllm"
            )


def uncached(prompts: list[list[int]], capacity: int, block: int = 16) -> int:
    """Tokens that an engine computes which asks one prompt after the other.

    Its cache holds `capacity` tokens in whole blocks; the oldest goes first, of one prompt the end.
    """
    held: OrderedDict[int, None] = OrderedDict()
    computed = 0
    for tokens in prompts:
        keys = list(
            accumulate(
                (tuple(tokens[at : at + block]) for at in range(0, len(tokens) - block + 1, block)),
                lambda before, part: hash((before, part)),
                initial=0,
            )
        )[1:]
        usable = keys[: (len(tokens) - 1) // block]  # the last token is always computed
        hits = next((at for at, key in enumerate(usable) if key not in held), len(usable))
        computed += len(tokens) - hits * block
        for key in reversed(keys):
            held.pop(key, None)
            held[key] = None
        while len(held) > capacity // block:
            held.popitem(last=False)
    return computed


def generate(args: argparse.Namespace) -> None:
    for task in args.tasks:
        results = {name: child(args, name, task) for name in args.variants}
        report(f"{task}, {args.new_tokens} new tokens, {args.dtype}", results)


def child(args: argparse.Namespace, variant: str, what: str) -> dict[str, Any]:
    command = [sys.executable, __file__, *sys.argv[1:], "--variant", variant, "--what", what]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{variant} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def report(title: str, results: dict[str, dict[str, Any]]) -> None:
    print(title)
    ours = results["hf-long"]
    for name, result in results.items():
        faster = result["seconds"] / ours["seconds"]
        busier = result["cpu_seconds"] / ours["cpu_seconds"]
        heavier = result["peak_bytes"] / ours["peak_bytes"]
        print(
            f"  {name:10} {result['seconds']:8.1f} s, {faster:5.2f}x hf-long's time "
            f"({busier:5.2f}x its CPU time, start-up included); "
            f"peak {result['peak_bytes'] / 2**30:.2f} GiB, {heavier:4.2f}x hf-long's; "
            f"{result['note']}",
            flush=True,
        )
    documents = [result["out"] for result in results.values()]
    for (name, result), other in zip(list(results.items())[1:], pairwise(documents), strict=True):
        same = sum(a == b for a, b in zip(*other, strict=True))
        print(f"  {name}: {same} of {len(result['out'])} answers as the variant before")


def one(args: argparse.Namespace) -> None:
    """A single variant, in this process; the last line of the output is its result."""
    import torch

    torch.manual_seed(0)
    result = run_generate(args)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result["cpu_seconds"] = time.process_time()
    result["peak_bytes"] = peak * (1 if sys.platform == "darwin" else 1024)
    print(json.dumps(result))


def harness(args: argparse.Namespace) -> Any:
    """An lm-eval model object, `hf` or `hf-long`."""
    import lm_eval.models  # noqa: F401 - fills the registry
    from lm_eval.api.registry import get_model

    import leval_harness.backends

    leval_harness.backends.register()
    device = "cuda" if args.device == "cuda" else "cpu"
    return get_model(args.variant)(
        str(args.model), dtype=args.dtype, device=device, max_length=args.max_length
    )


def plain(args: argparse.Namespace) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=args.dtype).eval()
    return model.to(args.device), AutoTokenizer.from_pretrained(args.model)


def run_generate(args: argparse.Namespace) -> dict[str, Any]:
    import torch
    from lm_eval.api.instance import Instance

    documents = prompts(args.data, args.what, args.docs, args.questions)
    least = {"min_new_tokens": args.new_tokens} if args.to_the_end else {}
    if args.variant == "loop":
        model, tokenizer = plain(args)
        start, out = time.perf_counter(), []
        for text in documents:  # as L-Eval's scripts do: every question reads its document again
            ids = tokenizer(text, return_tensors="pt").input_ids.to(args.device)
            with torch.no_grad():
                new = model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=args.new_tokens,
                    do_sample=False,
                    **least,
                )
            out.append(tokenizer.decode(new[0, ids.shape[1] :], skip_special_tokens=True))
        return {"seconds": time.perf_counter() - start, "out": out, "note": f"{len(out)} prompts"}
    lm = harness(args)
    options = {"until": [], "max_gen_toks": args.new_tokens, "do_sample": False, **least}
    requests = [
        Instance("generate_until", {}, (text, dict(options)), index, (args.what, index, 1))
        for index, text in enumerate(documents)
    ]
    start = time.perf_counter()
    out = lm.generate_until(requests)
    seconds = time.perf_counter() - start
    note = f"{len(out)} prompts"
    if args.variant == "hf-long":
        counts, unique = lm.telemetry(), unique_tokens([lm.tok_encode(text) for text in documents])
        note += (
            f", {counts['tokens_prefilled']} tokens prefilled, "
            f"{counts['tokens_prefilled'] / unique:.4f} of the unique, "
            f"{counts['tokens_generated']} generated"
        )
    return {"seconds": seconds, "out": out, "note": note}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("plan", "prefix", "generate"))
    parser.add_argument("data", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--variants", nargs="+", default=["hf-long", "hf", "loop"])
    parser.add_argument("--cache", nargs="+", type=float, default=[1.1, 1.5, 2.5])
    parser.add_argument("--docs", type=int, default=2)
    parser.add_argument("--questions", type=int, help="of each document; all by default")
    parser.add_argument("--new-tokens", type=int, default=16)
    parser.add_argument("--to-the-end", action="store_true", help="no answer ends before that")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--max-length", type=int, default=32768)
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    parser.add_argument("--what", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.variant:
        one(args)
    else:
        commands = {"plan": plan, "prefix": prefix, "generate": generate}
        commands[args.command](args)


if __name__ == "__main__":
    main()
