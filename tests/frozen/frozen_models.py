"""Ask the product for numbers where models are read or trained: named rows of values.

On the CPU, in float32. `run` is a function that runs `leval-harness ARGUMENTS`.
"""

import csv
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from golden_access import HERE as GOLDEN
from golden_access import SAMPLE, TOKENIZER

Row = dict[str, Any]
Rows = dict[str, Row]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def run_command(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `leval-harness ARGUMENTS` in a new process."""
    words = [sys.executable, "-m", "leval_harness", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def output_of(ran: subprocess.CompletedProcess[str]) -> str:
    """Return the standard output of a command that must have succeeded."""
    assert ran.returncode == 0, f"{ran.args}: {ran.returncode}\n{ran.stderr[-3000:]}"
    return ran.stdout


def write_documents(folder: Path) -> Path:
    """Write a file of four documents of some 3,000 tokens, taken from the golden sample."""
    file = folder / "documents.jsonl"
    names = ("coursera", "quality", "sci_fi", "tpo")
    first_rows = (json.loads((SAMPLE / f"{name}.jsonl").open().readline()) for name in names)
    file.write_text("".join(json.dumps({"text": row["input"]}) + "\n" for row in first_rows))
    return file


# ------------------------------------------------------------------ PosGen and fine-tuning

SUBTASKS = ("recursive", "cot", "semi_recursive")


def posgen_sequences() -> Rows:
    """Return hashes of the sequences of each sub-task, and the first sequence of each split."""
    from leval_tasks.common.metadata import PosGenSettings
    from leval_tasks.posgen.sequences import splits

    rows: Rows = {}
    for subtask in SUBTASKS:
        for policy in ("random", "cycled"):
            for seed in (0, 5):
                settings = PosGenSettings(subtask=subtask, seed_policy=policy, seed=seed)
                sequences = splits(settings)
                for split in ("train", "validation", "test"):
                    array = getattr(sequences, split).astype("<i8")
                    rows[f"{subtask}, {policy}, seed {seed}, {split}"] = {
                        "shape": list(array.shape),
                        "sha256": hashlib.sha256(array.tobytes()).hexdigest(),
                        "first": ",".join(map(str, array[0].tolist())),
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


def posgen_training(run: Run) -> Rows:
    """Return the losses of the first 20 steps of a small form of each preset."""
    rows: Rows = {}
    encodings = ("--encoding", "rope", "--encoding", "resonance_yarn")
    with tempfile.TemporaryDirectory() as folder:
        for name, preset in TRAININGS.items():
            out = Path(folder) / name.replace(", ", "-").replace(" ", "-")
            flags = (*preset, *SMALL, *encodings, "--subtask", "cot", "--out", out)
            output_of(run("posgen", "train", *flags, "--json"))
            for file in sorted(out.glob("cot/*/seed-0/metrics.csv")):
                encoding = file.parents[1].name
                rows[f"{name}, {encoding}"] = {
                    column: [float(step[column]) for step in read_csv(file)]
                    for column in ("train_loss", "validation_loss")
                }
    return rows


FINE_TUNING = (
    "--rope", "resonance_yarn:factor=2", "--sequence-length", 64, "--steps", 20, "--batch-size", 2,
    "--learning-rate", 1e-3, "--held-out", 1, "--seed", 0, "--no-bf16",
)  # fmt: skip


def finetuning(run: Run) -> Rows:
    """Return the losses of 20 steps on a Llama of random weights: all weights, and LoRA."""
    rows: Rows = {}
    with tempfile.TemporaryDirectory() as folder:
        model = save_tiny_llama(Path(folder) / "model")
        documents = write_documents(Path(folder))
        for name, flags in {"all weights": (), "LoRA": ("--lora-rank", 4)}.items():
            out = Path(folder) / name
            settings = (*FINE_TUNING, *flags)
            output_of(run("finetune", model, "--data", documents, "--out", out, *settings))
            rows[name] = {"loss": [float(row["loss"]) for row in read_csv(out / "metrics.csv")]}
    return rows


def save_tiny_llama(folder: Path) -> Path:
    """Save two layers of random weights, with the golden tokenizer."""
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
    """Return the rows of a CSV file."""
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


# ------------------------------------------------------------------ losses, answers, diff

ROPES = {"unmodified": None, "resonance_yarn": "resonance_yarn:factor=2"}
READ = {"length": 384, "count": 4}


def token_losses(backend: str, arguments: str = "") -> Rows:
    """Return the losses of each token of four documents under two methods, in nats."""
    from leval_harness.diff.compare import save_reference

    rows: Rows = {}
    setup = f"{backend}:smollm2,dtype=float32{arguments}"
    with tempfile.TemporaryDirectory() as folder:
        documents = str(write_documents(Path(folder)))
        for name, rope in ROPES.items():
            file = Path(folder) / f"{name}.npz"
            with_rope = f"{setup},rope={rope}" if rope else setup
            isolated = backend == "vllm"
            save_reference(with_rope, file, documents=documents, isolated=isolated, **READ)
            for document, losses in saved_losses(file):
                rows[f"{backend}, {name}, {document}"] = {"losses": losses}
    return dict(sorted(rows.items()))


def saved_losses(file: Path) -> Iterator[tuple[str, list[float]]]:
    """Yield the documents that `diff --save` wrote, and the losses of their tokens."""
    from leval_harness.diff.side import Side

    saved = Side.load(file)
    for document, logprobs in zip(saved.documents, saved.logprobs, strict=True):
        yield document.name, (-logprobs).astype(float).round(6).tolist()


ANSWERED = ("leval_closed_coursera", "leval_closed_quality", "leval_closed_toefl")
METADATA = {"data_dir": str(GOLDEN / "runs" / "data")}


def answers(run: Run, backend: str, arguments: str = "") -> Rows:
    """Return greedy answers to twelve questions about short documents, and their scores."""
    from leval_harness.models.prepare import prepare

    rows: Rows = {}
    with tempfile.TemporaryDirectory() as out:
        ran = run(
            "lm-eval", "run", "--model", backend, "--tasks", ",".join(ANSWERED), "--log_samples",
            "--model_args", f"pretrained={prepare('smollm2')},dtype=float32,max_length=1024{arguments}",
            "--metadata", json.dumps(METADATA), "--gen_kwargs", "max_gen_toks=16",
            "--output_path", out,
        )  # fmt: skip
        output_of(ran)
        for task in ANSWERED:
            (file,) = Path(out).rglob(f"samples_{task}_*.jsonl")
            for line in file.read_text(encoding="utf-8").splitlines():
                sample = json.loads(line)
                rows[f"{backend}, {task}, {sample['doc_id']}"] = {
                    "answer": sample["resps"][0][0],
                    "exact_match": float(sample["exact_match"]),
                }
    return rows


BIN_VALUES = ("start", "end", "difference", "low", "high")


def diff_of_yarn() -> Rows:
    """Return the `diff` of SmolLM2 unmodified and under YaRN: losses, differences, verdict."""
    import leval_harness as lh

    setup = "hf:smollm2,dtype=float32"
    with tempfile.TemporaryDirectory() as folder:
        documents = str(write_documents(Path(folder)))
        result = lh.diff(
            setup, f"{setup},rope=yarn:factor=2", documents=documents, isolated=False, **READ
        ).as_json()
    rows: Rows = {
        "verdict": {name: result[name] for name in ("verdict", "exit_code")},
        "all tokens": {name: result[name] for name in ("loss_a", "loss_b", "identical")},
    }
    for bin_ in result["bins"]:
        rows[f"from {bin_['start']} on"] = {name: bin_[name] for name in BIN_VALUES}
    return rows
