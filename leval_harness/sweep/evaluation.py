"""One evaluation by lm-eval with a loaded model, up to the complete files of the run."""

import contextlib
import gc
import logging
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from leval_harness import backends
from leval_harness.backends.answer_limits import record_answer_ends
from leval_harness.results.layout import LOSSES_OF
from leval_harness.sweep.answers import Answers
from leval_harness.sweep.heartbeat import Heartbeat
from leval_harness.sweep.ruler import few_questions, tasks_of_ruler
from leval_harness.sweep.run_record import RunRecord
from leval_harness.sweep.task_registry import lm_eval_names, own_tasks, task_folders
from leval_tasks.closed.catalog import marks_in
from leval_tasks.closed.thinking import THINKING, opens_thinking, thinking_unfinished
from leval_tasks.common.served import match_loaded_models
from resonance_vllm.checkpoint.arguments import model_args
from resonance_vllm.checkpoint.positions import PositionConfig
from resonance_vllm.common.errors import RunError, error_message

log = logging.getLogger("leval_harness.sweep.worker")
SUMMED = "tokens_"
"""What the names of counts begin with that are added up over the workers of a run."""
Samples = Mapping[str, list[dict[str, Any]]]
"""Task -> rows, with lm-eval's `arguments` (the requests, the prompt first) and `resps`."""


class LoadedModel:
    """lm-eval's model of a group of runs.

    If the runs differ in the rotation it is loaded unmodified, and each run swaps its own in.

    Args:
        runs: the runs of the group.
    """

    def __init__(self, runs: Sequence[RunRecord]) -> None:
        run = runs[0]
        log.info("loading %s", run.model.name)
        self.swaps = any(other.model_args != run.model_args for other in runs)
        arguments = dict(run.model_args)
        if self.swaps:
            arguments = unmodified_args(runs)
        options = {"batch_size": run.batch_size, "device": run.device}
        started = time.monotonic()
        backend = backends.backend_class(run.model.backend)
        self.lm: Any = backend.create_from_arg_obj(arguments, options)
        match_loaded_models(self.lm)
        self.ends = record_answer_ends(self.lm)
        log.info("model ready after %.1f s", time.monotonic() - started)

    def set_up(self, run: RunRecord) -> None:
        """Swap in the rotation and the length of a run, and reset the backend's counts.

        Raises:
            CannotSwapError: the run needs a model instance of its own.
        """
        if self.swaps:
            method = run.method
            self.lm.set_rope(method.rope_parameters, method.rope_precision, length_of(run))
        if hasattr(self.lm, "count_anew"):
            self.lm.count_anew()

    def close(self) -> None:
        """Free what the model takes, before another one is loaded."""
        if hasattr(self.lm, "close"):
            self.lm.close()
        self.lm = self.ends = None
        gc.collect()

    def telemetry(self) -> dict[str, Any]:
        """Return what the backend has counted since `set_up`, and the precision of the rotation."""
        telemetry: dict[str, Any] = {}
        if hasattr(self.lm, "telemetry"):
            telemetry.update(self.lm.telemetry())
        precision = getattr(getattr(self.lm, "model", None), "rope_precision_used", None)
        if precision is not None:
            telemetry["rope_precision"] = precision
        return telemetry


def length_of(run: RunRecord) -> int:
    """Return the longest sequence that the model of a run may read, in tokens."""
    backend = backends.get_backend(run.model.backend)
    return int(run.model_args[backend.length_argument])


def unmodified_args(runs: Sequence[RunRecord]) -> dict[str, Any]:
    """Return the arguments that load a checkpoint unmodified, for the longest of some runs."""
    run = max(runs, key=length_of)
    unmodified = model_args(
        None,
        PositionConfig.from_checkpoint(run.model.path, run.model.revision),
        library=backends.get_backend(run.model.backend).library,
        model_path=run.model.path,
        context_length=length_of(run),
        rope_precision=run.method.rope_precision,
    )
    own = {key: value for key, value in run.model_args.items() if key in ("dtype", "revision")}
    return {**run.model.args, **unmodified, **own}


class Evaluation(NamedTuple):
    """What is known of an evaluation beside its files.

    Attributes:
        telemetry: what the backends of all workers have counted.
        fresh_share: share of the requests that these workers have answered, the others having been
            answered by earlier attempts.
        seconds_of_others: seconds that other workers have taken for their parts.
    """

    telemetry: dict[str, Any]
    fresh_share: float
    seconds_of_others: float


