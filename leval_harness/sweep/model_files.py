"""Where a model's files are, what its config says, and what identifies them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from leval_border.files import read_object, user_path
from leval_harness import smollm2
from leval_harness.sweep import ModelNotFoundError
from leval_harness.sweep.config import ROPE_BACKENDS, ModelConfig
from leval_harness.sweep.file_hashes import files_below, folder_hashes
from resonance_vllm.model_config.model_positions import ModelPositions

UNPREPARED = "unprepared"
_ONE_OF_EACH = ("config.json", "adapter_config.json", "tokenizer_config.json")
"""Files of which a checkpoint, an adapter or a tokenizer has one."""

SETTINGS_FILES = (
    "config.json", "generation_config.json", "adapter_config.json", "params.json",
    "quant_config.json", "quantize_config.json", "quantization_config.json",
    "hf_quant_config.json", "*.index.json",
)  # fmt: skip
"""Settings of a model, its quantization and its adapter, and the lists of its weight files."""
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


class ModelFiles(NamedTuple):
    """A model that was found.

    Attributes:
        path: its folder, name on the hub, or name on a server.
        positions: what its config says of positions; None for a served model.
        identity: its part of a cell's identity: `files`, or `hub` and `commit`, or `served` and
            `base_url`.
    """

    path: str
    positions: ModelPositions | None
    identity: Mapping[str, Any]


def find_model(model: ModelConfig, prepare: bool = True) -> ModelFiles:
    """The files of a configured model; with `prepare`, `smollm2` is made if it is not there.

    Raises:
        ModelNotFoundError: there is no such folder, or no such name on the hub.
    """
    folder = user_path(model.path, f"models.{model.name}.path")
    if model.backend not in ROPE_BACKENDS and not folder.is_dir():
        served = {"served": model.path, "base_url": model.args.get("base_url")}
        return ModelFiles(model.path, None, served)
    if model.path == smollm2.NAME:
        if not prepare and not smollm2.is_prepared():
            positions = ModelPositions.of(smollm2.POSITIONS)
            return ModelFiles(model.path, positions, {UNPREPARED: model.path})
        folder = smollm2.prepare()
    identity: dict[str, Any]
    if folder.is_dir():
        path = str(folder.resolve())
        identity = {"files": checkpoint_hashes(Path(path), model.args)}
    elif model.path.startswith((".", "/", "~")) or model.path.count("/") > 1:
        raise ModelNotFoundError(f"models.{model.name}.path: there is no folder {model.path}")
    else:
        commit, snapshot = hub_commit(model.path, model.revision)
        path = str(snapshot or model.path)
        identity = {"hub": model.path, "commit": commit}
    return ModelFiles(path, ModelPositions.of_checkpoint(path), identity)


def checkpoint_hashes(folder: Path, args: Mapping[str, Any]) -> dict[str, str]:
    """Path -> SHA-256 of the files of a checkpoint that transformers and vLLM load.

    Raises:
        ModelNotFoundError: there is no config.json in it.
    """
    if not (folder / "config.json").is_file():
        raise ModelNotFoundError(f"models: {folder} is no checkpoint folder (no config.json in it)")
    return folder_hashes(folder, loaded_files(folder, args))


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
    for pattern in WEIGHT_FILES[:1] if safe and not _LOAD_FORMAT & set(args) else WEIGHT_FILES:
        found |= {each for each in folder.glob(pattern) if not each.name.startswith(TRAINER_FILES)}
    for part in (folder / name for name in names if not Path(name).is_absolute()):
        found |= set(loaded_files(part)) if part.is_dir() else {part}
    return sorted(path for path in found if path.is_file() and not path.name.startswith("."))


def hub_commit(repo: str, revision: str | None) -> tuple[str, Path | None]:
    """The commit that a hub name means, and the folder of its snapshot if it is on this machine.

    Asks the hub, so that a moved branch is noticed; without a connection the snapshot on this
    machine is taken.

    Raises:
        ModelNotFoundError: neither the hub nor the cache has it.
    """
    from huggingface_hub import HfApi, try_to_load_from_cache

    found = (try_to_load_from_cache(repo, name, revision=revision) for name in _ONE_OF_EACH)
    snapshot = next((Path(each).parent for each in found if isinstance(each, str)), None)
    try:
        commit = str(HfApi().model_info(repo, revision=revision).sha)
    except Exception as error:
        if snapshot is not None:
            return snapshot.name, snapshot
        at = f" at revision {revision}" if revision else ""
        raise ModelNotFoundError(
            f"models: '{repo}'{at} is neither a checkpoint folder nor available from the hub "
            f"({type(error).__name__}); give a folder, or a name that `hf download` can fetch"
        ) from error
    return commit, snapshot if snapshot and snapshot.name == commit else None
