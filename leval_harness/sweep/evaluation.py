"""One evaluation by lm-eval with a loaded model: a cell's tasks and files, complete."""

import logging
import random
import sys
import time
from collections.abc import Mapping, Sequence
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

from leval_harness import backends
from leval_harness.backends import registry
from leval_harness.backends.answer_limits import record_answer_ends
from leval_harness.cell_record import CellRecord
from leval_harness.layout import LOSSES_OF
from leval_harness.sweep.answers import Answers
from leval_harness.sweep.cell_additions import mark_answer_ends, mark_truncated
from leval_harness.sweep.claims import Folder
from leval_harness.sweep.task_registry import is_file, own_tasks, task_folders
from resonance_vllm import config as overrides
from resonance_vllm.config import ModelPositions
from resonance_vllm.errors import UserError, one_of
from resonance_vllm.files import read_object

log = logging.getLogger("leval_harness.sweep.worker")


class LoadedModel:
    """lm-eval's model of a group: loaded once, as shipped where its cells differ in the rotation.

    Args:
        cells: of the group.
    """

    def __init__(self, cells: Sequence[CellRecord]) -> None:
        cell = cells[0]
        self.exchanges = any(each.model_args != cell.model_args for each in cells)
        arguments = as_shipped(cells) if self.exchanges else dict(cell.model_args)
        self.device = cell.device
        if backends.libraries().get(cell.model.backend) == "transformers" and not self.device:
            import torch  # lm-eval's own default is a GPU

            others = "mps" if torch.backends.mps.is_available() else "cpu"
            self.device = "cuda" if torch.cuda.is_available() else others
        options = {"batch_size": cell.batch_size, "max_batch_size": None, "device": self.device}
        started = time.monotonic()
        backend = registry.backend_class(cell.model.backend)
        self.lm = backend.create_from_arg_obj(arguments, options)
        self.ends = record_answer_ends(self.lm)
        log.info("model ready after %.1f s", time.monotonic() - started)

    def turn(self, cell: CellRecord) -> None:
        """Take the rotation and the length of a cell.

        Raises:
            CannotExchange: the model has to be loaded anew for them.
        """
        if self.exchanges:
            method = cell.method
            registry.set_rope(
                self.lm,
                method.rope_parameters,
                precision=method.rope_precision,
                context_length=length_of(cell),
            )

    def telemetry(self) -> dict[str, Any]:
        """What the backend has counted since it was loaded."""
        counted = dict(self.lm.telemetry()) if hasattr(self.lm, "telemetry") else {}
        precision = getattr(getattr(self.lm, "model", None), "rope_precision_used", None)
        return counted if precision is None else {**counted, "rope_precision": precision}


def length_of(cell: CellRecord) -> int:
    """Longest sequence of a cell in tokens, as its model gets it."""
    args = cell.model_args
    return int(args.get("max_length") or args["max_model_len"])


def as_shipped(cells: Sequence[CellRecord]) -> dict[str, Any]:
    """Arguments with which lm-eval loads a checkpoint as shipped, for the longest of some cells."""
    cell = max(cells, key=length_of)
    rope_free = overrides.model_args(
        None,
        ModelPositions.of_checkpoint(cell.model.path, cell.model.revision),
        library=backends.library_of(cell.model.backend),
        model_path=cell.model.path,
        context_length=length_of(cell),
        rope_precision=cell.method.rope_precision,
    )
    own = {key: value for key, value in cell.model_args.items() if key in ("dtype", "revision")}
    return {**cell.model.args, **rope_free, **own}


def evaluate(model: LoadedModel, cell: CellRecord, folder: Path, place: Folder) -> dict[str, Any]:
    """Run lm-eval, write its files to `folder`, and return what the backend counted meanwhile.

    Raises:
        UserError: lm-eval returned or saved nothing, or requests had too little memory.
    """
    import lm_eval
    from lm_eval.loggers import EvaluationTracker

    model.turn(cell)
    tracker = EvaluationTracker(output_path=str(folder))
    before = model.telemetry()
    with Answers(model, cell, place) as answers:
        manager, tasks = load_tasks(cell)
        results = lm_eval.simple_evaluate(
            model=model.lm,
            model_args=cell.model_args,
            tasks=tasks,
            task_manager=manager,  # without one lm-eval builds its whole index
            num_fewshot=cell.num_fewshot,
            batch_size=cell.batch_size,
            device=model.device,
            use_cache=answers.response_cache,
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
            raise UserError("lm-eval returned no results")
        samples = results.pop("samples")
        others = {name: rows for name, rows in samples.items() if name not in own_tasks()}
        mark_truncated(model.lm, others)
        mark_answer_ends(answers.ends_of, samples)
    _save(tracker, results, samples)
    _flatten(folder)
    _write_token_losses(tasks, folder)
    counted = since(model.telemetry(), before)
    if failed := counted.get("requests_failed"):
        # an unanswered request scores as a wrong answer: not a result of the method
        raise UserError(
            f"{len(failed)} requests ran out of memory even alone: {', '.join(failed[:5])}; use a "
            "shorter context_length, a smaller dtype or a larger device"
        )
    answers.forget()
    return counted


def since(now: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """What was counted between two moments; peaks, shares and names are as they are now."""
    found = dict(now)
    for name, value in now.items():
        old = before.get(name)
        if isinstance(value, list) and isinstance(old, list):
            found[name] = value[len(old) :]
        elif name == "seconds" or (isinstance(value, int) and name.startswith("tokens_")):
            found[name] = value - (old or 0)
    return found


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
        full = "OSError(28," in text or "OSError(27," in text or "OSError(122," in text
        raise OSError(f"{'the disk is full: ' if full else ''}lm-eval could not save: {text}")


def _write_token_losses(tasks: list[Any], folder: Path) -> None:
    """The losses of tokens that tasks keep, a file for each text and read."""
    import numpy as np

    for task in tasks:
        for document, reads in getattr(task, "token_losses", {}).items():
            for read, losses in reads.items():
                name = LOSSES_OF.format(task=task.task_name, document=document, read=read)
                np.save(folder / name, losses)


def _flatten(folder: Path) -> None:
    """Move lm-eval's files from its folder named after the model to `folder`."""
    for path in [*folder.rglob("results_*.json"), *folder.rglob("samples_*.jsonl")]:
        path.replace(folder / path.name)
    for inner in sorted((each for each in folder.rglob("*") if each.is_dir()), reverse=True):
        inner.rmdir()
    results = list(folder.glob("results_*.json"))
    if len(results) != 1 or read_object(results[0]) is None:
        raise UserError("lm-eval's results file is missing or not valid")
