"""What the product gives now where models are read or trained: `current_<part>()` for each part.

As in `frozen_current.py`. On the CPU, in float32; vLLM runs in processes of its own.
"""

import csv
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from golden_access import HERE as GOLDEN
from golden_access import SAMPLE, TOKENIZER

import leval_harness as lh
from leval_harness.diff.compare import save_reference
from leval_harness.diff.side import Side
from leval_harness.models.prepare import prepare

Row = dict[str, Any]
Rows = dict[str, Row]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `leval-harness ARGUMENTS`; the test has a faster way where vLLM has no part in it."""
    words = [sys.executable, "-m", "leval_harness", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def command(*arguments: object) -> str:
    """Standard output of `leval-harness ARGUMENTS`."""
    ran = run(*arguments)
    assert ran.returncode == 0, f"{arguments}: {ran.returncode}\n{ran.stderr[-3000:]}"
    return ran.stdout


def documents(folder: Path) -> Path:
    """A file of four documents of some 3,000 tokens, of the frozen sample."""
    file = folder / "documents.jsonl"
    names = ("coursera", "quality", "sci_fi", "tpo")
    first = (json.loads((SAMPLE / f"{name}.jsonl").open().readline()) for name in names)
    file.write_text("".join(json.dumps({"text": each["input"]}) + "\n" for each in first))
    return file


# ------------------------------------------------------------------ PosGen and training

SUBTASKS = ("recursive", "cot", "semi_recursive")


def current_posgen_data() -> Rows:
    """Hashes of the sequences of each sub-task, and the first of each split to read."""
    from leval_tasks.common.metadata import PosGenSettings
    from leval_tasks.posgen.sequences import splits

    rows: Rows = {}
    for subtask in SUBTASKS:
        for policy in ("random", "cycled"):
            for seed in (0, 5):
                made = splits(PosGenSettings(subtask=subtask, seed_policy=policy, seed=seed))
                for split in ("train", "validation", "test"):
                    array = getattr(made, split).astype("<i8")
                    rows[f"{subtask}, {policy}, seed {seed}, {split}"] = {
                        "shape": list(array.shape),
                        "sha256": hashlib.sha256(array.tobytes()).hexdigest(),
                        "first": array[0].tolist(),
                    }
    return rows


SMALL = (
    "--train-sequences", 16, "--batch-size", 16, "--epochs", 20, "--evaluate-every", 1,
    "--train-length", 12, "--length", 24, "--hidden", 32, "--heads", 2, "--head-dim", 16,
    "--feed-forward", 64, "--layers", 2, "--seed", 0,
)  # fmt: skip
TRAININGS = {
    "paper": ("--preset", "paper"),
    "paper-t5": ("--preset", "paper-t5"),
    "paper-t5, no dropout": ("--preset", "paper-t5", "--dropout", 0),
    "code": ("--preset", "code"),
    "code, no dropout": ("--preset", "code", "--dropout", 0),
}


def current_posgen_training() -> Rows:
    """Losses of the first 20 steps of a small form of each preset."""
    rows: Rows = {}
    with tempfile.TemporaryDirectory() as out:
        for at, (name, flags) in enumerate(TRAININGS.items()):
            encodings = ("--encoding", "rope", "--encoding", "resonance_yarn")
            asked = (*flags, *SMALL, *encodings, "--subtask", "cot", "--out", f"{out}/{at}")
            command("posgen", "train", *asked, "--json")
            for file in sorted(Path(out, str(at)).glob("cot/*/seed-0/metrics.csv")):
                steps = read_csv(file)
                rows[f"{name}, {file.parents[1].name}"] = {
                    column: [float(step[column]) for step in steps]
                    for column in ("train_loss", "validation_loss")
                }
    return rows


FINE_TUNING = (
    "--rope", "resonance_yarn:factor=2", "--sequence-length", 64, "--steps", 20, "--batch-size", 2,
    "--learning-rate", 1e-3, "--held-out", 1, "--seed", 0, "--no-bf16",
)  # fmt: skip


def current_finetuning() -> Rows:
    """Losses of 20 steps on a Llama of random weights, all of them trained and by LoRA."""
    rows: Rows = {}
    with tempfile.TemporaryDirectory() as folder:
        model, file = tiny_llama(Path(folder) / "model"), documents(Path(folder))
        for name, flags in {"all weights": (), "LoRA": ("--lora-rank", 4)}.items():
            out = Path(folder) / name
            command("finetune", model, "--data", file, "--out", out, *FINE_TUNING, *flags)
            rows[name] = {"loss": [float(row["loss"]) for row in read_csv(out / "metrics.csv")]}
    return rows


def tiny_llama(folder: Path) -> Path:
    """Two layers of random weights, with the frozen tokenizer."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def read_csv(file: Path) -> list[dict[str, str]]:
    """Rows of a CSV file."""
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


