"""From folders with evaluations to typed scores and samples; what is left out is named."""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leval_harness.layout import CELL, CELLS, FAILED_CELLS, SWEEP
from leval_harness.old_results.fields import (
    ResultsError,
    parse_json,
    read_bytes,
    read_model,
    refused,
    typed,
)
from leval_harness.old_results.lm_eval import ResultsFile
from leval_harness.old_results.run_record import Run
from leval_harness.old_results.samples import Samples, read_samples
from leval_harness.old_results.scores import Score, frame_of
from leval_harness.old_results.task_scores import group_scores, in_one_unit, stand_for, task_scores
from leval_tasks.statistics.clustered import Ratios

RESULTS = re.compile(r"(results|out|eval)_.*\.json|results\.json")
"""Names that lm-eval gives to its results: a file with one of them is a run or a problem."""

STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d[-:.\d]*$")
MOST_NAMED = 5


@dataclass
class Results:
    """Everything read from one or more folders.

    Attributes:
        scores: one for each run, task and metric, in the order of `runs`.
        runs: `runs[score.run]` is a score's run.
        samples: (run, task) -> the numbers of each question, where they were logged.
        warnings: what was left out, and why.
    """

    scores: list[Score]
    runs: list[Run]
    samples: Mapping[tuple[int, str], Samples]
    warnings: list[str] = field(default_factory=list)

    def ratios(self, score: Score) -> Ratios | None:
        """The questions behind a score; None where they were not logged, or do not give it."""
        if not score.from_samples:
            return None
        samples = self.samples.get((score.run, score.task))
        return samples.ratios(score.metric, score.chosen) if samples else None

    def frame(self) -> Any:
        """The scores as a pandas frame, a row each; a missing number is NaN."""
        return frame_of(score.record(self.runs[score.run]) for score in self.scores)


def load_results(*folders: Path) -> Results:
    """Read one or more results folders into one.

    Runs of a sweep come in the order of its config, others in the order of their names. Of a run
    that is found twice (same id) the later written one is used. A cell that cannot be read becomes
    a marked row.

    Raises:
        ResultsError: no such folder, nothing in it, or a newer schema.
    """
    warnings: list[str] = []
    found = [(folder, list(_runs_below(folder, warnings))) for folder in folders]
    if not any(runs for _, runs in found):
        names = ", ".join(str(folder) for folder in folders)
        raise ResultsError(f"{names}: no cell.json and no results of lm-eval below it")
    warnings += [f"{folder}: no results in it" for folder, runs in found if not runs]
    runs = _in_order(_once([run for _, runs in found for run in runs], warnings))
    codes: dict[str, int] = {}
    samples: dict[tuple[int, str], Samples] = {}
    scores: list[Score] = []
    for index, run in enumerate(runs):
        of_run: list[Score] = []
        try:
            if run.status == "done":
                of_run, logged = _read_run(run, index, codes)
                samples |= {(index, task): of_task for task, of_task in logged.items()}
        except ResultsError as error:
            runs[index] = run.stopped("malformed", str(error))
        scores += of_run or Score.without_numbers(runs[index], index)
    return Results(in_one_unit(scores), runs, samples, warnings)


def _runs_below(root: Path, warnings: list[str]) -> Iterator[Run]:
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
        if SWEEP in names:
            below[:] = [name for name in below if name not in (CELLS, FAILED_CELLS)]
            yield from Run.of_sweep(here, root)
        if CELL in names or CELL in below:
            below.clear()
            yield Run.read_cell(here, root)
            continue
        links = [name for name in sorted(below) if (here / name).is_symlink()]
        warnings += [f"{here / name}: a link to a folder; not followed" for name in links]
        below[:] = sorted(name for name in below if name[0] != "." and name not in links)
        runs = [run for name in sorted(names) for run in _in_file(here, name, root, warnings)]
        yield from runs
        _name_unread(here, names, runs, warnings)


