"""One evaluation by lm-eval in this process: what a cell asks for, and its files, complete."""

import logging
import random
import sys
import time
from collections.abc import Mapping, Sequence
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

import leval_harness.backends
from leval_border.errors import one_of
from leval_border.files import read_object
from leval_harness import secrets
from leval_harness.backends.answer_limits import record_answer_ends
from leval_harness.cell_record import CellRecord
from leval_harness.sweep import task_registry as own_tasks
from leval_harness.sweep.answer_ends import mark_ends
from leval_harness.sweep.cell_files import DISK_ERRORS
from leval_harness.sweep.errors import CellError
from leval_harness.sweep.truncated_prompts import mark_cut

log = logging.getLogger("leval_harness.sweep.cell")


def default_device() -> str:
    """Where a transformers model goes if nobody says: lm-eval would insist on a GPU."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def seed(value: int | None) -> None:
    """Seed what lm-eval seeds; it does so too late for tasks that are loaded before."""
    import numpy as np

    random.seed(value)
    np.random.seed(value)  # noqa: NPY002 - the tasks draw from the global state


def load_tasks(cell: CellRecord) -> tuple[Any, list[Any]]:
    """Task manager, and task and group objects with generation settings applied."""
    from lm_eval.tasks import TaskManager

    names = list(cell.tasks)
    metadata = {**cell.model_args, **cell.metadata}
    known = own_tasks.own_tasks()
    folders = [str(folder) for folder in own_tasks.task_folders()]
    ours = manager = TaskManager(include_path=folders, include_defaults=False, metadata=metadata)
    if not all(name in known or own_tasks.is_file(name) for name in names):
        manager = TaskManager(metadata=metadata)
    objects: list[Any] = []
    tasks: dict[str, Any] = {}
    for name in names:
        seed(cell.seed)  # some tasks draw their questions: the same ones in every cell
        # a name of ours means ours, whoever else has a task of that name
        loaded = (ours if name in known else manager).load([name])
        tasks |= loaded["tasks"]
        group = loaded["groups"].get(name)
        objects += loaded["tasks"].values() if group is None else [group]
    for name in cell.task_gen_kwargs:
        one_of("task_gen_kwargs", name, tasks)
    for name, task in tasks.items():
        settings = {**cell.gen_kwargs, **cell.task_gen_kwargs.get(name, {})}
        if settings and task.get_config("output_type") == "generate_until":
            task.set_config(key="generation_kwargs", value=settings, update=True)
    return manager, objects


def evaluate(cell: CellRecord, partial: Path, hidden: Sequence[str] = ()) -> dict[str, Any]:
    """Run lm-eval, leave its files in `partial`, and return the backend's telemetry, if any.

    On transformers it says in which precision the model really rotated, whatever was asked.

    None of the texts `hidden` stands in these files, nor a setting with the name of a credential.
    """
    import lm_eval
    from lm_eval.api.registry import get_model
    from lm_eval.loggers import EvaluationTracker

    backend = cell.model.backend
    device = cell.device
    leval_harness.backends.register()
    if leval_harness.backends.libraries().get(backend) == "transformers":
        from resonance_vllm.hf import (
            registration as hf,  # vLLM loads our plugin by itself, in each of its processes
        )

        hf.register()
        device = device or default_device()
    options = {"batch_size": cell.batch_size, "max_batch_size": None, "device": device}
    started = time.monotonic()
    lm = get_model(backend).create_from_arg_obj(dict(cell.model_args), options)
    log.info("model ready after %.1f s", time.monotonic() - started)
    tracker = EvaluationTracker(output_path=str(partial))
    manager, tasks = load_tasks(cell)
    ends = record_answer_ends(lm)
    results = lm_eval.simple_evaluate(
        model=lm,
        model_args=secrets.redacted(cell.model_args),
        tasks=tasks,
        task_manager=manager,  # without one lm-eval builds its whole index
        num_fewshot=cell.num_fewshot,
        batch_size=cell.batch_size,
        device=device,
        limit=cell.limit,
        log_samples=True,
        evaluation_tracker=tracker,
        apply_chat_template=cell.apply_chat_template,
        random_seed=cell.seed,
        numpy_random_seed=cell.seed,
        torch_random_seed=cell.seed,
        fewshot_random_seed=cell.seed,
        confirm_run_unsafe_code=cell.confirm_run_unsafe_code,
        metadata={**cell.model_args, **cell.metadata},
    )
    if results is None:
        raise CellError("lm-eval returned no results")
    for key in ("config", "configs", "pretty_env_info"):
        results[key] = secrets.redacted(results.get(key, {}))
    results = secrets.hidden(results, hidden)
    drop_stderr_of_stderr(results)
    samples = results.pop("samples")
    known = own_tasks.own_tasks()
    mark_cut(lm, {name: rows for name, rows in samples.items() if name not in known})
    mark_ends(ends, samples)
    save(tracker, results, samples)
    flatten(partial, {name: len(rows) for name, rows in samples.items()})
    telemetry = dict(lm.telemetry()) if hasattr(lm, "telemetry") else {}
    if failed := telemetry.get("requests_failed"):
        # an unanswered request scores as a wrong answer: not a result of the method
        raise CellError(
            f"{len(failed)} requests ran out of memory even alone: {', '.join(failed[:5])}; use a "
            "shorter context_length, a smaller dtype or a larger device"
        )
    precision = getattr(getattr(lm, "model", None), "rope_precision_used", None)
    return telemetry if precision is None else {**telemetry, "rope_precision": precision}


def drop_stderr_of_stderr(results: dict[str, Any]) -> None:
    """Leave out lm-eval's field beside a task's own `metric_stderr`: it never has a value."""
    for part in ("results", "groups"):
        for figures in (results.get(part) or {}).values():
            for key in [key for key in figures if "_stderr_stderr," in key]:
                del figures[key]


def save(tracker: Any, results: dict[str, Any], samples: Mapping[str, Any]) -> None:
    """Write lm-eval's files; its tracker turns every error into a warning, so we listen."""
    handler = BufferingHandler(sys.maxsize)
    logger = logging.getLogger("lm_eval.loggers.evaluation_tracker")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        tracker.save_results_aggregated(results=results, samples=samples)
        for name, rows in samples.items():
            tracker.save_results_samples(task_name=name, samples=rows)
    finally:
        logger.removeHandler(handler)
    messages = [record.getMessage() for record in handler.buffer]
    if any(message.startswith("Could not save") for message in messages):
        text = "; ".join(messages)
        if any(f"Error({code}," in text for code in DISK_ERRORS):  # the repr of an OSError
            raise CellError(DISK_ERRORS[0], f"the disk is full: {text}")
        raise CellError(f"lm-eval could not save its results: {text}")


def flatten(partial: Path, rows: Mapping[str, int]) -> None:
    """Move lm-eval's files from its folder named after the model up into `partial`, and count."""
    for path in [*partial.rglob("results_*.json"), *partial.rglob("samples_*.jsonl")]:
        path.replace(partial / path.name)
    for folder in sorted((each for each in partial.rglob("*") if each.is_dir()), reverse=True):
        folder.rmdir()
    results = list(partial.glob("results_*.json"))
    if len(results) != 1 or read_object(results[0]) is None:
        raise CellError("lm-eval's results file is missing or not whole")
    for name, expected in rows.items():
        # the year follows: a task whose name goes on in the same words is another one
        paths = partial.glob(f"samples_{name}_[0-9][0-9][0-9][0-9]*.jsonl")
        written = sum(path.read_bytes().count(b"\n") for path in paths)
        if written != expected:
            raise CellError(f"samples of {name}: {written} of {expected} lines were written")
