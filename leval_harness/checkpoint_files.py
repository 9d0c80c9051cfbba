"""Which files of a folder the libraries load, and so decide what a model answers; their hashes."""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from leval_harness.smollm2 import cache_dir
from resonance_vllm.files import file_sha256, read_object, write_json

SETTINGS_FILES = (
    "config.json", "generation_config.json", "adapter_config.json", "params.json",
    "quant_config.json", "quantize_config.json", "quantization_config.json",
    "hf_quant_config.json", "*.index.json", "adapter_model.*",
)  # fmt: skip
"""Settings of a model, its quantization and its adapter, the adapter, and lists of weight files."""
TOKENIZER_FILES = (
    "tokenizer*.json", "*_tokenizer*.json", "special_tokens_map.json", "added_tokens.json",
    "*vocab*", "merges*", "*.model", "*.model.v*", "*.tiktoken", "*.spm", "*.bpe", "*.codes",
    "*.tokenizer", "dict.*", "encoder.json", "emoji.json", "byte_maps.json", "tekken.json",
    "*processor_config.json", "chat_template*", "*.jinja", "additional_chat_templates/*",
)  # fmt: skip
"""Tokenizers, chat templates and processors, as the classes of transformers and vLLM name them."""
WEIGHT_FILES = ("*.safetensors", "*.bin", "*.pt")
"""In the order in which the libraries look for them."""
TRAINER_FILES = ("optimizer", "scheduler", "scaler", "sampler", "training_args", "rng_state",
                 "random_states")  # fmt: skip
"""What the names of a trainer's own files begin with."""
_SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")
_LOAD_FORMAT = {"load_format", "use_safetensors"}
"""Arguments that choose another format of the weights."""


def loaded_files(folder: Path, args: Mapping[str, Any] | None = None) -> list[Path]:
    """The files of a checkpoint, an adapter or a tokenizer that the libraries load, in order.

    What a trainer or a person keeps beside them is left out. With `trust_remote_code` Python of the
    checkpoint runs, which may read any file: then every file counts.

    Args:
        folder: of the files.
        args: of the model; `subfolder` and `gguf_file` name further files of the folder.
    """
    args = args or {}
    if str(args.get("trust_remote_code", "")).lower() in ("true", "1"):
        return list(files_below(folder))
    found = {each for name in (*SETTINGS_FILES, *TOKENIZER_FILES) for each in folder.glob(name)}
    names = {str(args[key]) for key in ("subfolder", "gguf_file") if args.get(key)}
    for index in folder.glob("*.index.json"):
        shards = (read_object(index) or {}).get("weight_map")
        names |= set(map(str, shards.values())) if isinstance(shards, Mapping) else set()
    # transformers and vLLM prefer safetensors, unless an argument says otherwise
    safe = any((folder / name).is_file() for name in _SAFETENSORS)
    for pattern in WEIGHT_FILES:
        weights = [p for p in folder.glob(pattern) if not p.name.startswith(TRAINER_FILES)]
        found |= set(weights)
        last = safe or (pattern == "*.bin" and weights)  # vLLM reads *.pt where nothing else is
        if last and not _LOAD_FORMAT & set(args):
            break
    for part in (folder / name for name in names if not Path(name).is_absolute()):
        found |= set(loaded_files(part)) if part.is_dir() else {part}
    return sorted(path for path in found if path.is_file() and not path.name.startswith("."))


def files_below(folder: Path) -> Iterator[Path]:
    """Every file of a folder and its subfolders, in order; links are followed.

    Hidden and compiled files are left out, and results that one of our runs keeps in a subfolder.
    """
    waiting, entered = [folder], set[Path]()
    found = []
    while waiting:
        here = waiting.pop()
        if (real := here.resolve()) in entered:
            continue
        entered.add(real)
        names = [path for path in here.iterdir() if not path.name.startswith((".", "__pycache__"))]
        found += [path for path in names if path.is_file()]
        waiting += [path for path in names if path.is_dir() and not os.path.lexists(path / ".lock")]
    yield from sorted(found)


CACHED_ABOVE_BYTES = 1 << 20
"""Below this size hashing is quicker than looking the hash up."""
SETTLED_SECONDS = 2.0
"""A younger file may change again within one tick of its clock, so it is not remembered."""

State = tuple[int, int, int, int, int]
"""Device, inode, size, and times of the last change of content and of anything, in nanoseconds."""


def state(path: Path) -> State:
    """What changes when a file does; its owner cannot set back the last of the times."""
    stat = path.stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def cached_sha256(path: Path, cache: Path | None = None) -> str:
    """SHA-256 of a file, for a large one remembered by its `state`.

    Weights of tens of gigabytes are read once, not at the start of every sweep and cell.
    """
    before = state(path)
    if before[2] < CACHED_ABOVE_BYTES:
        return file_sha256(path)
    cache = cache or cache_dir() / "file_hashes.json"
    known = read_object(cache) or {}
    key = ":".join(map(str, before))
    remembered = known.get(key)
    if isinstance(remembered, str) and len(remembered) == 64:
        return remembered
    content_hash = file_sha256(path)
    if state(path) == before and time.time() - before[4] / 1e9 > SETTLED_SECONDS:
        known[key] = content_hash
        with contextlib.suppress(OSError, ValueError):
            cache.parent.mkdir(parents=True, exist_ok=True)
            write_json(cache, known)
    return content_hash


def folder_hashes(folder: Path, files: Iterable[Path] | None = None) -> dict[str, str]:
    """Path below `folder` -> SHA-256 of `files`, or of every file in it."""
    read = files_below(folder) if files is None else files
    return {path.relative_to(folder).as_posix(): cached_sha256(path) for path in read}


def checkpoint_hashes(folder: Path, args: Mapping[str, Any]) -> dict[str, str]:
    """Path -> SHA-256 of the files of a checkpoint that the libraries load.

    Empty where the folder has no config.json, which every checkpoint has.
    """
    if not (folder / "config.json").is_file():
        return {}
    return folder_hashes(folder, loaded_files(folder, args))
