"""What the precision of the rotation costs: mean NLL of one long document, same weights.

    python benchmarks/rope_precision.py CHECKPOINT DATA/corpora/govreport.jsonl --length 9216

bf16 weights with rotation in bf16 and in float32, against float32 throughout.
"""

import argparse
import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from resonance_vllm import hf
from resonance_vllm.checkpoint.overrides import hf_overrides
from resonance_vllm.checkpoint.positions import PositionConfig

METHODS = ("yarn", "resonance_yarn")
PRECISIONS = ((torch.float32, "model"), (torch.bfloat16, "model"), (torch.bfloat16, "float32"))


def longest_document(path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    return max((json.loads(line)["text"] for line in lines if line), key=len)


@torch.no_grad()
def mean_nll(model: torch.nn.Module, ids: torch.Tensor) -> float:
    """Nats/token, log-softmax in float32, 512 positions at a time."""
    hidden = model.model(ids[:, :-1]).last_hidden_state[0]
    total = 0.0
    for start in range(0, len(hidden), 512):
        logits = model.lm_head(hidden[start : start + 512]).float()
        targets = ids[0, 1 + start : 1 + start + len(logits)]
        total += float(torch.nn.functional.cross_entropy(logits, targets, reduction="sum"))
    return total / len(hidden)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--length", type=int, default=9216)
    parser.add_argument("--factor", type=float, default=2.0)
    args = parser.parse_args()
    hf.register()
    positions = PositionConfig.from_checkpoint(args.checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(args.checkpoint)
    text = longest_document(args.corpus)
    ids = tokenizer(text, return_tensors="pt").input_ids[:, : args.length]
    for method in METHODS:
        rope = positions.complete({"rope_type": method, "factor": args.factor})
        overrides = hf_overrides(rope, positions)
        reference = None
        for dtype, precision in PRECISIONS:
            model = AutoModelForCausalLM.from_pretrained(
                args.checkpoint, dtype=dtype, rope_precision=precision, **overrides
            )
            nll = mean_nll(model, ids)
            reference = nll if reference is None else reference
            name = str(dtype).removeprefix("torch.")
            rotation = "float32" if precision == "float32" else name
            print(
                f"{method:15} weights {name:9} rotation {rotation:9} {ids.shape[1]} tokens: "
                f"{nll:.5f} nats/token, {nll - reference:+.5f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
