"""The files of one cell's folder: written whole or not at all, trusted only if their hashes fit."""

import contextlib
import errno
import json
import os
import shutil
from pathlib import Path

from leval_harness.cell_record import CellRecord, DoneRecord, cell_id, read_record
from leval_harness.layout import CELL, DONE, FAILED, FEATURES, LOG, LOSSES, PARTIAL, SCHEMA_VERSION
from resonance_vllm.errors import printable
from resonance_vllm.files import file_sha256, read_object, sync_folder, write_json, write_text

_TEMPORARY = tuple(f".{name}." for name in (DONE, CELL, FAILED, LOG))
"""Prefixes of temporary files that a killed process leaves."""
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def why_not_done(folder: Path, expected_id: str) -> str | None:
    """None if the folder holds the finished cell `expected_id`, else what is wrong with it.

    Every file named by the marker must have its hash, and the recorded identity must hash to the
    cell's id. The other fields of `cell.json` are labels, which a sweep may change (`relabel`).
    """
    if not (folder / DONE).exists():
        return "failed" if (folder / FAILED).exists() else "not run yet"
    done, cell = read_record(DoneRecord, folder / DONE), read_object(folder / CELL)
    if done is None or cell is None:
        return f"{DONE if done is None else CELL} is not valid"
    if done.schema_version != SCHEMA_VERSION or done.cell_id != expected_id:
        return f"{DONE} belongs to another cell or schema"
    try:
        if cell_id(cell["identity"]) != expected_id:
            return f"{CELL} does not hash to the cell's id"
    except (KeyError, TypeError, ValueError):
        return f"{CELL} is not valid"
    if not done.files:
        return f"{DONE} names no files"
    for name, expected in done.files.items():
        path = folder / name
        if Path(name).name != name or not path.is_file():
            return f"{name} is missing"
        if name != CELL and file_sha256(path) != expected:
            return f"{name} was altered after it was written"
    return None


def clear_attempt(folder: Path) -> None:
    """Remove what an unfinished or corrupt attempt left, marker first, so that nothing mixes."""
    (folder / DONE).unlink(missing_ok=True)
    for path in folder.iterdir():
        if path.name.startswith(PARTIAL) and path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name.startswith(_TEMPORARY) or (
            path.name.startswith(("results_", "samples_", LOSSES, FEATURES))
            and path.suffix in (".json", ".jsonl", ".npy")
        ):
            path.unlink()


def publish(folder: Path, partial: Path, done: DoneRecord) -> None:
    """Move finished files from `partial` into the cell's folder; the marker `done` comes last."""
    hashes = {}
    for path in sorted(partial.iterdir()):
        hashes[path.name] = file_sha256(path)
        with path.open("rb") as handle:
            os.fsync(handle.fileno())
        path.replace(folder / path.name)
    partial.rmdir()
    sync_folder(folder)
    (folder / FAILED).unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        # what engines say while they shut down goes to the old file, and is no part of the cell
        write_text(folder / LOG, (folder / LOG).read_text(encoding="utf-8", errors="replace"))
    for name in (CELL, LOG):
        if (folder / name).is_file():
            hashes[name] = file_sha256(folder / name)
    write_json(folder / DONE, done.model_copy(update={"files": hashes}).written())


def relabel(folder: Path, record: CellRecord) -> None:
    """Write what decides no number (names, baseline) of a finished cell as the config has it now.

    The marker is written after it: a sweep that is killed in between does both again.
    """
    before, done = read_object(folder / CELL) or {}, read_record(DoneRecord, folder / DONE)
    new = json.loads(json.dumps({**before, **record.written()}))
    if new != before:
        write_json(folder / CELL, new)
    content_hash = file_sha256(folder / CELL)
    if done is not None and done.files.get(CELL) != content_hash:
        files = {**done.files, CELL: content_hash}
        write_json(folder / DONE, done.model_copy(update={"files": files}).written())


def log_tail(folder: Path, lines: int = 20) -> list[str]:
    """The last lines of a cell's log, fit for a terminal; a bar counts as its last state."""
    path = folder / LOG
    try:
        with path.open("rb") as handle:
            handle.seek(max(0, path.stat().st_size - 64 * 1024))
            text = handle.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    states = (line.rstrip().split("\r")[-1].rstrip() for line in text.split("\n"))
    return [printable(state[:500]) for state in states if state.strip()][-lines:]
