"""Train stacks of PosGen models with transformers' Trainer, resumable at any point."""

import hashlib
import json
import logging
import math
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from leval_border.errors import SettingError, UserError
from leval_border.files import hashes, write_text
from leval_harness.training import trainer as shared
from leval_harness.training.posgen_data import Batches, StackData
from leval_harness.training.posgen_models import build_stack, save_models
from leval_harness.training.posgen_settings import PosGenRun, Recipe
from leval_harness.training.stacked import StackedDecoder, token_losses
from leval_harness.training.workers import in_processes
from leval_tasks.posgen.sequences import position_ranges, splits

logger = logging.getLogger(__name__)

SETTINGS_FILE = "settings.json"
RESULT_FILE = "result.json"
SHOWN = ("test.id_accuracy", "test.ood_accuracy")
"""Numbers of a result that every reader counts on."""
METRICS_FILE = "metrics.csv"
TESTS = "tested"
"""Folder of a run's tests under encodings that it was not trained with."""
ROWS = "leval_harness_rows"
METRICS = ("step", "epoch", "train_loss", "validation_loss", "id_accuracy", "ood_accuracy")
EVALUATION_BATCH = 125
WARM_UP = 0.1
"""Share of the steps in which the learning rate rises."""


@torch.no_grad()
def evaluate(
    stack: StackedDecoder, data: StackData, split: str, rows: int | None = None
) -> list[dict[str, Any]]:
    """Teacher-forced metrics of each model, over all tokens after the seed of its first `rows`.

    One dictionary a model: `loss` in nats, the fractions `id_accuracy`, `ood_accuracy` and
    `accuracy@a-b` for each band, and `by_position`, those of each number after the seed.
    """
    was_training = stack.training
    stack.eval()
    device = next(stack.parameters()).device
    tokens = torch.stack([data.sequences(run, split)[:rows] for run in data.runs])
    n = tokens.shape[1]
    losses = correct = torch.zeros((), dtype=torch.float64, device=device)
    for batch in tokens.split(EVALUATION_BATCH, dim=1):
        ids = batch.to(device)
        targets = ids[..., data.first_target :]
        logits = stack.logits(ids[..., :-1])[:, :, data.first_target - 1 :]
        losses = losses + token_losses(logits, targets).double().sum(dim=1)
        correct = correct + (logits.argmax(-1) == targets).double().sum(dim=1)
    stack.train(was_training)
    # The first column is the first number after the seed.
    ranges = {
        name: (start - data.settings.seed_tokens, end - data.settings.seed_tokens)
        for name, (start, end) in position_ranges(data.settings).items()
    }
    by_position = (correct / n).cpu().tolist()
    return [
        {
            "loss": float(loss.mean() / n),
            **{name: sum(shares[a:b]) / (b - a) for name, (a, b) in ranges.items()},
            "by_position": shares,
        }
        for loss, shares in zip(losses.cpu(), by_position, strict=True)
    ]