def _in_file(folder: Path, name: str, root: Path, warnings: list[str]) -> Iterator[Run]:
    """The run that a file holds, or why it cannot be read; nothing where it is something else."""
    path, is_results = folder / name, RESULTS.fullmatch(name) is not None
    if not name.endswith(".json") or name.startswith("."):
        return
    try:
        if why := refused(folder, name, root):
            raise ResultsError(f"{path}: {why}")
        content = read_bytes(path)
        if not is_results and b'"results"' not in content:
            return
        parsed = parse_json(content, path)
        tasks = parsed.get("results")
        is_of_lm_eval = isinstance(tasks, dict) and any(isinstance(t, dict) for t in tasks.values())
        if is_results or is_of_lm_eval:
            digest = hashlib.sha256(content).hexdigest()
            yield Run.of_results(typed(ResultsFile, parsed, path), path, digest)
    except ResultsError as error:
        if is_results:
            yield Run.unreadable(path.stem, folder, str(error))
        else:
            warnings.append(f"{error}; left out")


def samples_file(results: Path, task: str) -> Path | None:
    """The file with a task's samples that was written together with a results file."""
    stamp = STAMP.search(results.stem)
    end = stamp[0] if stamp else results.stem.removeprefix("results_")
    name = f"samples_{task}_{end}.jsonl"
    is_plain = Path(name).name == name and not refused(results.parent, name)
    return results.with_name(name) if is_plain else None


def _name_unread(folder: Path, names: list[str], runs: list[Run], warnings: list[str]) -> None:
    """Name samples without results beside them."""
    places = [(path, task) for run in runs for path in run.results for task in run.tasks]
    read = {found.name for path, task in places if (found := samples_file(path, task))}
    if unread := sorted({name for name in names if name.endswith(".jsonl")} - read):
        listed = ", ".join(name[:100] for name in unread[:MOST_NAMED])
        more = f" and {len(unread) - MOST_NAMED} more" if len(unread) > MOST_NAMED else ""
        warnings.append(f"{folder}: no results beside {listed}{more}; left out")


def _once(found: list[Run], warnings: list[str]) -> list[Run]:
    """Every run once: of two with one id, or one content, a finished one, then the later one."""
    runs: dict[str, Run] = {}
    for run in found:
        key = f"{run.run_id} {run.folder}" if run.status == "malformed" else run.run_id
        key = run.content or key
        if key in runs:
            warnings.append(f"{run.run_id} was found twice; the one created last is used")
        runs[key] = max(runs.get(key, run), run, key=lambda r: (r.status == "done", r.created))
    return list(runs.values())


def _in_order(runs: list[Run]) -> list[Run]:
    """Runs by sweep, in the order in which sweeps were found, and by their place in it."""
    sweeps = {folder: at for at, folder in enumerate(dict.fromkeys(r.folder.parent for r in runs))}
    return sorted(runs, key=lambda run: (sweeps[run.folder.parent], run.place))


def _read_run(
    run: Run, index: int, codes: dict[str, int]
) -> tuple[list[Score], dict[str, Samples]]:
    """Scores and samples of a finished run; a later results file replaces an earlier one's task."""
    scores: dict[str, list[Score]] = {}
    logged: dict[str, Samples] = {}
    known: set[str] = set()
    for path in run.results:
        run.check_unaltered(path)
        file = read_model(ResultsFile, path)
        for task, values in file.results.items():
            if task in file.groups or not isinstance(values, dict):
                continue
            samples = None
            if where := samples_file(path, task):
                run.check_unaltered(where)
                samples = logged[task] = read_samples(where, codes)
            scores[task] = task_scores(run, index, task, file, samples)
        for group in file.groups:
            inside = file.below(group) - set(file.groups)
            members = [of_task[0] for name, of_task in scores.items() if name in inside and of_task]
            scores[group] = group_scores(group, file, members)
            if not members and any(file.figures(group)):
                scores[group] = task_scores(run, index, group, file, None)
        stand_for(scores, file)
        groups = {name for name, members in file.group_subtasks.items() if members}
        known |= groups | set(file.groups) | set(scores)  # a group stands for its members
    if not any(scores.values()):
        raise ResultsError(f"{run.results[-1].name}: no task in 'results'")
    every = [score for of_task in scores.values() for score in of_task]
    # a path stands for the task in its file
    if absent := tuple(task for task in run.tasks if task not in known and "/" not in task):
        every += Score.without_numbers(
            run.stopped("malformed", "not in the results", absent), index
        )
    return every, logged
