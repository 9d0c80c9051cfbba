"""Which evaluations lie below a folder, and in what state each is."""

import os
from collections.abc import Iterator
from pathlib import Path

from leval_leaderboard.layout import CELL, DONE, FAILED
from leval_leaderboard.results.fields import (
    ResultsError,
    finite,
    mapping,
    plain_name,
    read_json,
    text,
)
from leval_leaderboard.results.schema import Run, check_version, run_from_cell, run_from_lm_eval

SKIPPED = {"page", "figures"}


def find_runs(root: Path) -> Iterator[tuple[Run, list[Path], dict[str, str]]]:
    """Every evaluation below `root`, in a stable order.

    A folder with `cell.json` is one of our cells and is not searched further; elsewhere each
    `results_*.json` is a run of lm-eval's own. Links that leave `root` are not followed.

    Args:
        root: a results folder, a sweep's folder, a cell's folder or an lm-eval output folder.

    Yields:
        the run, its results files (newest last), and the SHA-256 that its marker promises for each
        file name.

    Raises:
        ResultsError: `root` is no folder, or a cell has a newer schema.
    """
    if not root.is_dir():
        raise ResultsError(f"{root}: no such folder; give a folder with results")
    for folder, below, names in os.walk(root):
        here = Path(folder)
        if CELL in names:
            below.clear()
            yield _cell(here)
            continue
        below[:] = sorted(name for name in below if name not in SKIPPED and name[0] != ".")
        for name in sorted(names):
            if name.startswith("results_") and name.endswith(".json") and inside(here / name, root):
                yield _plain(here / name), [here / name], {}


def inside(path: Path, root: Path) -> bool:
    """Whether `path`, links resolved, is a regular file below `root`."""
    real = path.resolve()
    return real.is_file() and real.is_relative_to(root.resolve())


def _plain(path: Path) -> Run:
    try:
        return run_from_lm_eval(read_json(path), path)
    except ResultsError as error:
        return _malformed(path.stem, path.parent, str(error))


def _malformed(run_id: str, folder: Path, reason: str) -> Run:
    return Run(
        run_id=run_id[:300], folder=folder, status="malformed", model="unreadable",
        method=folder.name[:300] or "?", context_length=None, tasks=(), reason=reason[:300],
    )  # fmt: skip


def _cell(folder: Path) -> tuple[Run, list[Path], dict[str, str]]:
    """A cell with its status; what is wrong with it becomes its reason."""
    where = folder / CELL
    try:
        raw = read_json(where)
    except ResultsError as error:
        return _malformed(folder.name, folder, str(error)), [], {}
    try:
        run = run_from_cell(raw, where)
    except ResultsError as error:
        if "newer than" in str(error):
            raise
        return _malformed(folder.name, folder, str(error)), [], {}
    try:
        return _finished(run, folder)
    except ResultsError as error:
        if "newer than" in str(error):
            raise
        return run.stopped("malformed", str(error)[:300]), [], {}


def _finished(run: Run, folder: Path) -> tuple[Run, list[Path], dict[str, str]]:
    """Apply the marker files to a run."""
    if not (folder / DONE).exists():
        if (folder / FAILED).exists():
            failed = read_json(folder / FAILED)
            kind = text(failed, "kind", folder / FAILED, default="error")
            reason = text(failed, "reason", folder / FAILED, default="no reason was written")
            return run.stopped("failed", f"{kind}: {reason}"[:300]), [], {}
        return run.stopped("unfinished", "not finished"), [], {}
    where = folder / DONE
    done = read_json(where)
    check_version(done, where)
    if done.get("cell_id") != run.run_id:
        raise ResultsError(f"{where}: belongs to another cell than cell.json")
    hashes = mapping(done, "files", where)
    for name, value in hashes.items():
        if not plain_name(name) or not isinstance(value, str):
            raise ResultsError(f"{where}: 'files' names {name[:80]!r}, which is no file name")
        if not inside(folder / name, folder):
            raise ResultsError(f"{where}: {name[:80]!r} is missing")
    telemetry = {
        name: number
        for name, value in mapping(done, "telemetry", where).items()
        if (number := finite(value)) is not None
    }
    seconds = finite(done.get("seconds"))
    names = sorted(hashes) or sorted(path.name for path in folder.iterdir())
    results = [
        folder / name
        for name in names
        if name.startswith("results_") and name.endswith(".json") and inside(folder / name, folder)
    ]
    if not results:
        raise ResultsError(f"{where}: the cell is marked done but has no results_*.json")
    ready = Run(**{**run.__dict__, "status": "done", "seconds": seconds, "telemetry": telemetry})
    return ready, results, dict(hashes)
