"""Recompute what the results files claim from the samples that were logged."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from leval_harness.results.discover import samples_file
from leval_harness.results.fields import ResultsError, finite, read_model
from leval_harness.results.lm_eval import ResultsFile
from leval_harness.results.lm_eval_task import TaskConfig
from leval_harness.results.load import Results
from leval_harness.results.metrics import NO_METRIC, NOT_MEASURED, length_of
from leval_harness.results.recomputed import (
    NOT_AVAILABLE,
    NotRecomputableError,
    Possible,
    Values,
    agree,
    group_figure,
    task_figure,
)
from leval_harness.results.sample_lines import (
    document_of,
    gold_of,
    logged_metrics,
    parsed_lines,
    responses_of,
    rows_of_first_filter,
)
from leval_tasks.closed.catalog import TASKS

LONGEST_NAMED = 50
LONGEST_DIFFERENCE = 500


@dataclass
class Verification:
    """What verification found.

    `differences` is empty where everything agrees; `not_recomputed` names each figure that the
    samples do not determine, and why.
    """

    checked: int = 0
    rescored: int = 0
    not_recomputed: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)

    def compare(self, name: str, stated: Any, again: Callable[[], Possible]) -> None:
        """Note whether a figure is one of those that the samples give."""
        try:
            possible = again()
        except NotRecomputableError as error:
            self.not_recomputed.append(f"{name}: {error}")
            return
        self.checked += 1
        if not any(agree(value, stated) for value in possible):
            given = " or ".join(v if isinstance(v, str) else f"{v:.8g}" for v in possible)
            self.differences.append(
                f"{name}: samples give {given}, the results file says {stated!r}"
            )


def verify(results: Results) -> Verification:
    """Recompute every aggregate from its samples, and every closed-ended answer's score.

    Rows that `load_results` already refused are reported as differences.
    """
    outcome = Verification()
    checks = [_RunCheck(results, index, outcome) for index in range(len(results.runs))]
    for score in results.scores:
        where = checks[score.run].named(score.task, score.metric)
        if score.status == "malformed":
            checks[score.run].refused.add((score.task, score.metric, score.chosen))
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

    `refused` are `(task, metric, filter)` of figures of which a difference is known already.
    """

    def __init__(self, results: Results, index: int, outcome: Verification) -> None:
        self.results, self.index, self.outcome = results, index, outcome
        self.run = results.runs[index]
        self.refused: set[tuple[str, str, str]] = set()

    def named(self, task: str, what: str) -> str:
        """How something of a task is called in messages."""
        return f"{self.run.model}, {self.run.method}, {task}, {what} ({self.run.run_id})"

    def files(self) -> None:
        """Whether the files are those that were written."""
        for promised in self.run.hashes:
            try:
                self.run.check_unaltered(self.run.folder / promised)
            except ResultsError as error:
                self.outcome.differences.append(f"{self.named('every task', 'files')}: {error}")

    def figures(self) -> None:
        """Figures of tasks with samples and of groups, and the answers that were scored."""
        for path in self.run.results if self.run.status == "done" else ():
            file = read_model(ResultsFile, path)
            for task in file.results:
                samples = self.results.samples.get((self.index, task))
                if samples is not None and samples.path == samples_file(path, task):
                    self._task(task, file, samples.path)
            self._groups(file)

    def _task(self, task: str, file: ResultsFile, path: Path) -> None:
        config, values = file.config_of(task), _logged_values(path)
        for metric, chosen, stated in _figures_of(file.results[task]):
            not_computed = stated == NOT_AVAILABLE and (chosen, metric) not in values
            known = not_computed or (task, metric, chosen) in self.refused
            if not (known or metric in NO_METRIC):
                again = partial(task_figure, task, config, metric, values, chosen, stated)
                self.outcome.compare(self.named(task, metric), stated, again)
        if task in TASKS and not any(metric in NO_METRIC for _, metric in values):
            self._rescore(task, config, path)

    def _groups(self, file: ResultsFile) -> None:
        for group in file.group_subtasks:
            parts = [file.results.get(member) for member in file.members_of(group)]
            for metric, chosen, stated in _figures_of(file.groups.get(group)):
                if parts and finite(stated) is not None:
                    again = partial(group_figure, f"{metric},{chosen}", parts)
                    self.outcome.compare(self.named(group, metric), stated, again)

    def _rescore(self, name: str, config: TaskConfig, path: Path) -> None:
        """Judge the logged answers again with the official rule; every metric of it must fit."""
        task = TASKS[name]
        end_of_thinking = (config.stated.settings or {}).get("end_of_thinking")
        end_of_thinking = end_of_thinking if isinstance(end_of_thinking, str) else ""
        opened = (config.stated.prompt or {}).get("opens_thinking") is True
        without = 0
        for row in rows_of_first_filter(parsed_lines(path)):
            gold, responses = gold_of(row), responses_of(row)
            if gold is None or len(responses) < task.prompts:
                without += 1
                continue
            number = document_of(row).get("question_id")
            number = number if isinstance(number, int) else 0
            self.outcome.rescored += 1
            judged = task.score_responses(responses, gold, number, end_of_thinking, opened=opened)
            question = self.named(name, f"question {row.get('doc_id')}"[:LONGEST_NAMED])
            self.outcome.differences += [
                f"{question}: {difference}"[:LONGEST_DIFFERENCE]
                for difference in _differences(judged, row)
            ]
        if without:
            self.outcome.not_recomputed.append(
                f"{self.named(name, 'answers')}: {without} questions have no logged answer to "
                "score again"
            )


def _differences(judged: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[str]:
    """What a sample logs otherwise than its answer, judged again, gives."""
    for metric, value in judged.items():
        if metric in row and row[metric] != value:
            yield f"the answer gives {metric} {value}, logged is {row[metric]!r}"


def _logged_values(path: Path) -> Values:
    values: dict[tuple[str, str], list[Any]] = {}
    for row in filter(None, parsed_lines(path)):
        for name in logged_metrics(row):
            value = row.get(name)
            asked = length_of(name) is None or value != NOT_MEASURED
            values.setdefault((str(row.get("filter")), name), []).extend([value] if asked else [])
    return values


def _figures_of(values: Any) -> Iterator[tuple[str, str, Any]]:
    """`(metric, filter, value)` of every figure, standard errors included."""
    for key, value in values.items() if isinstance(values, dict) else ():
        metric, _, chosen = key.partition(",")
        twice = metric.endswith("_stderr_stderr")  # lm-eval's of ours, which it never has
        if chosen and not (twice and value == NOT_AVAILABLE):
            yield metric, chosen, value
