"""Train PosGen models, each by a loop of its own, resumable; several side by side."""

import copy
import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from joblib import Parallel, delayed
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from tqdm import tqdm

from leval_harness.training import trainer as shared
from leval_harness.training.posgen_evaluate import (
    SETTINGS_FILE,
    evaluate,
    finished_runs,
    losses_and_hits,
    write_result,
)
from leval_harness.training.posgen_models import batches, build_model, split_tokens
from leval_harness.training.posgen_settings import PosGenRun, Recipe, Work, rope_parameters
from leval_tasks.posgen.encodings import ENCODINGS
from resonance_vllm.errors import SettingError, UserError
from resonance_vllm.files import write_json
from resonance_vllm.hf import apply_rope

logger = logging.getLogger(__name__)

METRICS_FILE = "metrics.csv"
METRICS = ("step", "epoch", "train_loss", "validation_loss", "id_accuracy", "ood_accuracy")
WARM_UP = 0.1
"""Share of the steps in which the learning rate rises."""
CHECKED = 20
"""Steps between two looks at the loss."""


class Training:
    """The training of one model: its state, its steps, its validations, its result.

    Attributes:
        step: steps that were done.
        kept: the best model's step, accuracy and weights, where the recipe keeps it.
    """

    def __init__(self, recipe: Recipe, run: PosGenRun, work: Work) -> None:
        torch.manual_seed(run.seed)
        self.recipe, self.run, self.work = recipe, run, work
        self.settings = recipe.settings(run.subtask)
        self.device = shared.device_of(work.device)
        self.model = build_model(recipe, run).to(self.device).train()
        self.optimizer = torch.optim.AdamW(
            [p for p in self.model.parameters() if p.requires_grad],
            lr=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
        )
        self.schedule: Any = None
        self.step = 0
        self.rows: list[list[Any]] = []
        self.kept: tuple[int, float, dict[str, Tensor]] = (0, -1.0, {})
        self._start = time.monotonic()

    def learn(
        self, inputs: Tensor, labels: Tensor, rate: float | None = None, clip: float | None = None
    ) -> tuple[Tensor, Tensor]:
        """One step; inputs and labels are those of `losses_and_hits`.

        Args:
            inputs: token ids.
            labels: of the last places.
            rate: learning rate, where no schedule sets it.
            clip: largest norm of the gradient.

        Returns:
            Mean loss and hits before the step.
        """
        for group in self.optimizer.param_groups if rate is not None else ():
            group["lr"] = rate
        device = self.device.type
        # With its backward pass torch's fused attention for CPUs is slower at such lengths.
        plain = sdpa_kernel(SDPBackend.MATH) if device == "cpu" else nullcontext()
        with (
            plain,
            torch.autocast(device, torch.bfloat16, enabled=self.recipe.bf16),
        ):
            losses, hits = losses_and_hits(self.model, inputs, labels)
        loss = losses.mean()
        self.optimizer.zero_grad()
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        self.optimizer.step()
        if self.schedule is not None:
            self.schedule.step()
        self.step += 1
        return loss.detach(), hits

    def finite(self, loss: Tensor) -> float:
        """The loss as a number.

        Raises:
            UserError: it is NaN or infinite.
        """
        if not math.isfinite(value := loss.item()):
            raise UserError(
                f"loss: {value} at step {self.step} in {self.run.folder}; lower the learning rate "
                f"({self.recipe.learning_rate:g}) or train without bf16"
            )
        return value

    def validate(self, loss: float, epoch: float) -> None:
        """Validate, write a row of `metrics.csv`, and keep the model if it is the best so far."""
        recipe, own = self.recipe, self.run.encoding
        scaled = ENCODINGS[own].scaled("code")
        if recipe.keep == "best_scaled":
            apply_rope(self.model, rope_parameters(scaled, recipe))
        rows = recipe.validation_rows
        result = evaluate(self.model, self.settings, "validation", rows)
        if recipe.keep == "best_scaled":
            apply_rope(self.model)
        if recipe.keep != "last" and result["id_accuracy"] > self.kept[1]:
            weights = copy.deepcopy(self.model.state_dict())
            self.kept = (self.step, result["id_accuracy"], weights)
        found = (result[name] for name in ("loss", "id_accuracy", "ood_accuracy"))
        self.rows.append([self.step, epoch, loss, *found])
        shared.write_rows(self.work.folder / self.run.folder / METRICS_FILE, METRICS, self.rows)

    def result(self) -> dict[str, Any]:
        """Test the trained model, or the best one, and write it."""
        kept = self.step
        if self.recipe.keep != "last":
            kept, _, weights = self.kept
            self.model.load_state_dict(weights)
        facts = {"kept_step": kept, "steps": self.step, "seconds": time.monotonic() - self._start}
        return write_result(self.model, self.recipe, self.run, self.work.folder, facts)

    def save(self, file: Path) -> None:
        """Write the state, which appears whole or not at all."""
        file.parent.mkdir(parents=True, exist_ok=True)
        parts = (self.model, self.optimizer, self.schedule)
        state = [part.state_dict() for part in parts]
        seconds = time.monotonic() - self._start
        counted = (self.step, self.rows, self.kept, seconds, torch.get_rng_state())
        torch.save((state, counted), file.with_suffix(".part"))
        file.with_suffix(".part").replace(file)

    def resume(self, file: Path) -> None:
        """Go on from a state that `save` wrote, if there is one."""
        if not file.exists():
            return
        state, counted = torch.load(file, map_location="cpu", weights_only=True)
        parts = (self.model, self.optimizer, self.schedule)
        for part, each in zip(parts, state, strict=True):
            part.load_state_dict(each)
        self.step, self.rows, self.kept, seconds, random = counted
        torch.set_rng_state(random)
        self._start = time.monotonic() - seconds