# ------------------------------------------------------------------ losses, answers, diff

ROPES = {"unmodified": None, "resonance_yarn": "resonance_yarn:factor=2"}
READ = {"lengths": 384, "count": 4}


def current_token_losses() -> Rows:
    """Losses of each token of four documents, by both backends of transformers."""
    return losses_by("hf") | losses_by("hf-long")


def current_token_losses_in_vllm() -> Rows:
    """The same in vLLM."""
    return losses_by("vllm", ",enforce_eager=true")


def losses_by(backend: str, arguments: str = "") -> Rows:
    """A row for each text and RoPE method: nats/token, from the second token on."""
    rows: Rows = {}
    setup = f"{backend}:smollm2,dtype=float32{arguments}"
    with tempfile.TemporaryDirectory() as folder:
        read = {**READ, "documents": str(documents(Path(folder))), "isolated": backend == "vllm"}
        for name, rope in ROPES.items():
            file = Path(folder) / f"{name}.npz"
            save_reference(f"{setup},rope={rope}" if rope else setup, file, **read)
            for text, losses in saved_losses(file):
                rows[f"{backend}, {name}, {text}"] = {"losses": losses}
    return dict(sorted(rows.items()))


def saved_losses(file: Path) -> Iterator[tuple[str, list[float]]]:
    """Names of the documents that `diff --save` wrote, and the losses of their tokens."""
    saved = Side.load(file)
    for text, logprob in zip(saved.documents, saved.logprobs, strict=True):
        yield text.name, (-logprob).astype(float).round(6).tolist()


ASKED = ("leval_closed_coursera", "leval_closed_quality", "leval_closed_toefl")
METADATA = {"data_dir": str(GOLDEN / "runs" / "data")}


def current_answers() -> Rows:
    """Greedy answers to twelve questions about short documents, and their scores."""
    return answers_by("hf") | answers_by("hf-long")


def current_answers_in_vllm() -> Rows:
    """The same in vLLM."""
    return answers_by("vllm", ",enforce_eager=True")


def answers_by(backend: str, arguments: str = "") -> Rows:
    """A row for each question, as lm-eval's own files have it."""
    rows: Rows = {}
    with tempfile.TemporaryDirectory() as out:
        command(
            "lm-eval", "run", "--model", backend, "--tasks", ",".join(ASKED), "--log_samples",
            "--model_args", f"pretrained={prepare('smollm2')},dtype=float32,max_length=1024{arguments}",
            "--metadata", json.dumps(METADATA), "--gen_kwargs", "max_gen_toks=16",
            "--output_path", out,
        )  # fmt: skip
        for task in ASKED:
            (file,) = Path(out).rglob(f"samples_{task}_*.jsonl")
            for line in file.read_text(encoding="utf-8").splitlines():
                sample = json.loads(line)
                rows[f"{backend}, {task}, {sample['doc_id']}"] = {
                    "answer": sample["resps"][0][0],
                    "exact_match": sample["exact_match"],
                }
    return rows


OF_ALL = ("loss_a", "loss_b")
OF_BINS = ("start", "end", "difference", "low", "high")


def current_diff() -> Rows:
    """A `diff` of SmolLM2 unmodified and under YaRN: losses, differences by position, verdict."""
    setup = "hf:smollm2,dtype=float32"
    with tempfile.TemporaryDirectory() as folder:
        read = {**READ, "documents": str(documents(Path(folder))), "isolated": False}
        found = lh.diff(setup, f"{setup},rope=yarn:factor=2", **read).as_json()
    name = f"{found['length']} tokens"
    rows: Rows = {"diff": {"verdict": found["verdict"], "exit_code": found["exit_code"]}}
    rows[name] = {each: found[each] for each in (*OF_ALL, "identical")}
    rows[name]["documents"] = len(found["documents"])
    bins = {f"from {each['start']} on": each for each in found["bins"]}
    return rows | {f"{name}, {n}": {k: each[k] for k in OF_BINS} for n, each in bins.items()}
