"""The files of one cell's folder: written whole or not at all, believed only if their hash fits."""

import errno
import os
import shutil
from pathlib import Path

from leval_border.files import read_object, sync_folder, write_json
from leval_leaderboard.cell_record import DoneRecord, read_record
from leval_leaderboard.layout import CELL, DONE, FAILED, FEATURES, LOG, PARTIAL, SCHEMA_VERSION
from leval_sweep.identity import cell_id, file_sha256

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def why_not_done(folder: Path, expected_id: str) -> str | None:
    """None if the folder holds the finished cell `expected_id`, else what is wrong with it.

    Everything named by the marker must be there with its hash, and the recorded identity must hash
    to the cell's id.
    """
    if not (folder / DONE).exists():
        return "failed" if (folder / FAILED).exists() else "not run yet"
    done, cell = read_record(DoneRecord, folder / DONE), read_object(folder / CELL)
    if done is None or cell is None:
        return f"{DONE if done is None else CELL} is not whole"
    if done.schema_version != SCHEMA_VERSION or done.cell_id != expected_id:
        return f"{DONE} belongs to another cell or schema"
    try:
        if cell_id(cell["identity"]) != expected_id:
            return f"{CELL} does not hash to the cell's id"
    except (KeyError, TypeError, ValueError):
        return f"{CELL} is not whole"
    if not done.files:
        return f"{DONE} names no files"
    for name, expected in done.files.items():
        path = folder / name
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
    write_json(folder / DONE, done.model_copy(update={"files": hashes}).written())


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