class _Recorder(TrainerCallback):
    """Validates at fixed epochs, writes a CSV a run, and stops when a loss is no number."""

    def __init__(self, stack: StackedDecoder, data: StackData, folder: Path) -> None:
        self.stack, self.data = stack, data
        self.every = data.recipe.evaluate_every * data.recipe.steps_per_epoch
        self.files = [folder / run.folder / METRICS_FILE for run in data.runs]
        self.rows: list[list[list[Any]]] = [[] for _ in self.files]

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the rows of the steps before, which a state keeps."""
        self.rows = state.stateful_callbacks.get(ROWS, self.rows)
        for file, rows in zip(self.files, self.rows, strict=True):
            shared.write_rows(file, METRICS, rows)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        recipe, step, losses = self.data.recipe, state.global_step, self.stack.last_losses
        due = step % self.every == 0 or step == recipe.steps
        if losses is None or not (due or step % 20 == 0):
            return
        train_losses = losses.tolist()
        for run, loss in zip(self.data.runs, train_losses, strict=True):
            if not math.isfinite(loss):
                raise UserError(
                    f"loss: {loss} at step {step} in {run.folder}; lower the learning rate "
                    f"({recipe.learning_rate:g}) or train without bf16"
                )
        if due:
            results = evaluate(self.stack, self.data, "validation", recipe.validation_rows)
            if recipe.keep == "best":
                self.stack.keep([result["id_accuracy"] for result in results], step)
            for at, (loss, result) in enumerate(zip(train_losses, results, strict=True)):
                values = [result[name] for name in ("loss", "id_accuracy", "ood_accuracy")]
                row = [step, step / recipe.steps_per_epoch, loss, *values]
                self.rows[at].append(row)
                shared.add_row(self.files[at], row)
            state.stateful_callbacks[ROWS] = self.rows


def train_stack(
    recipe: Recipe,
    runs: Sequence[PosGenRun],
    folder: Path,
    save_steps: int = 200,
    device: str = "auto",
    progress: bool = True,
    deadline: float | None = None,
) -> list[dict[str, Any]]:
    """Train runs in the same steps; write a checkpoint, metrics and `result.json` for each.

    An unfinished stack of the same runs in the folder is continued. Past the `deadline`, by
    `time.monotonic`, a state is saved and nothing returned.

    Raises:
        UserError: a loss became NaN or infinite.
    """
    if deadline is not None and time.monotonic() >= deadline:
        return []
    torch.manual_seed(runs[0].seed)
    stack, data = build_stack(recipe, runs), StackData(recipe, runs)
    name = hashlib.sha256(" ".join(run.folder for run in runs).encode()).hexdigest()[:12]
    states = folder / ".unfinished" / name
    last, done = shared.last_state(states)
    clock = shared.Clock()
    arguments = shared.training_arguments(
        states,
        cpu=device == "cpu",
        max_steps=recipe.steps,
        per_device_train_batch_size=1,
        learning_rate=recipe.learning_rate,
        max_grad_norm=0.0,
        logging_steps=100,
        save_steps=save_steps,
        bf16=recipe.bf16,
        seed=runs[0].seed,
        remove_unused_columns=False,
        disable_tqdm=not progress or bool(os.environ.get("CI")),
    )
    trainer = _trainer(stack, data, arguments)
    trainer.add_callback(_Recorder(stack, data, folder))
    trainer.add_callback(shared.WholeStates(states))
    trainer.add_callback(clock)
    trainer.add_callback(shared.Deadline(deadline))
    logger.info("training %s, from step %d", ", ".join(r.folder for r in runs), done)
    trainer.train(resume_from_checkpoint=last)
    steps = trainer.state.global_step
    if steps < recipe.steps:
        return []
    kept = stack.restore_kept() if recipe.keep == "best" else [steps] * len(runs)
    written = finish(stack, data, folder, kept, steps, clock.seconds)
    shutil.rmtree(states, ignore_errors=True)
    return written


def finish(
    stack: StackedDecoder,
    data: StackData,
    folder: Path,
    kept: Sequence[int],
    steps: int,
    seconds: float,
) -> list[dict[str, Any]]:
    """Test the models of a stack, write each as a checkpoint, and its `result.json` last.

    Args:
        stack: the trained models.
        data: of their runs.
        folder: output folder of all runs.
        kept: for each model the step whose weights it has.
        steps: of the training.
        seconds: all of them together took.
    """
    runs = data.runs
    results = evaluate(stack, data, "test")
    save_models(stack, data.recipe, runs, folder)
    seconds = seconds / len(runs)
    rest = {"steps": steps, "seconds": seconds, "stack": len(runs), **shared.made_by()}
    written = []
    for run, step, result in zip(runs, kept, results, strict=True):
        files = hashes(folder / run.folder, without=(RESULT_FILE, TESTS))
        record = {"schema_version": 1, **vars(run), "kept_step": step, "test": result, **rest}
        record["files"] = files
        write_text(folder / run.folder / RESULT_FILE, json.dumps(record, indent=1))
        written.append(record)
    return written


def _trainer(stack: StackedDecoder, data: StackData, arguments: TrainingArguments) -> Trainer:
    recipe = data.recipe
    trained = [p for p in stack.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        trained, lr=recipe.learning_rate, weight_decay=recipe.weight_decay
    )
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
    # It stands in for a bar and prints losses that name no run; metrics.csv has them by run.
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
    minutes: float | None = None,
) -> Iterator[dict[str, Any]]:
    """Train every run that has no result in the folder yet; yield all results.

    `stack_size` runs are trained in the same steps, and `jobs` such stacks at a time, each in a
    process of its own. The device is `auto` or `cpu`. After so many `minutes` what is not finished
    is left as a state, and only what is finished is yielded.

    Raises:
        SettingError: the sequences cannot be made as asked, or the steps leave no warm-up; the
            folder is left alone.
        UserError: the folder holds something else, or a loss is no number.
    """
    for subtask in {run.subtask for run in runs}:
        splits(recipe.settings(subtask))
    by_rule = recipe.labels == "rule"
    if (
        not by_rule and WARM_UP * (recipe.steps + 1) == 1
    ):  # OneCycleLR then divides by the warm-up's length
        raise SettingError(
            f"epochs: {recipe.epochs} make {recipe.steps} steps, whose warm-up is zero long; train "
            "one epoch more or less"
        )
    request = recipe.recorded()
    from leval_harness.training.posgen_rule import train_by_rule  # which needs what stands here

    shared.is_claimed(folder / SETTINGS_FILE, request)
    with shared.held(folder):
        shared.claim(folder / SETTINGS_FILE, request)
        waiting = []
        for run in runs:
            done = shared.finished(folder / run.folder / RESULT_FILE, SHOWN)
            if done is None or any(done.get(name) != each for name, each in vars(run).items()):
                waiting.append(run)  # also where the result of another run was copied there
            else:
                yield done
        deadline = None if minutes is None else time.monotonic() + 60 * minutes
        how = (folder, save_steps, device, jobs == 1, deadline)
        calls = [
            (recipe, waiting[start : start + stack_size], *how)
            for start in range(0, len(waiting), stack_size)
        ]
        train = train_by_rule if by_rule else train_stack
        if jobs == 1:
            for call in calls:
                yield from train(*call)
        elif calls:
            yield from in_processes(train, calls, jobs)
