"""Which files of a folder the libraries load, and so decide what a model answers; their hashes."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from resonance_vllm.files import file_sha256

SETTINGS_FILES = (
    "config.json", "generation_config.json", "adapter_config.json", "params.json",
    "*quant*config.json", "*.index.json",
)  # fmt: skip
"""Settings of a model, its quantization and its adapter, and lists of weight files."""
TOKENIZER_FILES = (
    "tokenizer*.json", "*_tokenizer*.json", "special_tokens_map.json", "added_tokens.json",
    "*vocab*", "merges*", "*.model", "*.model.v*", "*.tiktoken", "*.spm", "*.bpe", "tekken.json",
    "*processor_config.json", "chat_template*", "*.jinja", "additional_chat_templates/*",
)  # fmt: skip
WEIGHT_FILES = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
TRAINER_FILES = ("optimizer", "scheduler", "scaler", "sampler", "training_args", "rng_state",
                 "random_states", "trainer_state")  # fmt: skip
"""What the names of a trainer's own files begin with."""
END_BYTES = 1 << 20


def loaded_files(folder: Path) -> list[Path]:
    """The files of a checkpoint, an adapter or a tokenizer that the libraries load, in order.

    What a trainer or a person keeps beside them is left out. Python of the checkpoint counts: it
    runs with `trust_remote_code`.
    """
    patterns = (*SETTINGS_FILES, *TOKENIZER_FILES, *WEIGHT_FILES, "*.py")
    found = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    return sorted(path for path in found if not path.name.startswith((".", *TRAINER_FILES)))


def digest(path: Path) -> str:
    """SHA-256 of a file; of weights that of their size, first and last megabyte.

    Weights of a hundred gigabytes are thus known in milliseconds, on every machine of a sweep.
    """
    if not any(path.match(pattern) for pattern in WEIGHT_FILES):
        return file_sha256(path)
    size = path.stat().st_size
    hashed = hashlib.sha256(f"{size} ".encode())
    with path.open("rb") as handle:
        hashed.update(handle.read(END_BYTES))
        handle.seek(max(0, size - END_BYTES))
        hashed.update(handle.read(END_BYTES))
    return hashed.hexdigest()


def checkpoint_digests(folder: Path, args: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Path below a folder -> digest of the files that the libraries load.

    Args:
        folder: of a checkpoint, an adapter or a tokenizer.
        args: of the model; `subfolder` and `gguf_file` name further files of the folder.
    """
    named = [str((args or {}).get(key) or "") for key in ("subfolder", "gguf_file")]
    places = [folder, *(folder / name for name in named if name and (folder / name).is_dir())]
    files = [path for place in places for path in loaded_files(place)]
    files += [folder / name for name in named if name and (folder / name).is_file()]
    return {path.relative_to(folder).as_posix(): digest(path) for path in files}
