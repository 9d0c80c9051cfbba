"""The files of one cell's folder: written whole or not at all, believed only when their hash fits.

cell.json      the request, with the identity whose hash is the folder's name
results_*.json, samples_<task>_*.jsonl   lm-eval's own
log.txt        everything the cell's process printed
rope_features.json   wavelengths and feature gaps, for the figures
failed.json    why the last attempt ended without results
done.json      written last: the results' hashes; without it a cell is not done
"""

import errno
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leval_leaderboard.identity import cell_id, file_sha256

SCHEMA_VERSION = 1
CELL, DONE, FAILED, LOG = "cell.json", "done.json", "failed.json", "log.txt"
FEATURES = "rope_features.json"
PARTIAL = "partial"
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON so that a reader sees the old file or the whole new one, also after a power cut.

    Raises:
        OSError: the disk is full or the folder cannot be written; no temporary file stays behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as handle:
            json.dump(content, handle, indent=2, ensure_ascii=False, allow_nan=False)
            handle.write("\n")
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Make renames in a folder last through a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object from a file; None if there is none, or it is cut short or something else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def why_not_done(folder: Path, expected_id: str) -> str | None:
    """None if the folder holds the finished cell `expected_id`, else what is wrong with it.

    Everything named by the marker must be there with its hash, and the recorded identity must hash
    to the cell's id.
    """
    if not (folder / DONE).exists():
        return "not run yet" if not (folder / FAILED).exists() else "failed"
    done, cell = read_json(folder / DONE), read_json(folder / CELL)
    if done is None or cell is None:
        return f"{DONE if done is None else CELL} is not whole"
    if done.get("schema_version") != SCHEMA_VERSION or done.get("cell_id") != expected_id:
        return f"{DONE} belongs to another cell or schema"
    try:
        if cell_id(cell["identity"]) != expected_id:
            return f"{CELL} does not hash to the cell's id"
    except (KeyError, TypeError, ValueError):
        return f"{CELL} is not whole"
    files = done.get("files")
    if not isinstance(files, dict) or not files:
        return f"{DONE} names no files"
    for name, expected in files.items():
        path = folder / str(name)
        if Path(name).name != name or not path.is_file():
            return f"{name} is missing"
        if file_sha256(path) != expected:
            return f"{name} was altered after it was written"
    return None


def clear_attempt(folder: Path) -> None:
    """Remove what an unfinished or corrupt attempt left, marker first, so that nothing mixes."""
    (folder / DONE).unlink(missing_ok=True)
    for path in folder.iterdir():
        if path.name.startswith(PARTIAL) and path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name.startswith((".done.json.", ".cell.json.", ".failed.json.")) or (
            path.name.startswith(("results_", "samples_", FEATURES))
            and path.suffix in (".json", ".jsonl")
        ):
            path.unlink()


def publish(folder: Path, partial: Path, done: Mapping[str, Any]) -> None:
    """Move finished files from `partial` into the cell's folder; the marker comes last.

    Args:
        folder: the cell's folder.
        partial: holds lm-eval's files, complete; emptied and removed.
        done: content of the marker without `files`.
    """
    hashes = {}
    for path in sorted(partial.iterdir()):
        hashes[path.name] = file_sha256(path)
        with path.open("rb") as handle:
            os.fsync(handle.fileno())
        path.replace(folder / path.name)
    partial.rmdir()
    sync_folder(folder)
    (folder / FAILED).unlink(missing_ok=True)
    write_json(folder / DONE, {"schema_version": SCHEMA_VERSION, **done, "files": hashes})


def log_tail(folder: Path, lines: int = 20) -> list[str]:
    """The last lines of a cell's log; a progress bar counts as its last state."""
    path = folder / LOG
    try:
        with path.open("rb") as handle:
            handle.seek(max(0, path.stat().st_size - 64 * 1024))
            text = handle.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    states = (line.rstrip().split("\r")[-1].rstrip() for line in text.split("\n"))
    return [state[:500] for state in states if state.strip()][-lines:]
