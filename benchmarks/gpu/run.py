"""The GPU kit: what only a GPU can tell, in parts of at most eight minutes.

    python benchmarks/gpu/run.py PART [PART ...] [--size full|tiny] [--device cuda] [--out DIR]

Parts: checks, speed, tasks, hybrid, posgen, finetune, and vllm, the only one that needs vLLM. Each
writes into DIR/gpu.json and DIR/gpu.md, beside what other parts wrote; what did not fit into a part's
time is noted as not run. At the end the table of all parts is printed. It needs no network.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from engine import vllm
from kit import SIZES, Part, about, ask, checkpoint, documentation, prompts, run_task, write

TESTS = Path(__file__).resolve().parents[2] / "tests" / "gpu"


def checks(part: Part) -> None:
    """`pytest -m gpu`: tables, answers, memory, telemetry."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", TESTS]
    seconds, _, done = part.timed(
        lambda: subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=part.size.seconds
        )
    )
    said = done.stdout.strip().splitlines()[-1:] or done.stderr.strip().splitlines()[-1:]
    part.row("pytest -m gpu", exit_code=done.returncode, seconds=seconds, said=" ".join(said))
    if done.returncode:
        print(done.stdout[-8000:], file=sys.stderr)


def backend(name: str, part: Part, model: Path, **arguments: Any) -> Any:
    """lm-eval's `hf`, or ours."""
    from lm_eval.models.huggingface import HFLM

    from leval_harness.backends.hf_long import HFLong

    made = {"hf": HFLM, "hf-long": HFLong}[name]
    arguments = {"dtype": "bfloat16", "device": part.device, "batch_size": 1, **arguments}
    return made(pretrained=str(model), **arguments)


def asked_all(
    part: Part, name: str, model: Path, documents: list[str], length: int
) -> tuple[float, float, list[str] | None]:
    """Seconds and peak GiB of a backend for all questions, its loading left aside; its answers."""
    lm = backend(name, part, model, max_length=length)
    ask(lm, documents[:1], 1)  # kernels are chosen, and how prefixes are shared is found
    return part.timed(lambda: ask(lm, documents, part.size.new_tokens))


def compared(part: Part, model: Path, lengths: tuple[int, ...], what: str) -> None:
    """`hf-long` against `hf` on many questions about one document, a length after the other."""
    expected = 0.0
    for length in lengths:
        if not part.has_time(f"{what} {length}", expected):
            continue
        documents = prompts(length - part.size.new_tokens, part.size.questions)
        row: dict[str, Any] = {}
        answers = {}
        spent = 0.0
        for name in ("hf-long", "hf"):
            seconds, peak, answers[name] = asked_all(part, name, model, documents, length)
            row |= {f"{name}_s": seconds, f"{name}_gib": peak}
            spent += seconds
        if None not in answers.values():
            row["same_answers"] = sum(
                a == b for a, b in zip(answers["hf"], answers["hf-long"], strict=True)
            )
            row["faster"] = row["hf_s"] / row["hf-long_s"]
        part.row(f"{what} {length}", questions=len(documents), **row)
        expected = 3 * spent  # the next length is twice this one


def speed(part: Part) -> None:
    """A Llama layout of about a billion parameters, from 8k to 128k tokens."""
    compared(part, checkpoint(part), part.size.lengths, "llama")


def hybrid(part: Part) -> None:
    """Prefixes shared across convolutions and attention (LFM2's layout)."""
    layers = part.size.model["num_hidden_layers"]
    kinds = ["full_attention" if at % 2 else "conv" for at in range(layers)]
    model = checkpoint(part, "lfm2", layer_types=kinds)
    compared(part, model, part.size.lengths[:3], "lfm2")


