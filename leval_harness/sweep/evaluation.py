"""One evaluation by lm-eval in this process: a cell's model, tasks, and files, complete."""

import contextlib
import logging
import random
import sys
import time
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

import leval_harness.backends
from leval_harness.backends.answer_limits import record_answer_ends
from leval_harness.cell_record import CellRecord
from leval_harness.layout import LOSSES_OF
from leval_harness.secrets import redact_samples, without_credentials
from leval_harness.sweep import CellError
from leval_harness.sweep.cell_additions import mark_answer_ends, mark_truncated
from leval_harness.sweep.cell_files import DISK_ERRORS
from leval_harness.sweep.task_registry import is_file, own_tasks, task_folders
from resonance_vllm.errors import one_of
from resonance_vllm.files import read_object

log = logging.getLogger("leval_harness.sweep.cell")

AUTO_CLASSES = ("auto_factory", "configuration_auto", "processing_auto", "tokenization_auto")
"""Modules of transformers that ask `RESOLVE` whether to run a checkpoint's own code."""
RESOLVE = "resolve_trust_remote_code"


@contextlib.contextmanager
def remote_code_as_configured(model_args: Mapping[str, Any]) -> Iterator[None]:
    """Run Python that comes with a checkpoint only where `model_args` have `trust_remote_code`.

    lm-eval's RULER and BABILong load the tokenizer with `trust_remote_code=True`. In this block
    that has no effect: a checkpoint that works without its own code is loaded without it, and for
    another one transformers' error names the argument.
    """
    trusted = str(model_args.get("trust_remote_code", "")).lower() in ("true", "1")
    if trusted or find_spec("transformers") is None:  # a served model needs none
        yield
        return
    from transformers.dynamic_module_utils import resolve_trust_remote_code

    def resolve(trust_remote_code: Any, *args: Any, **kwargs: Any) -> Any:
        return resolve_trust_remote_code(False, *args, **kwargs)

    with contextlib.ExitStack() as stack:
        for name in AUTO_CLASSES:
            module = import_module(f"transformers.models.auto.{name}")
            stack.callback(setattr, module, RESOLVE, getattr(module, RESOLVE))
            setattr(module, RESOLVE, resolve)
        yield


def evaluate(cell: CellRecord, partial: Path) -> dict[str, Any]:
    """Run lm-eval, write its files to `partial`, and return the backend's telemetry, if any.

    On transformers the telemetry includes the precision in which the model has rotated. The
    files hold no credentials, see `leval_harness.secrets`.

    Raises:
        CellError: lm-eval returned or saved nothing, or a request ran out of memory even alone.
    """
    import lm_eval
    from lm_eval.loggers import EvaluationTracker

    lm, device = _load_model(cell)
    tracker = EvaluationTracker(output_path=str(partial))
    manager, tasks = load_tasks(cell)
    ends = record_answer_ends(lm)
    results = lm_eval.simple_evaluate(
        model=lm,
        model_args=without_credentials(cell.model_args),
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
        results[key] = without_credentials(results.get(key, {}))
    samples = results.pop("samples")
    mark_truncated(lm, {name: rows for name, rows in samples.items() if name not in own_tasks()})
    mark_answer_ends(ends, samples)
    _save(tracker, results, redact_samples(samples))
    _flatten(partial)
    _write_token_losses(tasks, partial)
    telemetry = dict(lm.telemetry()) if hasattr(lm, "telemetry") else {}
    if failed := telemetry.get("requests_failed"):
        # an unanswered request scores as a wrong answer: not a result of the method
        raise CellError(
            f"{len(failed)} requests ran out of memory even alone: {', '.join(failed[:5])}; use a "
            "shorter context_length, a smaller dtype or a larger device"
        )
    precision = getattr(getattr(lm, "model", None), "rope_precision_used", None)
    return telemetry if precision is None else {**telemetry, "rope_precision": precision}


def _load_model(cell: CellRecord) -> tuple[Any, str | None]:
    """lm-eval's model of a cell, and the device that it was given."""
    from lm_eval.api.registry import get_model

    backend, device = cell.model.backend, cell.device
    leval_harness.backends.register()
    if leval_harness.backends.libraries().get(backend) == "transformers":
        import torch

        # vLLM loads our plugin by itself, in each of its processes
        from resonance_vllm import hf

        hf.register()
        if not device:  # lm-eval's own default is a GPU
            others = "mps" if torch.backends.mps.is_available() else "cpu"
            device = "cuda" if torch.cuda.is_available() else others
    options = {"batch_size": cell.batch_size, "max_batch_size": None, "device": device}
    started = time.monotonic()
    lm = get_model(backend).create_from_arg_obj(dict(cell.model_args), options)
    log.info("model ready after %.1f s", time.monotonic() - started)
    return lm, device


def load_tasks(cell: CellRecord) -> tuple[Any, list[Any]]:
    """Task manager, and task and group objects with generation settings applied."""
    import numpy as np
    from lm_eval.tasks import TaskManager

    metadata = {**cell.model_args, **cell.metadata}
    known = own_tasks()
    folders = [str(folder) for folder in task_folders()]
    ours = manager = TaskManager(include_path=folders, include_defaults=False, metadata=metadata)
    if not all(name in known or is_file(name) for name in cell.tasks):
        manager = TaskManager(metadata=metadata)
    objects: list[Any] = []
    tasks: dict[str, Any] = {}
    for name in cell.tasks:
        # some tasks draw their questions when they are loaded: the same ones in every cell
        random.seed(cell.seed)
        np.random.seed(cell.seed)  # noqa: NPY002 - the tasks draw from the global state
        # a name of ours means our task, even if another one has that name
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


def _save(tracker: Any, results: dict[str, Any], samples: Mapping[str, Any]) -> None:
    """Write lm-eval's files; its tracker logs every error as a warning, which is raised here."""
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


def _write_token_losses(tasks: list[Any], partial: Path) -> None:
    """The losses of tokens that tasks keep, a file for each text and read."""
    import numpy as np

    for task in tasks:
        for document, reads in getattr(task, "token_losses", {}).items():
            for read, losses in reads.items():
                name = LOSSES_OF.format(task=task.task_name, document=document, read=read)
                np.save(partial / name, losses)


def _flatten(partial: Path) -> None:
    """Move lm-eval's files from its folder named after the model to `partial`."""
    for path in [*partial.rglob("results_*.json"), *partial.rglob("samples_*.jsonl")]:
        path.replace(partial / path.name)
    for folder in sorted((each for each in partial.rglob("*") if each.is_dir()), reverse=True):
        folder.rmdir()
    results = list(partial.glob("results_*.json"))
    if len(results) != 1 or read_object(results[0]) is None:
        raise CellError("lm-eval's results file is missing or not valid")
