"""What commands read: one of each kind of thing, as it stands before an input changes one of it."""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

TESTS = Path(__file__).parents[1]
CONFIGS = TESTS.parent / "harness_configs"
GOLDEN = TESTS / "golden"
EFFECTIVE = TESTS / "leaderboard" / "effective"

SWEEPS = ("every_setting", "all_methods", "perplexity_curve", "methods_smollm2", "ruler")
EVERY_SETTING = """
name: sweep
include: ../methods/seven.yaml
models:
  SmolLM2-135M:
    name: Small
    path: model
    backend: hf-long
    revision: main
    dtype: float32
    args: {trust_remote_code: false}
    apply_chat_template: true
    batch_size: 2
    device: cpu
    methods: [RoPE, yarn]
    context_lengths: [64]
    tokens_per_second: 450
    resources: {num_cpus: 1}
methods:
  RoPE: null
  yarn: {rope_type: yarn, factor: 2.0}
baseline: RoPE
rope_precision: model
context_lengths: [64, 128]
metadata: {data_dir: texts, num_docs: 1}
gen_kwargs: {max_gen_toks: 8, do_sample: false, until: ["\\n"]}
tasks:
  - ppl_pg19
  - tasks: [leval_closed_gsm, leval_closed_quality]
    metadata: {data_dir: data, own_data: true}
    task_gen_kwargs: {leval_closed_gsm: {max_gen_toks: 4}}
    limit: 1
  - tasks: effective_context_pg19
    context_lengths: [64]
    metadata: {window: 32}
limit: 2
num_fewshot: 0
seed: 1
timeout: 60
jobs: 2
confirm_run_unsafe_code: false
"""
# argument or option of a command -> kind of thing on disk that it names
FILES = {
    "results": "results", "folders": "posgen", "folder": "trained", "predictions": "predictions",
    "model": "model", "checkpoint": "model", "config": "config", "data_dir": "data",
    "sources": "texts",
}  # fmt: skip


@dataclass
class World:
    """Files that commands can read; `restore` after each input makes them again what they were."""

    root: Path
    kept: dict[str, tuple[bytes, tuple[int, ...]]] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)

    def fill(self, run: Callable[[Sequence[str]], None]) -> None:
        """Lay out one of each kind; `run` trains what commands go on with."""
        shutil.copytree(GOLDEN / "results", self.root / "results")
        shutil.copytree(TESTS / "leaderboard" / "foreign", self.root / "results" / "foreign")
        shutil.copytree(EFFECTIVE, self.root / "results" / "effective")
        shutil.copytree(GOLDEN / "predictions", self.root / "predictions")
        shutil.copytree(GOLDEN / "sample", self.root / "data")
        shutil.copytree(CONFIGS, self.root / "configs", ignore=shutil.ignore_patterns("*.py*"))
        (self.root / "configs/sweeps/every_setting.yaml").write_text(EVERY_SETTING)
        (self.root / "texts").mkdir()
        texts = [f"Chapter {n}. " + f"The {n} ships sailed home. " * 60 for n in range(4)]
        lines = [json.dumps({"text": text}) + "\n" for text in texts]
        (self.root / "texts/pg19.jsonl").write_text("".join(lines))
        (self.root / "texts/notes.txt").write_text("A note on the weather at sea. " * 100)
        for line in TRAININGS.values():
            run(line)
        files, self.folders = self._now()
        self.kept = {path: (Path(path).read_bytes(), _seen(path)) for path in sorted(files)}

    def _now(self) -> tuple[set[str], set[str]]:
        """Everything that stands there: files, with links to whatever, and folders."""
        files: set[str] = set()
        folders: set[str] = set()
        for root, below, names in os.walk(self.root):
            linked = {name for name in below if Path(root, name).is_symlink()}
            files |= {f"{root}/{name}" for name in (*names, *linked)}
            folders |= {f"{root}/{name}" for name in below if name not in linked}
        return files, folders

    def restore(self) -> None:
        """Undo what an input or a command changed."""
        files, folders = self._now()
        for path in files - set(self.kept):
            Path(path).unlink()
        for path in folders - self.folders:
            shutil.rmtree(path, ignore_errors=True)
        for path, (content, seen) in self.kept.items():
            if path not in files or _seen(path) != seen:
                Path(path).unlink(missing_ok=True)
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                Path(path).write_bytes(content)
                self.kept[path] = (content, _seen(path))

    @cached_property
    def kinds(self) -> dict[str, list[Path]]:
        """Changeable files by what reads them."""

        def below(folder: str, *ends: str) -> list[Path]:
            found = [Path(each) for each in self.kept if each.endswith(ends)]
            return [each for each in found if each.is_relative_to(self.root / folder)
                    and not each.name.startswith(".")]  # fmt: skip

        sweeps = [p for p in below("configs", ".yaml") if p.stem in (*SWEEPS, "smollm2", "seven")]
        mine = [path for path in sweeps if path.stem == "every_setting"]
        return {
            "results": below("results", ".json", ".jsonl", ".csv", ".txt"),
            "posgen": below("results/posgen_train", ".json", ".csv"),
            "predictions": below("predictions", ".jsonl"),
            "model": below("model", ".json", ".jinja", ".safetensors"),
            "data": below("data", ".jsonl"),
            "texts": below("texts", ".jsonl", ".txt"),
            "config": sweeps + len(sweeps) * mine,
            "trained": below("trained", ".json", ".csv", ".safetensors"),
            "tuned": below("tuned", ".json", ".csv", ".jsonl", ".safetensors"),
        }

    def names(self, kind: str, changed: Path | None) -> list[str]:
        """How a command may be told of a thing: the changed file, or folders that it stands in."""
        if changed is None:
            return DEFAULTS.get(kind, [kind])
        inside = changed.relative_to(self.root)
        if kind == "results":
            return ["/".join(inside.parts[:2]), "/".join(inside.parts[:-1])]
        if kind == "posgen":
            return ["results/posgen_train"]
        if kind == "trained":
            return ["trained", str(inside.parent)]
        if kind == "config" and inside.parts[1] != "sweeps":
            return ["configs/sweeps/all_methods.yaml"]
        return [str(inside)] if kind in ("predictions", "config") else [kind]