def tasks(part: Part) -> None:
    """Effective-context and perplexity tasks against bare forward passes over as many tokens."""
    model = checkpoint(part)
    longest = part.size.lengths[min(2, len(part.size.lengths) - 1)]
    lm = backend("hf-long", part, model, max_length=longest)
    for name in ("ppl_govreport", "effective_context_govreport"):
        if not part.has_time(name):
            continue
        before = lm.counts.prefilled
        metadata = {"context_length": longest, "max_length": longest}
        if name.startswith("ppl"):
            metadata |= {"stride": longest // 4}
        else:
            metadata |= {"window": longest // 2}
        seconds, peak, _ = part.timed(run_task(part, lm, model, name, metadata))
        tokens = lm.counts.prefilled - before
        bare, _, _ = part.timed(lambda tokens=tokens: forward(lm.model, tokens, longest))
        part.row(name, tokens=tokens, seconds=seconds, gib=peak, bare_s=bare, ratio=seconds / bare)


def forward(model: Any, tokens: int, length: int) -> None:
    """Bare passes of the model's body over `tokens` tokens, `length` at a time."""
    vocabulary = model.config.get_text_config().vocab_size
    with torch.no_grad():
        while tokens > 0:
            ids = torch.randint(vocabulary, (1, min(tokens, length)), device=model.device)
            model.model(input_ids=ids, use_cache=False)
            tokens -= length


def posgen(part: Part) -> None:
    """Optimiser steps of the paper's presets."""
    from leval_harness.training.posgen_models import batches
    from leval_harness.training.posgen_train import Training
    from leval_harness.training.settings import PosGenRun, Recipe, preset

    for name in ("paper", "paper-t5"):
        recipe = preset(Recipe, name)
        if part.device == "cpu":
            small = recipe.architecture.with_changes(hidden=32, heads=2, feed_forward=64, layers=1)
            recipe = recipe.with_changes(architecture=small, batch_size=4)
        if not part.has_time(name):
            continue
        run = PosGenRun("cot", "resonance_yarn", 0)
        training = Training(recipe, run)
        inputs, labels = next(batches(recipe, run))

        def steps(count: int, training: Any = training, data: Any = (inputs, labels)) -> None:
            for _ in range(count):
                training.learn(*data)

        part.timed(lambda steps=steps: steps(1))
        seconds, peak, _ = part.timed(lambda steps=steps: steps(20))
        part.row(name, step_s=seconds / 20, gib=peak)


def finetune(part: Part) -> None:
    """One step of fine-tuning with Resonance YaRN, all weights, with its memory."""
    from leval_harness.training.finetune import finetune as train
    from leval_harness.training.settings import FineTuneSettings

    model, length = checkpoint(part), part.size.train_length
    text = documentation()
    pieces = [text[at : at + 3 * length] for at in range(0, 12 * length, 3 * length)]
    source = part.folder / "train.jsonl"
    source.write_text("".join(json.dumps({"text": each}) + "\n" for each in pieces))
    settings = FineTuneSettings(
        rope={"rope_type": "resonance_yarn", "factor": 2.0}, sequence_length=length, steps=1,
        held_out=1, gradient_checkpointing=True, save_steps=10, bf16=part.device == "cuda",
    )  # fmt: skip
    out = part.folder / "trained"
    shutil.rmtree(out, ignore_errors=True)  # a finished run is not repeated
    seconds, peak, result = part.timed(lambda: train(str(model), [str(source)], out, settings))
    if result is None:
        part.row(f"one step at {length}", gib=peak, note="out of memory")
    else:
        part.row(f"one step at {length}", seconds=seconds, gib=peak, tokens=result["tokens"])


PARTS: dict[str, Callable[[Part], None]] = {
    part.__name__: part for part in (checks, speed, tasks, hybrid, posgen, finetune, vllm)
}


def main() -> None:
    """Run the parts that were named, one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("parts", nargs="+", choices=list(PARTS))
    parser.add_argument("--size", choices=list(SIZES), default="full")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path("gpu-results"))
    parser.add_argument("--work", type=Path, default=Path("gpu-work"), help="models and documents")
    args = parser.parse_args()
    for name in args.parts:
        part = Part(name, SIZES[args.size], args.device, args.work.resolve())
        PARTS[name](part)
        table = write(args.out, part.rows, {**about(args.device), "size": args.size})
    print(table)


if __name__ == "__main__":
    main()
