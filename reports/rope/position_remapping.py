"""What position remapping cost beside plain RoPE: reading a text through hf-long, and decoding after it.

    python benchmarks/position_remapping.py CHECKPOINT DATA/corpora/pg19.jsonl --layers 4

Each repetition runs every method in turn, and the ratio to plain RoPE is taken within it. `default`
is plain RoPE on the same backend; `sdpa` is transformers' own attention in one forward pass. Times
are CPU seconds of the process, which other processes on the machine hardly change. The layers of a
model are alike, so a few of them give the ratio.
"""

import argparse
import gc
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from leval_harness.backends.forward import Head
from leval_harness.backends.reading import Reader
from resonance_vllm import hf
from resonance_vllm.checkpoint.overrides import hf_overrides
from resonance_vllm.checkpoint.positions import PositionConfig

METHODS = ("default", "self_extend", "dual_chunk")
STEPS = 8


def longest_document(path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    return max((json.loads(line)["text"] for line in lines if line), key=len)


def load(checkpoint: str, method: str, factor: float, dtype: str, layers: int | None) -> Any:
    positions = PositionConfig.from_checkpoint(checkpoint)
    given = {"rope_type": method, **({} if method == "default" else {"factor": factor})}
    overrides = hf_overrides(positions.complete(given), positions)
    if layers is not None:
        overrides["num_hidden_layers"] = layers
    kind = getattr(torch, dtype)
    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=kind, **overrides).eval()


@torch.no_grad()
def through_hf_long(model: Any, ids: list[int], chunk: int) -> tuple[float, float]:
    """Seconds of reading, and of a decoding step after it."""
    reader = Reader(Head(model), "copied", chunk)
    start = time.process_time()
    reader.read(ids)
    read = time.process_time() - start
    start = time.process_time()
    for at in range(STEPS):
        reader.read([*ids, *ids[: at + 1]])
    return read, (time.process_time() - start) / STEPS


@torch.no_grad()
def by_transformers(model: Any, ids: list[int], chunk: int) -> tuple[float, float]:
    """The same with the model's own attention function and cache."""
    past, decoder = DynamicCache(config=model.config), model.get_decoder()
    start = time.process_time()
    decoder(torch.tensor([ids]), past_key_values=past, use_cache=True)
    read = time.process_time() - start
    start = time.process_time()
    for token in ids[:STEPS]:
        decoder(torch.tensor([[token]]), past_key_values=past, use_cache=True)
    return read, (time.process_time() - start) / STEPS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--length", type=int, default=12288)
    parser.add_argument("--factor", type=float, default=1.5)
    parser.add_argument("--chunk", type=int, default=2048)
    parser.add_argument("--layers", type=int, help="of the model, else all")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--method", action="append", help=f"as often as wanted; else {METHODS}")
    args = parser.parse_args()
    hf.register()
    text = longest_document(args.corpus)[: 8 * args.length]
    ids = AutoTokenizer.from_pretrained(args.checkpoint)(text).input_ids[: args.length]
    names = ["sdpa", *(args.method or METHODS)]
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for _ in range(args.repetitions):
        for name in names:
            method = "default" if name == "sdpa" else name
            model = load(args.checkpoint, method, args.factor, args.dtype, args.layers)
            run = by_transformers if name == "sdpa" else through_hf_long
            run(model, ids[:256], 128)
            times[name].append(run(model, ids, args.chunk))
            print(name, *(f"{each:.3f}" for each in times[name][-1]), flush=True)
            del model
            gc.collect()
    print(f"{len(ids)} tokens, {torch.get_num_threads()} threads, {args.dtype}")
    for name in names:
        row = []
        for which in (0, 1):
            own = [each[which] for each in times[name]]
            ratios = [a / b[which] for a, b in zip(own, times["default"], strict=True)]
            row.append(f"{statistics.median(own):.3f} s ({statistics.median(ratios):.2f})")
        print(f"{name:12} reading {row[0]:16} step {row[1]}", flush=True)


if __name__ == "__main__":
    main()