def evaluate(model: LoadedModel, run: RunRecord, folder: Path, heartbeat: Heartbeat) -> Evaluation:
    """Compute parts of a run; after the last one let lm-eval score all, and write its files.

    Args:
        model: the loaded model of the run's group.
        run: what to evaluate.
        folder: of this attempt, which is created; its name names the file of stored answers.
        heartbeat: is informed of every answer; its claim is on a part of the run.

    Raises:
        PartsOfOthersError: other workers compute parts of the run.
        RunError: lm-eval could not save its results, or a log-probability is NaN.
        LostClaimError: another worker has taken the run over.
    """
    import lm_eval
    from lm_eval.loggers import EvaluationTracker

    model.set_up(run)
    # Given a folder, lm-eval would write into a subfolder named after the model.
    tracker = EvaluationTracker(output_path=str(folder / "results.json"))
    with Answers(model.lm, model.ends, run, heartbeat, folder.name) as answers:
        manager, tasks = load_tasks(run)
        answers.tasks = single_tasks(tasks)
        results = lm_eval.simple_evaluate(
            model=model.lm,
            model_args=run.model_args,
            tasks=tasks,
            task_manager=manager,  # without one lm-eval builds an index of all its tasks
            gen_kwargs=run.gen_kwargs or None,
            num_fewshot=run.num_fewshot,
            batch_size=run.batch_size,
            device=run.device,
            limit=run.limit,
            log_samples=True,
            evaluation_tracker=tracker,
            apply_chat_template=run.apply_chat_template,
            random_seed=run.seed,
            numpy_random_seed=run.seed,
            torch_random_seed=run.seed,
            fewshot_random_seed=run.seed,
            confirm_run_unsafe_code=run.confirm_run_unsafe_code,
            metadata={**run.model_args, **run.metadata},
        )
        samples = results.pop("samples")
        of_lm_eval = {name: rows for name, rows in samples.items() if name not in own_tasks()}
        mark_truncated(model.lm, of_lm_eval)
        mark_answer_ends(model.ends.of if model.ends else lambda *_: [], samples)
    folder.mkdir()
    with failing_saves_raised():
        tracker.save_results_aggregated(results=results, samples=samples)
        for name, rows in samples.items():
            tracker.save_results_samples(task_name=name, samples=rows)
    for task in tasks:
        save_losses(task, folder)
    others = heartbeat.folder.counts_of_others(run.run_id, folder.name)
    fresh = answers.counts()["answers"] + sum(other["answers"] for other in others)
    return Evaluation(
        telemetry=telemetry_of_all(model.telemetry(), [other["telemetry"] for other in others]),
        fresh_share=min(1.0, fresh / max(1, answers.requests)),
        seconds_of_others=sum(other["seconds"] for other in others),
    )