DEFAULTS = {
    "results": [
        f"results/{name}" for name in ("sweep", "lm_eval", "perplexity", "effective", "posgen")
    ],
    "posgen": ["results/posgen_train", "trained"],
    "predictions": ["predictions/gsm.jsonl"],
    "config": ["quickstart", *(f"configs/sweeps/{name}.yaml" for name in SWEEPS)],
    "data": ["data", "texts", "sample"],
    "trained": ["trained", "trained/recursive/rope/seed-0", "results/posgen_train"],
    "texts": ["texts", "texts/pg19.jsonl", "texts/notes.txt"],
}
TRAIN = ("--epochs=1", "--train-sequences=8", "--stack=1", "--jobs=1", "--device=cpu")
TUNE = ("--steps=1", "--sequence-length=32", "--held-out=1")
TRAININGS = {
    "trained": ("posgen", "train", "--out=trained", "--subtask=recursive", "--encoding=rope",
                "--encoding=yarn", "--seed=0", "--train-length=8", "--length=16", "--layers=1",
                "--hidden=16", "--heads=2", "--feed-forward=16", *TRAIN),
    "tuned": ("finetune", "model", "--data=texts", "--out=tuned", "--rope=yarn:factor=2", *TUNE),
}  # fmt: skip
"""Folders of trainings, and the commands that make them, or go on with what they find there."""


def _seen(path: str) -> tuple[int, ...]:
    """What tells that a file was written or put in another's place."""
    status = os.lstat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode


PLACES = ("gone", "folder", "circle", "outside", "endless", "strange", "strange folder")
"""What may stand in a file's place, or how it or its folder may be called."""


def put(path: Path, content: bytes | str) -> None:
    """Change a file: its content, or one of `PLACES`."""
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content.startswith("strange"):
        path = path.parent if content.endswith("folder") else path
        path.rename(path.with_name(f"\x1b[31m\u202e{path.stem[:40]}\n\udcff{path.suffix}"))
    else:
        path.unlink()
    if content == "folder":
        path.mkdir()
    elif content == "circle":
        path.symlink_to(path.name)
    elif content in ("outside", "endless"):
        path.symlink_to("/etc/hostname" if content == "outside" else "/dev/zero")
