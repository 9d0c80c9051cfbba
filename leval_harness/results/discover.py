"""Which evaluations lie below a folder, and in what state each is; what is left out is named."""

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from leval_harness.cell_record import CellRecord, DoneRecord, FailedRecord
from leval_harness.layout import CELL, DONE, FAILED
from leval_harness.results.fields import (
    LONGEST_NAME,
    NewerSchemaError,
    ResultsError,
    finite,
    parse_json,
    read_bytes,
    read_json,
    read_model,
    refused,
    typed,
)
from leval_harness.results.lm_eval import ResultsFile
from leval_harness.results.run_record import Run, run_of_cell, run_of_results
from leval_harness.secrets import redact, without_credentials
from leval_tasks.closed.catalog import OLD_NAMES

RESULTS = re.compile(r"(results|out|eval)_.*\.json|results\.json")
"""Names that lm-eval gives to its results: what bears one of them is a run or a problem."""

OTHER_FORM = re.compile(
    r"(?i)((results|samples|details|out|eval)(_.*)?)\.(jsonl?\.)?(gz|bz2|xz|zst|zip|tgz|tar|7z|parquet|arrow)"
)
"""Names of results and samples that this reader does not open."""

STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d[-:.\d]*$")
MOST_NAMED = 5


def find_runs(root: Path, warnings: list[str]) -> Iterator[Run]:
    """Every evaluation below `root`, in a stable order; `warnings` gets what is left out.

    A folder with `cell.json` is one of our cells and is not searched further; elsewhere each JSON
    file that holds results of lm-eval is a run. Links to folders are not followed, nor are links
    out of `root`.

    Raises:
        ResultsError: `root` is no folder, or a cell has a newer schema.
    """
    if not root.is_dir():
        what = "is a file" if root.is_file() else "no such folder"
        raise ResultsError(f"{root}: {what}; give a folder with results")

    def left_out(error: OSError) -> None:
        warnings.append(f"{error.filename}: cannot be read ({error.strerror}); left out")

    for folder, below, names in os.walk(root, onerror=left_out):
        here = Path(folder)
        if CELL in names or CELL in below:
            below.clear()
            yield _cell(here, root)
            continue
        links = [name for name in sorted(below) if (here / name).is_symlink()]
        warnings += [f"{here / name}: a link to a folder; not followed" for name in links]
        below[:] = sorted(name for name in below if name[0] != "." and name not in links)
        runs = [run for name in sorted(names) for run in _in_file(here, name, root, warnings)]
        yield from runs
        _name_unread(here, names, runs, warnings)


def samples_file(results: Path, task: str) -> Path | None:
    """The file with a task's samples that was written together with a results file.

    Under the name that the task has today, else under its old one.
    """
    stamp = STAMP.search(results.stem)
    end = f"_{stamp[0] if stamp else results.stem.removeprefix('results_')}.jsonl"
    for called in (task, *(old for old, today in OLD_NAMES.items() if today == task)):
        name = f"samples_{called}{end}"
        if Path(name).name == name and not refused(results.parent, name):
            return results.with_name(name)
    return None


def _in_file(folder: Path, name: str, root: Path, warnings: list[str]) -> Iterator[Run]:
    """The run that a file holds, or why it cannot be read; nothing where it is something else."""
    path, is_meant = folder / name, RESULTS.fullmatch(name) is not None
    if not name.endswith(".json") or name.startswith("."):
        return
    try:
        if why := refused(folder, name, root):
            raise ResultsError(f"{path}: {why}")
        content = read_bytes(path)
        if b'"results"' not in content and not is_meant:
            return
        parsed = parse_json(content, path)
        if not is_meant and not _is_of_lm_eval(parsed):
            return
        digest = hashlib.sha256(content).hexdigest()
        yield replace(run_of_results(typed(ResultsFile, parsed, path), path), content=digest)
    except ResultsError as error:
        if is_meant:
            yield _unreadable(path.stem, folder).stopped("malformed", str(error))
        else:
            warnings.append(f"{error}; left out")


def _is_of_lm_eval(content: dict[str, object]) -> bool:
    results = content.get("results")
    return isinstance(results, dict) and any(isinstance(each, dict) for each in results.values())


def _name_unread(folder: Path, names: list[str], runs: list[Run], warnings: list[str]) -> None:
    """Say which files of samples belong to none of the results that were found beside them.

    And which are called like results in a form that is not read: compressed, or as a table.
    """
    logged = sorted(name for name in names if name.endswith(".jsonl"))
    if other := sorted(name for name in names if OTHER_FORM.fullmatch(name)):
        warnings.append(f"{folder}: not read in this form: {_listed(other)}; unpack, or convert")
    read = {
        found.name
        for run in runs
        for path in run.results
        for task in run.tasks
        if (found := samples_file(path, task))
    }
    if unread := [name for name in logged if name not in read]:
        warnings.append(f"{folder}: no results beside {_listed(unread)}; left out")


def _listed(names: list[str]) -> str:
    shown = ", ".join(name[:100] for name in names[:MOST_NAMED])
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return shown + more


def _unreadable(run_id: str, folder: Path) -> Run:
    """What stands for a run of which nothing could be read."""
    run_id, method = run_id[:LONGEST_NAME], folder.name[:LONGEST_NAME] or "?"
    return Run(run_id=run_id, folder=folder, status="malformed", model="unreadable", method=method)


def _cell(folder: Path, root: Path) -> Run:
    """A cell with its status; what is wrong with it becomes its reason."""
    run = _unreadable(folder.name, folder)
    try:
        for name in (CELL, DONE, FAILED):
            if os.path.lexists(folder / name) and (why := refused(folder, name, root)):
                raise ResultsError(f"{folder / name}: {why}")
        asked = without_credentials(read_json(folder / CELL), keep_names=False)
        run = run_of_cell(typed(CellRecord, asked, folder / CELL), folder)
        if (folder / DONE).exists():
            return _finished(run)
        if not (folder / FAILED).exists():
            return run.stopped("unfinished", "not finished")
        failed = read_model(FailedRecord, folder / FAILED)
        return run.stopped("failed", redact(f"{failed.kind}: {failed.reason}"))
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
    run = replace(run, hashes=done.files)
    run.check_unaltered(run.folder / CELL)
    names = list(done.files) or [path.name for path in run.folder.iterdir()]
    for name in names:
        if (why := refused(run.folder, name)) and (done.files or name.startswith("results_")):
            raise ResultsError(f"{where}: 'files' names {name[:80]!r}, which {why}")
    results = [n for n in sorted(names) if n.startswith("results_") and n.endswith(".json")]
    if not results:
        raise ResultsError(f"{where}: the cell is marked done but has no results_*.json")
    counted = {name: finite(value) for name, value in done.telemetry.items()}
    return replace(
        run,
        status="done",
        seconds=done.seconds,
        telemetry={name: number for name, number in counted.items() if number is not None},
        results=tuple(run.folder / name for name in results),
    )