def telemetry_of_all(
    own: Mapping[str, Any], of_others: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the telemetry of a run: counts of tokens added up, of peak memory the largest."""
    telemetry = dict(own)
    for other in of_others:
        for name, value in other.items():
            if name.startswith(SUMMED):
                telemetry[name] = telemetry.get(name, 0) + value
            elif name.startswith("peak_"):
                telemetry[name] = max(telemetry.get(name, 0), value)
    return telemetry


def single_tasks(tasks: Sequence[Any]) -> list[Any]:
    """Return task objects, those of groups one by one."""
    single: list[Any] = []
    for task_or_group in tasks:
        if hasattr(task_or_group, "get_all_tasks"):
            single += task_or_group.get_all_tasks()
        else:
            single.append(task_or_group)
    return single


def save_losses(task: Any, folder: Path) -> None:
    """Write the losses of tokens of a task that keeps them, one file per document and read."""
    for document, reads in getattr(task, "token_losses", {}).items():
        for read, losses in reads.items():
            name = LOSSES_OF.format(task=task.task_name, document=document, read=read)
            np.save(folder / name, losses)


def load_tasks(run: RunRecord) -> tuple[Any, list[Any]]:
    """Return lm-eval's task manager, and the task and group objects of a run."""
    from lm_eval.tasks import TaskManager

    # include_path: a name of this package means its own task, even if lm-eval has one of that name
    manager = TaskManager(
        include_path=[str(folder) for folder in task_folders()],
        include_defaults=bool(lm_eval_names(run.tasks)),
        metadata={**run.model_args, **run.metadata},
    )
    objects: list[Any] = []
    for name in run.tasks:
        # some tasks draw their questions when they are loaded: the same ones in every run
        random.seed(run.seed)
        np.random.seed(run.seed)  # noqa: NPY002 - the tasks draw from the global state
        data_dir = run.metadata.get("data_dir")
        with few_questions(tasks_of_ruler([name]), run.limit, run.seed, data_dir):
            loaded = manager.load([name])
        group = loaded["groups"].get(name)
        objects += loaded["tasks"].values() if group is None else [group]
    return manager, objects


class _RaiseWarnings(logging.Filter):
    """Turns a warning into an error."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Raise for a warning; everything else passes."""
        if record.levelno < logging.WARNING:
            return True
        error = sys.exception() or OSError()
        raise RunError(f"lm-eval: {record.getMessage()}: {error_message(error)}")


@contextlib.contextmanager
def failing_saves_raised() -> Iterator[None]:
    """Raise where lm-eval could not save results: it catches the error and logs a warning.

    Raises:
        RunError: with lm-eval's warning and the error behind it.
    """
    logger = logging.getLogger("lm_eval.loggers.evaluation_tracker")
    raising = _RaiseWarnings()
    logger.addFilter(raising)
    try:
        yield
    finally:
        logger.removeFilter(raising)


def mark_truncated(model: Any, samples: Samples) -> None:
    """Write `truncated` and `prompt_tokens` into samples.

    A prompt is counted with the model's own tokenizer. It is truncated if it and the answer (or the
    scored text) are longer than the model's `max_length`. For a model without both nothing is
    written.

    Args:
        model: lm-eval's model.
        samples: changed in place.
    """
    limit = getattr(model, "max_length", None)
    if not isinstance(limit, int) or not hasattr(model, "tok_encode"):
        return
    count = cache(lambda text: len(model.tok_encode(text)))
    longest_answer = getattr(model, "max_gen_toks", 0)
    for name, rows in samples.items():
        truncated = 0
        for row in rows:
            lengths = request_lengths(row, count, longest_answer)
            if not lengths:
                continue
            is_truncated = any(prompt + answer > limit for prompt, answer in lengths)
            row["truncated"] = float(is_truncated)
            row["prompt_tokens"] = max(prompt for prompt, _ in lengths)
            truncated += is_truncated
        if truncated:
            log.warning(
                "%s: %d of %d prompts are longer than the %d tokens that the model takes, with the "
                "answer, and were cut on the left",
                *(name, truncated, len(rows), limit),
            )


def request_lengths(
    row: Mapping[str, Any], count: Callable[[str], int], longest_answer: int
) -> list[tuple[int, int]]:
    """Return the tokens of prompt and answer of each request of a sample that has a prompt.

    Args:
        row: the sample.
        count: returns the tokens of a text.
        longest_answer: tokens of an answer if its request states none.
    """
    from lm_eval.models.utils import normalize_gen_kwargs

    lengths = []
    for prompt, *rest in row.get("arguments") or ():
        if not isinstance(prompt, str) or len(rest) != 1:
            continue
        (scored_or_options,) = rest
        if isinstance(scored_or_options, str):
            answer = count(scored_or_options)
        else:
            answer = normalize_gen_kwargs(dict(scored_or_options), longest_answer)["max_gen_toks"]
        lengths.append((count(prompt), answer))
    return lengths


def mark_answer_ends(ends_of: Callable[[str, str], list[bool]], samples: Samples) -> None:
    """Write `reached_limit` and `thinking_unfinished` into samples of generated answers.

    `reached_limit` is the share of a question's answers that the generation limit ended, if the
    backend knows it for each of them. `thinking_unfinished` is 1 if an answer ended while the model
    was still thinking, by any known mark of thinking; tasks of this package have their own mark in
    `filtered_resps`.

    Args:
        ends_of: returns for a prompt and its answer whether the limit ended it, once for each time
            that it was given; [] if nobody recorded it.
        samples: changed in place.
    """
    for rows in samples.values():
        for row in rows:
            answers = generated_answers(row)
            if not answers:
                continue
            ends_of_answers = [ends_of(prompt, answer) for prompt, answer in answers]
            all_are_known = all(len(ends) > 0 for ends in ends_of_answers)
            if all_are_known:
                row["reached_limit"] = fmean(chain.from_iterable(ends_of_answers))
            if not marks_in(row.get("filtered_resps")):
                row["thinking_unfinished"] = float(any(_is_thinking(*pair) for pair in answers))


def generated_answers(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return prompt and answer of each generated answer of a sample; none if text was scored."""
    pairs = []
    requests = row.get("arguments") or ()
    for request, answers in zip(requests, row.get("resps") or (), strict=False):
        if len(request) != 2 or not isinstance(request[1], Mapping):
            continue
        pairs += [(str(request[0]), answer) for answer in answers if isinstance(answer, str)]
    return pairs


def _is_thinking(prompt: str, answer: str) -> bool:
    """Return whether an answer ended inside of a thought, by any known mark."""
    return any(
        thinking_unfinished(answer, mark, opened=opens_thinking(prompt, mark)) for mark in THINKING
    )
