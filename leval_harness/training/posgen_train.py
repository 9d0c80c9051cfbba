"""Train PosGen models, each in a plain training loop, several at the same time."""

import copy
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from joblib import Parallel, delayed
from torch import Tensor
from tqdm import tqdm

from leval_harness.training import posgen_models as models
from leval_harness.training import trainer as shared
from leval_harness.training.settings import PosGenRun, Recipe, rope_parameters
from leval_tasks.posgen.encodings import tests_of
from leval_tasks.posgen.sequences import build_tokenizer
from resonance_vllm.common.files import write_json
from resonance_vllm.hf import apply_rope

METRICS_FILE = "metrics.csv"
METRICS = ("step", "epoch", "train_loss", "validation_loss", "id_accuracy", "ood_accuracy")
"""Columns of the metrics file, a row per validation; losses in nats per number."""


class Training:
    """One model with its optimiser and its learning-rate schedule.

    Args:
        recipe: settings of the training.
        run: sub-task, encoding and seed of the model.
    """

    def __init__(self, recipe: Recipe, run: PosGenRun) -> None:
        torch.manual_seed(run.seed)
        self.recipe = recipe
        self.run = run
        self.model = models.build_model(recipe, run).to(shared.device()).train()
        if self.model.device.type == "cpu" and recipe.architecture.kind == "llama":
            # at such lengths the backward pass of torch's fused CPU kernel is slower
            self.model.set_attn_implementation("eager")
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(
            trained, recipe.learning_rate, weight_decay=recipe.weight_decay
        )
        # One cycle: 10 % warm-up from lr/25, then cosine down to lr/250,000; it moves beta1, too.
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, recipe.learning_rate, recipe.steps + 1, pct_start=0.1
        )

    def learn(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Take one optimiser step.

        Args:
            inputs: token ids `[batch, length]`.
            labels: token ids `[batch, labels]` of the last positions.

        Returns:
            The mean loss before the step, a scalar in nats per number.
        """
        with torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.recipe.bf16):
            losses, _ = models.losses_and_hits(self.model, inputs, labels)
        loss = losses.mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return loss.detach()

    def validate(self) -> dict[str, Any]:
        """Return what `evaluate` measures on the validation split.

        The recipe's `best_scaled` validates under the YaRN of the authors' code, and trains on
        without it.
        """
        recipe = self.recipe
        scaled = recipe.keep == "best_scaled"
        if scaled:
            encoding = tests_of("code", self.run.encoding)[-1]
            apply_rope(self.model, rope_parameters(encoding, recipe))
        result = models.evaluate(
            self.model, recipe.settings(self.run.subtask), "validation", recipe.validation_rows
        )
        if scaled:
            apply_rope(self.model)
        return result


class BestWeights:
    """The weights that a recipe keeps: those of the best validation, or simply the last ones.

    Args:
        recipe: its `keep` says which.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.keeps_best = recipe.keep != "last"
        self.step = recipe.steps
        self._accuracy = -1.0
        self._weights: dict[str, Tensor] | None = None

    def offer(self, model: Any, step: int, accuracy: float) -> None:
        """Copy a model's weights if its in-distribution accuracy is higher than all before."""
        if self.keeps_best and accuracy > self._accuracy:
            self._accuracy = accuracy
            self.step = step
            self._weights = copy.deepcopy(model.state_dict())

    def restore(self, model: Any) -> None:
        """Put the kept weights back into the model."""
        if self._weights is not None:
            model.load_state_dict(self._weights)


def train_run(
    recipe: Recipe, run: PosGenRun, folder: Path, progress: bool = True
) -> dict[str, Any]:
    """Train and test a model, and write checkpoint, metrics and `result.json`.

    Args:
        recipe: settings of the training.
        run: the model.
        folder: output folder; the model gets the folder `run.folder` in it.
        progress: whether to show a progress bar.

    Returns:
        What `result.json` holds.

    Raises:
        RunError: the loss became NaN or infinite.
    """
    start = time.monotonic()
    training = Training(recipe, run)
    steps_between_validations = recipe.evaluate_every * recipe.steps_per_epoch
    rows: list[tuple[float, ...]] = []
    best = BestWeights(recipe)
    steps = tqdm(
        models.batches(recipe, run),
        run.folder,
        recipe.steps,
        # None: no bar where standard error is no terminal
        disable=None if progress else True,
    )
    for step, (inputs, labels) in enumerate(steps, 1):
        loss = training.learn(inputs, labels)
        if step % steps_between_validations and step != recipe.steps:
            continue
        shared.refuse_infinite(loss.item(), f"step {step} in {run.folder}")
        result = training.validate()
        best.offer(training.model, step, result["id_accuracy"])
        measured = (result[name] for name in ("loss", "id_accuracy", "ood_accuracy"))
        rows.append((step, step / recipe.steps_per_epoch, loss.item(), *measured))
    best.restore(training.model)
    seconds = time.monotonic() - start
    settings = recipe.settings(run.subtask)
    test = models.evaluate(training.model, settings, "test")
    run_folder = folder / run.folder
    training.model.save_pretrained(run_folder)
    build_tokenizer(settings.modulus).save_pretrained(run_folder)
    pd.DataFrame(rows, columns=METRICS).to_csv(run_folder / METRICS_FILE, index=False)
    # tests of a model that was in this folder before
    shutil.rmtree(run_folder / models.TESTS, ignore_errors=True)
    record = {
        "schema_version": 1,
        **vars(run),
        "test": test,
        "kept_step": best.step,
        "steps": recipe.steps,
        "seconds": seconds,
        **shared.made_by(),
    }
    write_json(run_folder / models.RESULT_FILE, record)  # last: it says that the run is finished
    return record


def train_all(
    recipe: Recipe, runs: Sequence[PosGenRun], folder: Path, *, jobs: int = 1
) -> Iterator[dict[str, Any]]:
    """Train every model that has no result in a folder yet; yield the results of all.

    Args:
        recipe: settings of the training.
        runs: the models.
        folder: output folder.
        jobs: models that are trained at the same time, each in its own process.

    Yields:
        What `result.json` of each run holds: finished ones first, the others as they finish.

    Raises:
        SettingError: the sequences cannot be made; nothing is written.
        UserError: the folder holds something else.
        RunError: a loss is NaN or infinite.
    """
    for subtask in {run.subtask for run in runs}:
        models.split_tokens(recipe.settings(subtask))
    request = recipe.recorded()
    shared.refuse_other(folder / models.SETTINGS_FILE, request)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / models.SETTINGS_FILE, request)
    done = models.finished_runs(folder)
    for run in runs:
        if run in done:
            yield done[run]
    # Small models use one core better than two: each process gets its share of the cores.
    parallel = Parallel(n_jobs=jobs, return_as="generator_unordered")
    train = delayed(train_run)
    remaining = [run for run in runs if run not in done]
    yield from parallel(train(recipe, run, folder, jobs == 1) for run in remaining)
