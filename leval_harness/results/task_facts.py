"""What a results file and its samples tell of a task beside its figures."""

from collections.abc import Iterable

import numpy as np

from leval_harness.results.lm_eval import ResultsFile, figures_of
from leval_harness.results.lm_eval_task import DocumentsRead
from leval_harness.results.metrics import length_of
from leval_harness.results.run_record import Run
from leval_harness.results.sample_lines import gold_of, parsed_lines, rows_of_first_filter
from leval_harness.results.samples import Samples
from leval_harness.results.scores import FAMILY_OF, Score
from leval_harness.results.settings import canonical
from leval_tasks.closed.catalog import TASKS


def score_without_metric(
    run: Run, index: int, task: str, file: ResultsFile, samples: Samples | None
) -> Score:
    """What the scores of a task share; what the file states is not computed again.

    Args:
        run: whose results they are.
        index: its place in `Results.runs`.
        task: a key of the file's `results`.
        file: the results file.
        samples: of the task; None where none were logged.
    """
    stated = file.config_of(task).stated
    data = stated.data or DocumentsRead(sample=stated.data_dir == "sample")
    counts = (file.asked(task), stated.documents)
    questions, clusters = (None if n is None else int(n) for n in counts)
    if samples is not None:
        questions, clusters = samples.questions.size, np.unique(samples.clusters).size
    means = samples.means if samples else {}
    length = stated.context_length or run.context_length
    limit = file.limit_of(task, run.limit)
    fewer = run.has_fewer_documents(task, stated.partial) or file.left_out(task)
    partial = limit is not None or fewer
    decided = _settings(run, task, file, length, data)
    known = questions if partial or task not in FAMILY_OF else None  # ours say what is partial
    if limit is None and known is not None:
        decided["questions_asked"] = f"{known:g}"
        if file.left_out(task) and task in FAMILY_OF:  # `--samples`, which the file does not repeat
            decided |= canonical({"task_hash": file.hashes.get(task)})
        if samples is None and "task_hash" not in decided and file.asks_some(task):
            decided["questions_asked"] += f" of run {index}"  # chosen, and nobody knows which
    return Score(
        run=index,
        task=task,
        context_length=length,
        settings=decided,
        n=questions,
        clusters=clusters,
        cut=means.get("truncated"),
        unparsed=means.get("unparsed"),
        at_limit=means.get("reached_limit"),
        thinking_cut=means.get("thinking_unfinished") or None,
        prompt_tokens=means.get("prompt_tokens"),
        kept_tokens=means.get("kept_tokens"),
        chance=chance_level(task, stated.chance, _golds(samples)),
        limit=limit,
        partial=partial,
        sample=data.sample is True or data.source == "sample",
        source=(data.source or "")[:100],
        data=data.fingerprint(),
        python=(data.python_version or "")[:30],
        softmax=(stated.softmax or "")[:30],
        shipped_length=_length(stated.shipped_length),
        claimed_length=_length(stated.claimed_length),
    )


def _length(stated: float | None) -> int | None:
    return int(stated) if stated and stated > 0 else None


def _settings(
    run: Run, task: str, file: ResultsFile, length: int | None, data: DocumentsRead
) -> dict[str, str]:
    """What decides the task's numbers: what holds for the run, and over it what the task states."""
    own = file.deciding_of(task, length, is_ours=task in FAMILY_OF)
    if any(length_of(each.metric) for each in figures_of(file.results[task])):
        own.pop("max_seq_lengths", None)  # the columns
    if task == "all" and file.config_general:  # the mean of whatever else was run
        own["group_tasks"] = " + ".join(sorted(set(file.results) - {task}))
    merged = {**run.settings, **canonical(own)}
    generates = merged.get("output_type", "generate_until") == "generate_until"
    if not generates or "gen_kwargs" in own:
        merged.pop("task_gen_kwargs", None)
    if not generates:
        merged.pop("gen_kwargs", None)
    if run.context_length is not None and run.context_length != length:
        merged["max_length"] = f"{run.context_length}"
    if fingerprint := data.fingerprint():
        merged["data"] = fingerprint
    return merged


def _golds(samples: Samples | None) -> Iterable[str]:
    for row in rows_of_first_filter(parsed_lines(samples.path)) if samples else ():
        yield gold_of(row) or ""


def chance_level(task: str, stated: float | None, golds: Iterable[str]) -> float | None:
    """Expected score of guessing, as a fraction; None where the task does not define one.

    `stated` is what the results file says; the gold answers are read for older files, which do not.
    """
    if task not in TASKS or not TASKS[task].rule.guess:
        return None
    return TASKS[task].rule.chance(list(golds)) if stated is None else stated
