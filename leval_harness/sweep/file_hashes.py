"""SHA-256 of files and folders, remembered for large files for as long as they do not change."""

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path

from leval_border.files import file_sha256, read_object, write_json
from leval_harness.checkpoint_files import files_below
from leval_harness.smollm2 import cache_dir

CACHED_ABOVE_BYTES = 1 << 20
"""Below this size hashing is quicker than looking the hash up."""
SETTLED_SECONDS = 2.0
"""A younger file may change again within one tick of its clock, so it is not remembered."""

State = tuple[int, int, int, int, int]
"""Device, inode, size, and times of the last change of content and of anything, in nanoseconds."""

_watched: ContextVar[dict[Path, State] | None] = ContextVar("watched", default=None)


def state(path: Path) -> State:
    """What changes when a file does; its owner cannot set back the last of the times."""
    stat = path.stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


@contextlib.contextmanager
def watching() -> Iterator[dict[Path, State]]:
    """Collect the files that are hashed meanwhile, each with its state before that."""
    seen: dict[Path, State] = {}
    token = _watched.set(seen)
    try:
        yield seen
    finally:
        _watched.reset(token)


def changed(files: Mapping[Path, State]) -> list[str]:
    """The files whose state is no longer the one given, or that are gone."""
    return [
        str(path) for path, before in files.items() if not path.exists() or state(path) != before
    ]


def cached_sha256(path: Path, cache: Path | None = None) -> str:
    """SHA-256 of a file, for a large one remembered by its `state`.

    Weights of tens of gigabytes are read once, not at the start of every sweep and cell.
    """
    before = state(path)
    if (seen := _watched.get()) is not None:
        seen[path] = before
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
