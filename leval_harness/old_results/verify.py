"""Check a results folder: every figure against its samples, every answer against its score."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from leval_harness.old_results.fields import ResultsError, finite, read_model
from leval_harness.old_results.lm_eval import ResultsFile
from leval_harness.old_results.load import Results, samples_file
from leval_harness.old_results.recompute import (
    NotRecomputableError,
    Recomputed,
    group_figure,
    recompute,
)
from leval_harness.old_results.sample_lines import Sample, of_first_filter
from leval_harness.old_results.samples import Samples
from leval_harness.old_results.task_scores import NO_METRIC
from leval_tasks.closed.catalog import TASKS
from leval_tasks.metrics import NOT_AVAILABLE

LONGEST_NAMED = 50
LONGEST_DIFFERENCE = 500


@dataclass
class Verification:
    """What verification found.

    Attributes:
        checked: figures that were computed again.
        rescored: answers that were scored again.
        not_recomputed: each figure that the samples do not determine, and why.
        differences: each figure and score that does not agree; empty where everything does.
    """

    checked: int = 0
    rescored: int = 0
    not_recomputed: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)

    def compare(self, name: str, stated: Any, how: str, again: Callable[[], Recomputed]) -> None:
        """Count a figure, and note whether it is what its samples or its tasks give.

        `how` is the aggregation that the task's configuration names.
        """
        try:
            recomputed = again()
            agrees = recomputed.agrees(stated)
            if not agrees and not recomputed.is_certain:
                raise NotRecomputableError(f"the task aggregates it by {how or 'its own code'}")
        except NotRecomputableError as error:
            self.not_recomputed.append(f"{name}: {error}")
            return
        self.checked += 1
        if not agrees:
            given = f"samples give {recomputed}, the results file says {stated!r}"
            self.differences.append(f"{name}: {given}")


def verify(results: Results) -> Verification:
    """Recompute every figure from its samples, and every closed-ended answer's score.

    Rows that `load_results` refused are differences too.
    """
    outcome = Verification()
    checks = [_RunCheck(results, index, outcome) for index in range(len(results.runs))]
    for score in results.scores:
        where = checks[score.run].named(score.task, score.metric)
        if score.status == "malformed":
            checks[score.run].refused.add((score.task, score.metric, score.chosen))
            checks[score.run].notes.add(score.note)
            outcome.differences.append(f"{where}: {score.note}")
        elif score.members:
            continue  # computed again from the figures of its tasks
        elif score.status == "done" and (score.run, score.task) not in results.samples:
            outcome.not_recomputed.append(f"{where}: no samples were logged")
    for check in checks:
        check.files()
        check.figures()
    return outcome


class _RunCheck:
    """One run's files, figures and answers; what is found goes to `outcome`.

    `refused` are `(task, metric, filter)` of figures of which a difference is known already,
    `notes` say what is wrong with them.
    """

    def __init__(self, results: Results, index: int, outcome: Verification) -> None:
        self.results, self.index, self.outcome = results, index, outcome
        self.run = results.runs[index]
        self.refused: set[tuple[str, str, str]] = set()
        self.notes: set[str] = set()

    def named(self, task: str, what: str) -> str:
        """How messages name something of a task."""
        parts = filter(None, (self.run.model, self.run.method, task, what))
        return f"{', '.join(parts)} ({self.run.run_id})"

    def files(self) -> None:
        """Whether the files are those that were written."""
        for promised in self.run.hashes:
            try:
                self.run.check_unaltered(self.run.folder / promised)
            except ResultsError as error:
                if str(error) not in self.notes:
                    self.outcome.differences.append(f"{self.named('every task', 'files')}: {error}")

    def figures(self) -> None:
        """Figures of tasks with samples and of groups, and the answers that were scored."""
        for path in self.run.results if self.run.status == "done" else ():
            file = read_model(ResultsFile, path)
            for task in file.results:
                samples = self.results.samples.get((self.index, task))
                if samples is not None and samples.path == samples_file(path, task):
                    self._task(task, file, samples)
            self._groups(file)

    def _task(self, task: str, file: ResultsFile, samples: Samples) -> None:
        config = file.config_of(task)
        for metric, chosen, stated in _entries(file.results[task]):
            measured = metric.removesuffix("_stderr")
            if (task, metric, chosen) in self.refused or measured == NO_METRIC:
                continue
            if stated == NOT_AVAILABLE and samples.ratios(metric, chosen) is None:
                continue  # lm-eval writes it for all that it does not compute
            how = str(config.of_metric(measured).get("aggregation") or "")
            again = partial(recompute, task, metric, chosen, how, samples)
            self.outcome.compare(self.named(task, metric), stated, how[:60], again)
        if task in TASKS and not any(metric == NO_METRIC for metric, _ in samples.metrics):
            self._rescore(task, file, samples.path)

    def _groups(self, file: ResultsFile) -> None:
        for group, members in file.group_subtasks.items():
            parts = [file.results.get(member) for member in members]
            for metric, chosen, stated in _entries(file.groups.get(group)):
                if parts and finite(stated) is not None:
                    again = partial(group_figure, f"{metric},{chosen}", parts)
                    self.outcome.compare(self.named(group, metric), stated, "", again)

    def _rescore(self, name: str, file: ResultsFile, path: Path) -> None:
        """Score the logged answers again with the official rule; every metric of it must agree."""
        task, metadata = TASKS[name], file.config_of(name).metadata
        end_of_thinking = (metadata.settings or {}).get("end_of_thinking")
        end_of_thinking = end_of_thinking if isinstance(end_of_thinking, str) else ""
        opened = (metadata.prompt or {}).get("opens_thinking") is True
        without = 0
        for sample in of_first_filter(path):
            gold, responses = sample.document.get("gold"), sample.responses
            if not isinstance(gold, str) or len(responses) < task.prompts:
                without += 1
                continue
            number = sample.document.get("question_id")
            number = number if isinstance(number, int) else 0
            self.outcome.rescored += 1
            scored = task.score_responses(responses, gold, number, end_of_thinking, opened=opened)
            question = self.named(name, f"question {sample.row.get('doc_id')}"[:LONGEST_NAMED])
            self.outcome.differences += [
                f"{question}: {difference}"[:LONGEST_DIFFERENCE]
                for difference in _differences(scored, sample)
            ]
        if without:
            self.outcome.not_recomputed.append(
                f"{self.named(name, 'answers')}: {without} questions have no logged answer to "
                "score again"
            )


def _differences(scored: Mapping[str, Any], sample: Sample) -> Iterator[str]:
    """What a sample logs otherwise than its answer gives."""
    logged = {**sample.notes, **sample.row}
    for metric, value in scored.items():
        if metric in logged and logged[metric] != value:
            yield f"the answer gives {metric} {value}, logged is {logged[metric]!r}"


def _entries(values: Any) -> Iterator[tuple[str, str, Any]]:
    """`(metric, filter, value)` of every figure, standard errors included."""
    for key, value in values.items() if isinstance(values, dict) else ():
        metric, _, chosen = key.partition(",")
        twice = metric.endswith("_stderr_stderr")  # lm-eval's of ours, which it never has
        if chosen and not (twice and value == NOT_AVAILABLE):
            yield metric, chosen, value
