"""What the parts of the GPU kit share: sizes, models of random weights, a clock, and the record."""

import contextlib
import json
import platform
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Size:
    """How much is measured.

    `model` are sizes of a Llama layout; its weights are random, as speed does not depend on them.
    `engine` are those that differ for vLLM, whose kernels need heads of 64.
    """

    model: dict[str, int]
    engine: dict[str, int]
    lengths: tuple[int, ...]
    questions: int
    new_tokens: int
    text_tokens: int
    train_length: int
    seconds: float


SIZES = {
    "full": Size(
        model={"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
               "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000},
        engine={},
        lengths=(8192, 16384, 32768, 65536, 131072), questions=16, new_tokens=8,
        text_tokens=131072, train_length=32768, seconds=440,
    ),
    "tiny": Size(
        model={"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
               "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320},
        engine={"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1,
                "initializer_range": 0.15},
        lengths=(96, 192), questions=3, new_tokens=2,
        text_tokens=600, train_length=64, seconds=3600,
    ),
}  # fmt: skip


@dataclass
class Part:
    """One part while it runs: what it measured, and how long it may go on."""

    name: str
    size: Size
    device: str
    folder: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def row(self, what: str, **values: Any) -> None:
        """Note a measurement, and show it."""
        self.rows.append({"part": self.name, "what": what, **values})
        print(json.dumps(self.rows[-1]), flush=True)

    def has_time(self, what: str, expected: float = 0.0) -> bool:
        """Whether `expected` more seconds fit; what does not is noted as not run."""
        left = self.size.seconds - (time.monotonic() - self.started)
        if left <= expected:
            self.row(what, note=f"not run: {left:.0f} s were left")
        return left > expected

    def timed(self, run: Callable[[], Any]) -> tuple[float, float, Any]:
        """Seconds, peak GiB of the device's memory (0 on a CPU), the result; None if too big."""
        if self.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
        start = time.perf_counter()
        try:
            result = run()
        except torch.OutOfMemoryError:
            result = None
        if self.device == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        peak = torch.cuda.max_memory_allocated() / 2**30 if self.device == "cuda" else 0.0
        return seconds, peak, result


def about(device: str) -> dict[str, Any]:
    """The machine and the packages."""
    packages = ("leval-harness", "torch", "transformers", "lm_eval", "accelerate")
    with contextlib.suppress(PackageNotFoundError):
        packages = (*packages, "vllm") if version("vllm") else packages
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.processor(),
        "cuda": torch.version.cuda if device == "cuda" else None,
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


def tokenizer() -> Any:
    """One token a byte: made on the spot, so that nothing is downloaded."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {word: at for at, word in enumerate(["<s>", "</s>", *alphabet])}
    inner = Tokenizer(models.BPE(vocab=words, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )


def documentation() -> str:
    """Text that every Python brings along: its language reference."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


def checkpoint(part: Part, kind: str = "llama", **more: Any) -> Path:
    """A checkpoint of random weights in bfloat16, made once; its tokenizer reads bytes."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {**part.size.model, **more}
    folder = part.folder / "models" / f"{kind}-{sizes['hidden_size']}"
    if not (folder / "tokenizer.json").exists():
        config = AutoConfig.for_model(
            kind, max_position_embeddings=max(part.size.lengths),
            bos_token_id=0, eos_token_id=1, pad_token_id=1, **sizes,
        )  # fmt: skip
        torch.manual_seed(0)
        with torch.device(part.device):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model.save_pretrained(folder)
        tokenizer().save_pretrained(folder)
    return folder


def prompts(length: int, questions: int, seed: int = 0) -> list[str]:
    """Prompts of `length` tokens at most: one document, and a question after it."""
    text = documentation()
    start = random.Random(seed).randrange(max(1, len(text) - length))
    document = text[start : start + length - 64].encode("ascii", "replace").decode()
    return [f"{document}\nQuestion {at}: what does paragraph {at} say?" for at in range(questions)]


def ask(lm: Any, documents: list[str], new_tokens: int) -> list[str]:
    """Answers of `new_tokens` tokens at most."""
    from lm_eval.api.instance import Instance

    options = {"until": [], "max_gen_toks": new_tokens, "do_sample": False}
    requests = [
        Instance("generate_until", {}, (text, dict(options)), number, ("gpu", number, 1))
        for number, text in enumerate(documents)
    ]
    return list(lm.generate_until(requests, disable_tqdm=True))


def run_task(
    part: Part, lm: Any, model: Path, name: str, metadata: dict[str, Any]
) -> Callable[[], Any]:
    """What runs a task of running text on two documents; tasks are indexed before, not measured."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    documents = part.folder / "documents"
    documents.mkdir(parents=True, exist_ok=True)
    text = documentation()
    rows = [text[at * part.size.text_tokens :][: part.size.text_tokens] for at in range(2)]
    lines = "".join(json.dumps({"text": row}) + "\n" for row in rows)
    (documents / "govreport.jsonl").write_text(lines)
    settings = {"data_dir": str(documents), "tokenizer": str(model), "pretrained": str(model)}
    manager = TaskManager(metadata={**settings, **metadata})
    return lambda: lm_eval.simple_evaluate(
        model=lm, tasks=[name], task_manager=manager, bootstrap_iters=0
    )


def write(out: Path, rows: list[dict[str, Any]], made: dict[str, Any]) -> str:
    """`gpu.json` and `gpu.md`: what earlier calls measured stays, a part run again is replaced.

    Returns:
        The table of all that was measured, in Markdown.
    """
    file = out / "gpu.json"
    before = json.loads(file.read_text())["rows"] if file.exists() else []
    parts = {row["part"] for row in rows}
    rows = [row for row in before if row["part"] not in parts] + rows
    out.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"about": made, "rows": rows}, indent=1) + "\n")
    table = "\n".join(_table(rows, made))
    (out / "gpu.md").write_text(table + "\n")
    return table


def _table(rows: list[dict[str, Any]], made: dict[str, Any]) -> Iterator[str]:
    yield " · ".join(f"{name} {value}" for name, value in made.items() if value)
    yield "\n| part | what | values |\n| --- | --- | --- |"
    for row in rows:
        values = {name: row[name] for name in row if name not in ("part", "what")}
        shown = ", ".join(
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in values.items()
        )
        yield f"| {row['part']} | {row['what']} | {shown} |"
