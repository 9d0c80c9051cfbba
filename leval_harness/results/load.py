"""From evaluations on disk to typed scores and samples."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from leval_harness.results.discover import find_runs, samples_file
from leval_harness.results.fields import ResultsError, read_model
from leval_harness.results.groups import below, group_scores, stand_for
from leval_harness.results.lm_eval import ResultsFile, figures_of
from leval_harness.results.run_record import Run
from leval_harness.results.samples import Samples, read_samples
from leval_harness.results.scores import Score, frame_of, score_record
from leval_harness.results.task_scores import task_scores
from leval_tasks.statistics.clustered import Ratios


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
        """The questions behind a score; None where they were not logged, or do not give it."""
        if not score.from_samples:
            return None
        samples = self.samples.get((score.run, score.task))
        return samples.ratios(score.metric, score.chosen) if samples else None

    def frame(self) -> Any:
        """The scores as a pandas frame, a row each; a missing number is NaN."""
        return frame_of(score_record(score, self.runs[score.run]) for score in self.scores)


def load_results(*folders: Path) -> Results:
    """Read one or more results folders into one.

    Runs of a sweep come in the order of its config, others in the order of their names. A run found
    twice (same id) is taken once, the later written one. A cell that cannot be read becomes a
    marked row.

    Raises:
        ResultsError: no such folder, nothing in it, or a newer schema.
    """
    codes: dict[str, int] = {}
    samples: dict[tuple[int, str], Samples] = {}
    results = Results([], [], samples)
    for index, run in enumerate(_in_order(_unique(folders, results.warnings))):
        scores: list[Score] = []
        try:
            if run.status == "done":
                scores, logged = _read_run(run, index, codes)
                samples |= {(index, task): of_task for task, of_task in logged.items()}
        except ResultsError as error:
            run = run.stopped("malformed", str(error))
        results.runs.append(run)
        results.scores += scores or _without_numbers(run, index)
    results.scores = _in_one_unit(results.scores)
    return results


def _in_one_unit(scores: list[Score]) -> list[Score]:
    """A metric that has a number above 1 anywhere is no share anywhere.

    A number of at most 1 of it may be one all the same: the two are not ranked together.
    """
    raw = {
        (score.task, score.metric, score.chosen)
        for score in scores
        if score.share is False and score.value is not None
    }
    return [
        replace(score, share=False, settings={**score.settings, "scale": "at most 1"})
        if score.share and (score.task, score.metric, score.chosen) in raw
        else score
        for score in scores
    ]


def _unique(folders: tuple[Path, ...], warnings: list[str]) -> list[Run]:
    """Every run once."""
    runs: dict[str, Run] = {}
    for folder in folders:
        found = list(find_runs(folder, warnings))
        if not found and len(folders) > 1:
            warnings.append(f"{folder}: no results in it")
        for run in found:
            key = f"{run.run_id} {run.folder}" if run.status == "malformed" else run.run_id
            key = run.content or key
            if key in runs:
                warnings.append(f"{run.run_id} was found twice; the one created last is used")
            runs[key] = max(runs.get(key, run), run, key=lambda r: (r.status == "done", r.created))
    if not runs:
        raise ResultsError(
            f"{', '.join(str(f) for f in folders)}: no cell.json and no results of lm-eval below it"
        )
    return list(runs.values())


def _in_order(runs: list[Run]) -> list[Run]:
    parents = dict.fromkeys(run.folder.parent for run in runs)
    sweeps = {folder: at for at, folder in enumerate(parents)}
    return sorted(runs, key=lambda run: (sweeps[run.folder.parent], run.place))


def _without_numbers(run: Run, index: int) -> list[Score]:
    return [
        Score(
            run=index,
            task=task,
            status=run.status,
            note=run.reason,
            limit=run.limit,
            partial=run.limit is not None or run.has_fewer_documents(task),
            context_length=run.context_length,
            settings=run.settings,
        )
        for task in run.tasks or ("",)
    ]


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
        for group, values in file.groups.items():
            inside = below(group, file) - set(file.groups)
            tasks = [name for name in scores if name in inside]
            members = [scores[task][0] for task in tasks if scores[task]]
            scores[group] = group_scores(group, file, members)
            if not members and isinstance(values, dict) and any(figures_of(values)):
                scores[group] = task_scores(run, index, group, file, None)
        stand_for(scores, file)
        groups = {name for name, members in file.group_subtasks.items() if members}
        known |= groups | set(file.groups) | set(scores)  # a group stands for its members
    if not any(scores.values()):
        raise ResultsError(f"{run.results[-1].name}: no task in 'results'")
    every = [score for of_task in scores.values() for score in of_task]
    # a path stands for the task in its file
    if absent := tuple(task for task in run.tasks if task not in known and "/" not in task):
        every += _without_numbers(run.stopped("malformed", "not in the results", absent), index)
    return every, logged
