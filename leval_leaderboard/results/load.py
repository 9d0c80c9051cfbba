"""From evaluations on disk to typed scores and samples."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leval_leaderboard.results.discover import Found, find_runs, inside
from leval_leaderboard.results.fields import ResultsError, read_model
from leval_leaderboard.results.frames import frame_of, score_record
from leval_leaderboard.results.lm_eval import ResultsFile
from leval_leaderboard.results.runs import Run
from leval_leaderboard.results.samples import LoggedSamples, Names, Ratios, Samples, read_samples
from leval_leaderboard.results.scores import Score
from leval_leaderboard.results.task_scores import task_scores


@dataclass
class Results:
    """Everything read from one or more folders.

    `scores`: one for each run, task and metric, runs in order. `runs[score.run]` is a score's run.
    `samples[run, task]`: the numbers of each question, where they were logged.
    """

    scores: list[Score]
    runs: list[Run]
    samples: Mapping[tuple[int, str], Samples]
    warnings: list[str] = field(default_factory=list)

    def ratios(self, score: Score) -> Ratios | None:
        """The questions behind a score; None where they were not logged."""
        samples = self.samples.get((score.run, score.task))
        return samples.ratios(score.metric) if samples else None

    def frame(self) -> Any:
        """The scores as a pandas frame, a row each; a missing number is NaN."""
        return frame_of(score_record(score, self.runs[score.run]) for score in self.scores)


def load_results(*folders: Path) -> Results:
    """Read one or more results folders into one.

    Runs of a sweep come in the order of its config, others in the order of their names.

    A run found twice (same id) is taken once, the later written one. A cell that cannot be read
    becomes a marked row; a folder that cannot be read, or a newer schema, is an error.

    Raises:
        ResultsError: no such folder, nothing in it, or a newer schema.
    """
    names = Names()
    samples: dict[tuple[int, str], Samples] = {}
    results = Results([], [], samples)
    for run, files, hashes in _in_order(_unique(folders, results.warnings)):
        index = len(results.runs)
        try:
            scores, logged = _read_run(run, index, files, hashes)
        except ResultsError as error:
            run = run.stopped("malformed", str(error))
            scores, logged = [], {}
        results.runs.append(run)
        results.scores += scores or _without_numbers(run, index)
        for task, (path, lists) in logged.items():
            samples[index, task] = lists.compact(path, names)
    return results


def _unique(folders: tuple[Path, ...], warnings: list[str]) -> list[Found]:
    """Every run once."""
    runs: dict[str, Found] = {}
    for folder in folders:
        for run, files, hashes in find_runs(folder):
            key = f"{run.run_id} {run.folder}" if run.status == "malformed" else run.run_id
            other = runs.get(key)
            if other is not None:
                warnings.append(f"{run.run_id} was found twice; the one created last is used")
                if _age(other[0]) >= _age(run):
                    continue
            runs[key] = (run, files, hashes)
    if not runs:
        raise ResultsError(
            f"{', '.join(str(f) for f in folders)}: no cell.json and no results_*.json below it"
        )
    return list(runs.values())


def _age(run: Run) -> tuple[bool, str]:
    return run.status == "done", run.created


def _in_order(runs: list[Found]) -> list[Found]:
    parents = {run.folder.parent: None for run, *_ in runs}
    sweeps = {folder: at for at, folder in enumerate(parents)}
    return sorted(runs, key=lambda each: (sweeps[each[0].folder.parent], each[0].place))


def _without_numbers(run: Run, index: int) -> list[Score]:
    partial = run.limit is not None
    return [
        Score(
            run=index,
            task=task,
            status=run.status,
            note=run.reason,
            partial=partial or (run.num_docs is not None and task.startswith("leval_")),
        )
        for task in run.tasks or ("",)
    ]


def _sample_path(results: Path, task: str) -> Path | None:
    """The samples file that was written with a results file, if it was."""
    stamp = results.stem.removeprefix("results_")
    name = f"samples_{task}_{stamp}.jsonl"
    if "/" in name or "\\" in name or "\0" in name or len(name) > 250:
        return None
    path = results.parent / name
    return path if inside(path, results.parent) else None


def _read_run(
    run: Run, index: int, files: list[Path], hashes: Mapping[str, str]
) -> tuple[list[Score], dict[str, tuple[Path, LoggedSamples]]]:
    """Scores and samples of a finished run; a later results file replaces an earlier one's task."""
    scores: dict[str, list[Score]] = {}
    logged: dict[str, tuple[Path, LoggedSamples]] = {}
    groups: set[str] = set()
    for path in files if run.status == "done" else []:
        promised = hashes.get(path.name)
        if promised and hashlib.sha256(path.read_bytes()).hexdigest() != promised:
            raise ResultsError(f"{path.name}: altered after the run (SHA-256 differs)")
        file = read_model(ResultsFile, path)
        groups |= file.named_groups()
        for task, values in file.results.items():
            if task in file.groups or not isinstance(values, dict):
                continue
            where = _sample_path(path, task)
            samples = read_samples(where) if where else None
            if where and samples and hashes.get(where.name, samples.sha256) != samples.sha256:
                raise ResultsError(f"{where.name}: altered after the run (SHA-256 differs)")
            scores[task[:200]] = task_scores(run, index, task, file, samples)
            if where and samples:
                logged[task[:200]] = (where, samples)
    if run.status == "done" and not scores:
        raise ResultsError(f"{files[-1].name}: no task in 'results'")
    every = [score for of_task in scores.values() for score in of_task]
    if scores:  # a group stands for its members, a path for the task in its file
        known = {*scores, *groups}
        absent = [task for task in run.tasks if task not in known and "/" not in task]
        stopped = run.stopped("malformed", "not in the results", tuple(absent))
        every += _without_numbers(stopped, index) if absent else []
    return every, logged
