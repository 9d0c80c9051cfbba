"""Which evaluations lie below a folder, and in what state each is."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from leval_leaderboard.cell_record import CellRecord, DoneRecord, FailedRecord
from leval_leaderboard.layout import CELL, DONE, FAILED
from leval_leaderboard.results.fields import (
    LONGEST_NAME,
    NewerSchemaError,
    ResultsError,
    file_in,
    finite,
    read_model,
)
from leval_leaderboard.results.lm_eval import ResultsFile
from leval_leaderboard.results.runs import Run, run_of_cell, run_of_results

SKIPPED = {"page", "figures"}


def find_runs(root: Path) -> Iterator[Run]:
    """Every evaluation below `root`, in a stable order.

    A folder with `cell.json` is one of our cells and is not searched further; elsewhere each
    `results_*.json` is a run of lm-eval's own. Links that leave `root` are not followed.

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
        yield from (_plain(path) for path in _results_files(here, names, root))


def _results_files(folder: Path, names: list[str], root: Path) -> list[Path]:
    of_lm_eval = [n for n in sorted(names) if n.startswith("results_") and n.endswith(".json")]
    return [path for name in of_lm_eval if (path := file_in(folder, name, root))]


def _unreadable(run_id: str, folder: Path) -> Run:
    """What stands for a run of which nothing could be read."""
    run_id, method = run_id[:LONGEST_NAME], folder.name[:LONGEST_NAME] or "?"
    return Run(run_id=run_id, folder=folder, status="malformed", model="unreadable", method=method)


def _plain(path: Path) -> Run:
    try:
        return run_of_results(read_model(ResultsFile, path), path)
    except ResultsError as error:
        return _unreadable(path.stem, path.parent).stopped("malformed", str(error))


def _cell(folder: Path) -> Run:
    """A cell with its status; what is wrong with it becomes its reason."""
    run = _unreadable(folder.name, folder)
    try:
        run = run_of_cell(read_model(CellRecord, folder / CELL), folder)
        if (folder / DONE).exists():
            return _finished(run)
        if not (folder / FAILED).exists():
            return run.stopped("unfinished", "not finished")
        failed = read_model(FailedRecord, folder / FAILED)
        return run.stopped("failed", f"{failed.kind}: {failed.reason}")
    except NewerSchemaError:
        raise
    except ResultsError as error:
        return run.stopped("malformed", str(error))


def _finished(run: Run) -> Run:
    """A cell whose marker says that it is done."""
    where = run.folder / DONE
    done = read_model(DoneRecord, where)
    if done.cell_id != run.run_id:
        raise ResultsError(f"{where}: belongs to another cell than cell.json")
    for name in done.files:
        if file_in(run.folder, name) is None:
            raise ResultsError(f"{where}: 'files' names {name[:80]!r}, which is no file in there")
    names = list(done.files) or [path.name for path in run.folder.iterdir()]
    results = _results_files(run.folder, names, run.folder)
    if not results:
        raise ResultsError(f"{where}: the cell is marked done but has no results_*.json")
    counted = {name: finite(value) for name, value in done.telemetry.items()}
    return replace(
        run,
        status="done",
        seconds=done.seconds,
        telemetry={name: number for name, number in counted.items() if number is not None},
        results=tuple(results),
        hashes=done.files,
    )
