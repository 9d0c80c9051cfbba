"""One evaluation by lm-eval with a loaded model: a cell's tasks and files, complete."""

import logging
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from leval_harness import backends
from leval_harness.backends import registry
from leval_harness.backends.answer_limits import record_answer_ends
from leval_harness.cell_record import CellRecord
from leval_harness.layout import LOSSES_OF
from leval_harness.sweep.answers import Answers
from leval_harness.sweep.claims import Folder
from leval_harness.sweep.marks import mark_answer_ends, mark_truncated
from leval_harness.sweep.task_registry import lm_eval_names, own_tasks, task_folders
from resonance_vllm import config as overrides
from resonance_vllm.config import ModelPositions
from resonance_vllm.errors import RunError

log = logging.getLogger("leval_harness.sweep.worker")


class LoadedModel:
    """lm-eval's model of a group, loaded as shipped where its cells differ in the rotation."""

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
        """Take the rotation and the length of a cell, and count anew.

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
        if hasattr(self.lm, "count_anew"):
            self.lm.count_anew()

    def telemetry(self) -> dict[str, Any]:
        """What the backend has counted since the last turn."""
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


def evaluate(
    model: LoadedModel, cell: CellRecord, folder: Path, place: Folder, attempt: str
) -> dict[str, Any]:
    """Run lm-eval, write its files to `folder`, and return what the backend counted meanwhile.

    Raises:
        UserError: lm-eval could not save its results.
    """
    import lm_eval
    from lm_eval.loggers import EvaluationTracker

    model.turn(cell)
    tracker = EvaluationTracker(output_path=str(folder))
    with Answers(model, cell, place, attempt) as answers:
        manager, tasks = load_tasks(cell)
        results = lm_eval.simple_evaluate(
            model=model.lm,
            model_args=cell.model_args,
            tasks=tasks,
            task_manager=manager,  # without one lm-eval builds its whole index
            num_fewshot=cell.num_fewshot,
            batch_size=cell.batch_size,
            device=model.device,
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
        samples = results.pop("samples")
        others = {name: rows for name, rows in samples.items() if name not in own_tasks()}
        mark_truncated(model.lm, others)
        mark_answer_ends(model.ends.of if model.ends else lambda *_: [], samples)
    with patch.object(logging.getLogger("lm_eval.loggers.evaluation_tracker"), "warning", _raise):
        tracker.save_results_aggregated(results=results, samples=samples)
        for name, rows in samples.items():
            tracker.save_results_samples(task_name=name, samples=rows)
    _flatten(folder)
    _write_token_losses(tasks, folder)
    answers.forget()
    return model.telemetry()


def load_tasks(cell: CellRecord) -> tuple[Any, list[Any]]:
    """Task manager, and task and group objects with generation settings applied."""
    import numpy as np
    from lm_eval.tasks import TaskManager

    # a name of ours means our task, even if another one has that name
    manager = TaskManager(
        include_path=[str(folder) for folder in task_folders()],
        include_defaults=bool(lm_eval_names(cell.tasks)),
        metadata={**cell.model_args, **cell.metadata},
    )
    objects: list[Any] = []
    for name in cell.tasks:
        # some tasks draw their questions when they are loaded: the same ones in every cell
        random.seed(cell.seed)
        np.random.seed(cell.seed)  # noqa: NPY002 - the tasks draw from the global state
        loaded = manager.load([name])
        for task in loaded["tasks"].values():
            if cell.gen_kwargs and task.get_config("output_type") == "generate_until":
                task.set_config(key="generation_kwargs", value=cell.gen_kwargs, update=True)
        group = loaded["groups"].get(name)
        objects += loaded["tasks"].values() if group is None else [group]
    return manager, objects


def _raise(message: str, *values: object) -> None:
    """Stands for a logger's method where what a library only logs is an error."""
    raise RunError(f"lm-eval: {message % values}")


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