def train_run(recipe: Recipe, run: PosGenRun, work: Work) -> dict[str, Any]:
    """Train a model; write a checkpoint, metrics and `result.json`.

    An unfinished run in the folder is continued.

    Raises:
        UserError: the loss became NaN or infinite.
    """
    training = Training(recipe, run, work)
    # One cycle: cosine, 10 % warm-up from lr/25, down to lr/250,000; it moves beta1 as well.
    training.schedule = torch.optim.lr_scheduler.OneCycleLR(
        training.optimizer,
        max_lr=recipe.learning_rate,
        total_steps=recipe.steps + 1,
        pct_start=WARM_UP,
    )
    state = work.folder / ".unfinished" / f"{run.folder.replace('/', '-')}.pt"
    training.resume(state)
    every = recipe.evaluate_every * recipe.steps_per_epoch
    bar = tqdm(
        batches(recipe, run, training.step),
        initial=training.step,
        total=recipe.steps,
        desc=run.folder,
        disable=None if work.progress else True,
    )
    for inputs, labels in bar:
        loss, _ = training.learn(inputs, labels)
        due = training.step % every == 0 or training.step == recipe.steps
        if due:
            training.validate(training.finite(loss), training.step / recipe.steps_per_epoch)
        elif training.step % CHECKED == 0:
            training.finite(loss)
        if training.step % work.save_steps == 0:
            training.save(state)
    written = training.result()
    state.unlink(missing_ok=True)
    return written


def train_all(
    recipe: Recipe,
    runs: Sequence[PosGenRun],
    folder: Path,
    *,
    jobs: int = 1,
    save_steps: int = 200,
    device: str = "auto",
) -> Iterator[dict[str, Any]]:
    """Train every run that has no result in the folder yet; yield all results.

    Args:
        recipe: of all runs.
        runs: what to train.
        folder: output folder.
        jobs: runs at a time, each in a process of its own.
        save_steps: steps between two states.
        device: `auto` or `cpu`.

    Raises:
        SettingError: the sequences cannot be made, or the warm-up has no length; nothing is
            written.
        UserError: the folder holds something else, or a loss is NaN or infinite.
    """
    for subtask in {run.subtask for run in runs}:
        split_tokens(recipe.settings(subtask))
    # OneCycleLR divides by the number of steps of the warm-up, less one
    if recipe.labels == "sequence" and WARM_UP * (recipe.steps + 1) == 1:
        raise SettingError(
            f"epochs: {recipe.epochs} make {recipe.steps} steps, whose warm-up is zero long; train "
            "one epoch more or less"
        )
    from leval_harness.training.posgen_rule import train_by_rule

    request = recipe.recorded()
    shared.refuse_other(folder / SETTINGS_FILE, request)
    with shared.exclusive(folder):
        write_json(folder / SETTINGS_FILE, request)
        done = finished_runs(folder)
        yield from (done[run] for run in runs if run in done)
        work = Work(folder, save_steps, device, jobs == 1)
        train = delayed(train_by_rule if recipe.labels == "rule" else train_run)
        # Small models keep one core busier than two: each process has its share of the cores.
        side_by_side = Parallel(n_jobs=jobs, return_as="generator_unordered")
        yield from side_by_side(train(recipe, run, work) for run in runs if run not in done)
