"""Where a model's files are, what its config says, and what identifies them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from leval_border.files import user_path
from leval_harness import smollm2
from leval_harness.checkpoint_files import folder_hashes, loaded_files
from leval_harness.sweep import ModelNotFoundError
from leval_harness.sweep.config import ROPE_BACKENDS, ModelConfig
from resonance_vllm.model_config.model_positions import ModelPositions

UNPREPARED = "unprepared"
_ONE_OF_EACH = ("config.json", "adapter_config.json", "tokenizer_config.json")
"""Files of which a checkpoint, an adapter or a tokenizer has one."""


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
