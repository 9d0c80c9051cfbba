"""Train PosGen models: stacks of them with transformers' Trainer, side by side, resumable."""

import hashlib
import logging
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from leval_harness.training import trainer as shared
from leval_harness.training.posgen_evaluate import (
    METRICS,
    METRICS_FILE,
    SETTINGS_FILE,
    evaluate,
    finished_runs,
    metrics_row,
    require_finite,
    write_results,
)
from leval_harness.training.posgen_models import (
    Batches,
    StackData,
    adamw,
    build_stack,
    split_tokens,
)
from leval_harness.training.posgen_rule import train_by_rule
from leval_harness.training.posgen_settings import PosGenRun, Recipe, Work, rope_parameters
from leval_harness.training.stack import Stack
from leval_tasks.posgen.encodings import ENCODINGS
from resonance_vllm.errors import SettingError
from resonance_vllm.files import write_json

logger = logging.getLogger(__name__)

ROWS = "posgen"
"""Key of the rows of a validation in the Trainer's history."""
WARM_UP = 0.1
"""Share of the steps in which the learning rate rises."""


class _Recorder(TrainerCallback):
    """Validate at fixed epochs, write a CSV a run, stop when a loss is NaN or infinite."""

    def __init__(self, stack: Stack, data: StackData, folder: Path) -> None:
        self.stack, self.data = stack, data
        self.every = data.recipe.evaluate_every * data.recipe.steps_per_epoch
        self.files = [folder / run.folder / METRICS_FILE for run in data.runs]

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The history of a resumed state has the rows of earlier steps."""
        recipe, step, losses = self.data.recipe, state.global_step, self.stack.last_losses
        due = step % self.every == 0 or step == recipe.steps
        if losses is None or not (due or step % 20 == 0):
            return
        train_losses = losses.tolist()
        for run, loss in zip(self.data.runs, train_losses, strict=True):
            require_finite(loss, step, run, recipe)
        if due:
            results = self._validate()
            if recipe.keep != "last":
                self.stack.keep([result["id_accuracy"] for result in results], step)
            epoch = step / recipe.steps_per_epoch
            pairs = zip(train_losses, results, strict=True)
            rows = [metrics_row(step, epoch, loss, result) for loss, result in pairs]
            state.log_history.append({"step": step, ROWS: rows})
            for at, file in enumerate(self.files):
                so_far = [each[ROWS][at] for each in state.log_history if ROWS in each]
                shared.write_rows(file, METRICS, so_far)

    def _validate(self) -> list[dict[str, Any]]:
        recipe, encodings = self.data.recipe, [run.encoding for run in self.data.runs]
        if recipe.keep != "best_scaled":
            return evaluate(self.stack, self.data, "validation", recipe.validation_rows)
        scaled = [ENCODINGS[name].scaled("code") for name in encodings]
        self.stack.rotate_by([rope_parameters(name, recipe) for name in scaled])
        results = evaluate(self.stack, self.data, "validation", recipe.validation_rows)
        self.stack.rotate_by([rope_parameters(name, recipe) for name in encodings])
        return results


def train_stack(recipe: Recipe, runs: Sequence[PosGenRun], work: Work) -> list[dict[str, Any]]:
    """Train runs in the same steps; write a checkpoint, metrics and `result.json` for each.

    An unfinished stack of the same runs in the folder is continued.

    Raises:
        UserError: a loss became NaN or infinite.
    """
    torch.manual_seed(runs[0].seed)
    stack, data = build_stack(recipe, runs), StackData(recipe, runs)
    name = hashlib.sha256(" ".join(run.folder for run in runs).encode()).hexdigest()[:12]
    states = work.folder / ".unfinished" / name
    clock = shared.Clock()
    arguments = shared.training_arguments(
        states,
        cpu=work.device == "cpu",
        max_steps=recipe.steps,
        per_device_train_batch_size=1,
        learning_rate=recipe.learning_rate,
        max_grad_norm=0.0,
        logging_steps=100,
        save_steps=work.save_steps,
        bf16=recipe.bf16,
        seed=runs[0].seed,
        remove_unused_columns=False,
        disable_tqdm=not work.progress,
    )
    trainer = _trainer(stack, data, arguments)
    trainer.add_callback(_Recorder(stack, data, work.folder))
    trainer.add_callback(clock)
    logger.info("training %s", ", ".join(run.folder for run in runs))
    trainer.train(resume_from_checkpoint=shared.last_state(states))
    steps = trainer.state.global_step
    kept = stack.restore_kept() if recipe.keep != "last" else [steps] * len(runs)
    written = write_results(stack, data, work.folder, kept, steps, clock.seconds)
    shutil.rmtree(states, ignore_errors=True)
    return written


def _trainer(stack: Stack, data: StackData, arguments: TrainingArguments) -> Trainer:
    recipe = data.recipe
    optimizer = adamw(stack, recipe)
    # One cycle: cosine, 10 % warm-up from lr/25, down to lr/250,000; it moves beta1 as well.
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=recipe.learning_rate, total_steps=recipe.steps + 1, pct_start=WARM_UP
    )
    trainer = shared.InOrderTrainer(
        model=stack,
        args=arguments,
        train_dataset=Batches(data),
        # An item is a whole batch.
        data_collator=lambda items: {"input_ids": items[0], "first_target": data.first_target},
        optimizers=(optimizer, schedule),
    )
    # It prints losses without the names of runs; metrics.csv has them by run.
    trainer.remove_callback(PrinterCallback)
    return trainer


def train_all(
    recipe: Recipe,
    runs: Sequence[PosGenRun],
    folder: Path,
    *,
    stack_size: int = 1,
    jobs: int = 1,
    save_steps: int = 200,
    device: str = "auto",
) -> Iterator[dict[str, Any]]:
    """Train every run that has no result in the folder yet; yield all results.

    Args:
        recipe: of all runs.
        runs: what to train.
        folder: output folder.
        stack_size: runs that are trained in the same steps.
        jobs: stacks at a time, each in a process of its own.
        save_steps: steps between two states.
        device: `auto` or `cpu`.

    Raises:
        SettingError: the sequences cannot be made, or the warm-up has no length; nothing is
            written.
        UserError: the folder holds something else, or a loss is NaN or infinite.
    """
    for subtask in {run.subtask for run in runs}:
        split_tokens(recipe.settings(subtask))
    by_rule = recipe.labels == "rule"
    # OneCycleLR divides by the number of steps of the warm-up, less one
    if not by_rule and WARM_UP * (recipe.steps + 1) == 1:
        raise SettingError(
            f"epochs: {recipe.epochs} make {recipe.steps} steps, whose warm-up is zero long; train "
            "one epoch more or less"
        )
    request = recipe.recorded()
    shared.refuse_other(folder / SETTINGS_FILE, request)
    with shared.exclusive(folder):
        write_json(folder / SETTINGS_FILE, request)
        done = finished_runs(folder)
        yield from (done[run] for run in runs if run in done)
        waiting = [run for run in runs if run not in done]
        work = Work(folder, save_steps, device, jobs == 1)
        calls = [
            (recipe, waiting[start : start + stack_size], work)
            for start in range(0, len(waiting), stack_size)
        ]
        train = train_by_rule if by_rule else train_stack
        if jobs == 1:
            for call in calls:
                yield from train(*call)
        elif calls:
            yield from in_processes(train, calls, jobs)


def in_processes(
    function: Callable[..., list[Any]], calls: Sequence[tuple[Any, ...]], jobs: int
) -> Iterator[Any]:
    """Items of the lists that the calls return, in the order in which the calls finish.

    Small models keep one core busier than two, so as many processes as cores train more of them in
    an hour than one process with as many threads. What the first failing call raises is raised, and
    the others are stopped. The function must be importable by name.
    """
    with ProcessPoolExecutor(
        min(jobs, len(calls)),
        # A forked process cannot use CUDA, and inherits the locks of torch's threads.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_begin_worker,
        initargs=(max(1, torch.get_num_threads() // jobs),),
    ) as pool:
        futures = [pool.submit(function, *call) for call in calls]
        try:
            finished = as_completed(futures)
            for future in tqdm(finished, total=len(calls), disable=None):
                yield from future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()
            raise


def _begin_worker(threads: int) -> None:
    torch.set_num_threads(threads)
    # Ctrl-C reaches every process of the terminal; a worker ends by it without a message.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
