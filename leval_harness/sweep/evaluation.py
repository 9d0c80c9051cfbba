"""One evaluation by lm-eval with a loaded model: a run's tasks and files, complete."""

import gc
import logging
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

import numpy as np

from leval_harness import backends
from leval_harness.backends.answer_limits import record_answer_ends
from leval_harness.results.layout import LOSSES_OF
from leval_harness.sweep.answers import Answers
from leval_harness.sweep.claims import Folder
from leval_harness.sweep.run_record import RunRecord
from leval_harness.sweep.task_registry import lm_eval_names, own_tasks, task_folders
from leval_tasks.closed.catalog import marks_in
from leval_tasks.closed.thinking import THINKING, opens_thinking, thinking_unfinished
from resonance_vllm.checkpoint import config as overrides
from resonance_vllm.checkpoint.config import PositionConfig
from resonance_vllm.common.errors import RunError, error_message

log = logging.getLogger("leval_harness.sweep.worker")
Samples = Mapping[str, list[dict[str, Any]]]
"""Task -> rows, with lm-eval's `arguments` (the requests, the prompt first) and `resps`."""


class LoadedModel:
    """lm-eval's model of a group, loaded unmodified where its runs differ in the rotation."""

    def __init__(self, runs: Sequence[RunRecord]) -> None:
        run = runs[0]
        log.info("loading %s", run.model.name)
        self.swaps = any(each.model_args != run.model_args for each in runs)
        arguments = as_shipped(runs) if self.swaps else dict(run.model_args)
        options = {"batch_size": run.batch_size, "device": run.device}
        started = time.monotonic()
        backend = backends.backend_class(run.model.backend)
        self.lm: Any = backend.create_from_arg_obj(arguments, options)
        self.ends = record_answer_ends(self.lm)
        log.info("model ready after %.1f s", time.monotonic() - started)

    def turn(self, run: RunRecord) -> None:
        """Take the rotation and the length of a run, and count again.

        Raises:
            CannotSwapError: the run needs a load of its own.
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
        """What the backend has counted since the last turn."""
        counted = dict(self.lm.telemetry()) if hasattr(self.lm, "telemetry") else {}
        precision = getattr(getattr(self.lm, "model", None), "rope_precision_used", None)
        return counted if precision is None else {**counted, "rope_precision": precision}


def length_of(run: RunRecord) -> int:
    """Longest sequence of a run in tokens, as its model gets it."""
    args = run.model_args
    return int(args.get("max_length") or args["max_model_len"])


def as_shipped(runs: Sequence[RunRecord]) -> dict[str, Any]:
    """Arguments with which lm-eval loads a checkpoint unmodified, for the longest of some runs."""
    run = max(runs, key=length_of)
    rope_free = overrides.model_args(
        None,
        PositionConfig.from_checkpoint(run.model.path, run.model.revision),
        library=backends.library_of(run.model.backend),
        model_path=run.model.path,
        context_length=length_of(run),
        rope_precision=run.method.rope_precision,
    )
    own = {key: value for key, value in run.model_args.items() if key in ("dtype", "revision")}
    return {**run.model.args, **rope_free, **own}


def evaluate(model: LoadedModel, run: RunRecord, folder: Path, place: Folder) -> dict[str, Any]:
    """Run lm-eval, write its files to `folder`, and return what the backend counted meanwhile.

    Raises:
        UserError: lm-eval could not save its results.
    """
    import lm_eval
    from lm_eval.loggers import EvaluationTracker

    model.turn(run)
    # named as a file: else the results would lie in a folder named after the model
    tracker = EvaluationTracker(output_path=str(folder / "results.json"))
    with Answers(model.lm, model.ends, run, place, folder.name) as answers:
        manager, tasks = load_tasks(run)
        results = lm_eval.simple_evaluate(
            model=model.lm,
            model_args=run.model_args,
            tasks=tasks,
            task_manager=manager,  # without one lm-eval builds its whole index
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
        others = {name: rows for name, rows in samples.items() if name not in own_tasks()}
        mark_truncated(model.lm, others)
        mark_answer_ends(model.ends.of if model.ends else lambda *_: [], samples)
    with patch.object(logging.getLogger("lm_eval.loggers.evaluation_tracker"), "warning", _raise):
        tracker.save_results_aggregated(results=results, samples=samples)
        for name, rows in samples.items():
            tracker.save_results_samples(task_name=name, samples=rows)
    for task in tasks:  # those that keep the losses of tokens
        for document, reads in getattr(task, "token_losses", {}).items():
            for read, losses in reads.items():
                name = LOSSES_OF.format(task=task.task_name, document=document, read=read)
                np.save(folder / name, losses)
    answers.forget()
    return model.telemetry()


def load_tasks(run: RunRecord) -> tuple[Any, list[Any]]:
    """Task manager, and task and group objects."""
    from lm_eval.tasks import TaskManager

    # a name of ours means our task, even if another one has that name
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
        loaded = manager.load([name])
        group = loaded["groups"].get(name)
        objects += loaded["tasks"].values() if group is None else [group]
    return manager, objects


def _raise(message: str, *_: object) -> None:
    """Stands for a logger's method where what a library has caught must not be lost."""
    raise RunError(f"lm-eval: {message}: {error_message(sys.exception() or OSError())}")


