"""Which evaluations lie below a folder, and in what state each is."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from leval_leaderboard.cell_record import CellRecord, DoneRecord, FailedRecord
from leval_leaderboard.layout import CELL, DONE, FAILED
from leval_leaderboard.results.fields import (
    NewerSchemaError,
    ResultsError,
    finite,
    plain_name,
    read_model,
    read_versioned,
)
from leval_leaderboard.results.lm_eval import ResultsFile
from leval_leaderboard.results.runs import Run, run_of_cell, run_of_results

Found = tuple[Run, list[Path], dict[str, str]]
"""A run, its results files (newest last), and the SHA-256 promised for each file's name."""

SKIPPED = {"page", "figures"}


def find_runs(root: Path) -> Iterator[Found]:
    """Every evaluation below `root`, in a stable order.

    A folder with `cell.json` is one of our cells and is not searched further; elsewhere each
    `results_*.json` is a run of lm-eval's own. Links that leave `root` are not followed.

    Args:
        root: a results folder, a sweep's folder, a cell's folder or an lm-eval output folder.

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
        return run_of_results(read_model(ResultsFile, path), path)
    except ResultsError as error:
        return _malformed(path.stem, path.parent, str(error))


def _malformed(run_id: str, folder: Path, reason: str) -> Run:
    return Run(
        run_id=run_id[:300], folder=folder, status="malformed", model="unreadable",
        method=folder.name[:300] or "?", context_length=None, tasks=(), reason=reason[:300],
    )  # fmt: skip


def _cell(folder: Path) -> Found:
    """A cell with its status; what is wrong with it becomes its reason."""
    try:
        run = run_of_cell(read_versioned(CellRecord, folder / CELL), folder)
    except NewerSchemaError:
        raise
    except ResultsError as error:
        return _malformed(folder.name, folder, str(error)), [], {}
    try:
        return _finished(run) if (folder / DONE).exists() else (_stopped(run), [], {})
    except NewerSchemaError:
        raise
    except ResultsError as error:
        return run.stopped("malformed", str(error)), [], {}


def _stopped(run: Run) -> Run:
    """A cell that has no results, and why."""
    if not (run.folder / FAILED).exists():
        return run.stopped("unfinished", "not finished")
    failed = read_model(FailedRecord, run.folder / FAILED)
    return run.stopped("failed", f"{failed.kind}: {failed.reason}")


def _finished(run: Run) -> Found:
    """A cell whose marker says that it is done."""
    folder, where = run.folder, run.folder / DONE
    done = read_versioned(DoneRecord, where)
    if done.cell_id != run.run_id:
        raise ResultsError(f"{where}: belongs to another cell than cell.json")
    for name in done.files:
        if not plain_name(name):
            raise ResultsError(f"{where}: 'files' names {name[:80]!r}, which is no file name")
        if not inside(folder / name, folder):
            raise ResultsError(f"{where}: {name[:80]!r} is missing")
    names = sorted(done.files) or sorted(path.name for path in folder.iterdir())
    results = [
        folder / name
        for name in names
        if name.startswith("results_") and name.endswith(".json") and inside(folder / name, folder)
    ]
    if not results:
        raise ResultsError(f"{where}: the cell is marked done but has no results_*.json")
    counted = ((name, finite(value)) for name, value in done.telemetry.items())
    telemetry = {name: number for name, number in counted if number is not None}
    ready = replace(run, status="done", seconds=done.seconds, telemetry=telemetry)
    return ready, results, done.files