def mark_truncated(model: Any, samples: Samples) -> None:
    """Write `truncated` and `prompt_tokens` into samples.

    A prompt is counted with the model's own tokenizer. It is truncated where it and the answer (or
    the scored text) are longer than the model's `max_length`. Without both nothing is written.
    """
    from lm_eval.models.utils import normalize_gen_kwargs

    limit, encode = getattr(model, "max_length", None), getattr(model, "tok_encode", None)
    if not isinstance(limit, int) or encode is None:
        return
    count = cache(lambda text: len(encode(text)))
    most = getattr(model, "max_gen_toks", 0)
    for name, rows in samples.items():
        for row in rows:
            found = []
            for prompt, *rest in row.get("arguments") or ():
                if isinstance(prompt, str) and len(rest) == 1:
                    scored = isinstance(rest[0], str)
                    given = {} if scored else normalize_gen_kwargs(dict(rest[0]), most)
                    after = count(rest[0]) if scored else given["max_gen_toks"]
                    found.append((count(prompt), after))
            if found:
                row["truncated"] = float(max(map(sum, found)) > limit)
                row["prompt_tokens"] = max(found)[0]
        if truncated := sum(row.get("truncated", 0.0) > 0 for row in rows):
            log.warning(
                "%s: %d of %d prompts are longer than the %d tokens that the model takes, with the "
                "answer, and were cut on the left",
                *(name, truncated, len(rows), limit),
            )


def mark_answer_ends(ends_of: Callable[[str, str], list[bool]], samples: Samples) -> None:
    """Write `reached_limit` and `thinking_unfinished` into samples of generated answers.

    `reached_limit` is the share of a question's answers that the generation limit ended, where the
    backend knows it of each. `thinking_unfinished` is 1 where one stopped while it was thinking,
    by any known mark of thinking; tasks of ours have their own mark in `filtered_resps`.
    `ends_of` says whether the limit ended an answer to a prompt, each time; [] if nobody noted it.
    """
    for row in (row for rows in samples.values() for row in rows):
        answers = [
            (str(request[0]), each)
            for request, documents in zip(
                row.get("arguments") or (), row.get("resps") or (), strict=False
            )
            if len(request) == 2 and isinstance(request[1], Mapping)  # documents were scored else
            for each in documents
            if isinstance(each, str)
        ]
        if not answers:
            continue
        noted = [ends_of(*each) for each in answers]
        if all(noted):
            row["reached_limit"] = fmean(end for each in noted for end in each)
        if not marks_in(row.get("filtered_resps")):
            row["thinking_unfinished"] = float(
                any(
                    thinking_unfinished(answer, mark, opened=opens_thinking(prompt, mark))
                    for prompt, answer in answers
                    for mark in THINKING
                )
            )
