"""Train PosGen models, each by a loop of its own; several side by side."""

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


class Training:
    """One model with its optimiser and its learning rate."""

    def __init__(self, recipe: Recipe, run: PosGenRun) -> None:
        torch.manual_seed(run.seed)
        self.recipe, self.run = recipe, run
        self.model = models.build_model(recipe, run).to(shared.device()).train()
        if self.model.device.type == "cpu" and recipe.architecture.kind == "llama":
            # With its backward pass torch's fused kernel for CPUs is slower at such lengths.
            self.model.set_attn_implementation("eager")
        rate = recipe.learning_rate
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, rate, weight_decay=recipe.weight_decay)
        # One cycle: cosine, 10 % warm-up from lr/25, down to lr/250,000; it moves beta1 as well.
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, rate, recipe.steps + 1, pct_start=0.1
        )

    def learn(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """One step; the mean loss before it. Inputs and labels are those of `losses_and_hits`."""
        with torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.recipe.bf16):
            losses, _ = models.losses_and_hits(self.model, inputs, labels)
        loss = losses.mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return loss.detach()

    def validate(self) -> dict[str, Any]:
        """What `evaluate` finds on the validation split."""
        recipe, scaled = self.recipe, self.recipe.keep == "best_scaled"
        if scaled:
            encoding = tests_of("code", self.run.encoding)[-1]
            apply_rope(self.model, rope_parameters(encoding, recipe))
        settings = recipe.settings(self.run.subtask)
        found = models.evaluate(self.model, settings, "validation", recipe.validation_rows)
        if scaled:
            apply_rope(self.model)
        return found


def train_run(
    recipe: Recipe, run: PosGenRun, folder: Path, progress: bool = True
) -> dict[str, Any]:
    """Train a model; write a checkpoint, metrics and `result.json` below `folder`.

    Raises:
        UserError: the loss became NaN or infinite.
    """
    start = time.monotonic()
    training = Training(recipe, run)
    every = recipe.evaluate_every * recipe.steps_per_epoch
    rows: list[tuple[float, ...]] = []
    best, kept, weights = -1.0, recipe.steps, None
    steps = tqdm(
        models.batches(recipe, run), run.folder, recipe.steps, disable=None if progress else True
    )
    for step, (inputs, labels) in enumerate(steps, 1):
        loss = training.learn(inputs, labels)
        if step % every and step != recipe.steps:
            continue
        shared.refuse_infinite(loss.item(), f"step {step} in {run.folder}")
        result = training.validate()
        if recipe.keep != "last" and result["id_accuracy"] > best:
            best, kept, weights = result["id_accuracy"], step, training.model.state_dict()
            weights = copy.deepcopy(weights)
        found = (result[name] for name in ("loss", "id_accuracy", "ood_accuracy"))
        rows.append((step, step / recipe.steps_per_epoch, loss.item(), *found))
    if weights is not None:
        training.model.load_state_dict(weights)
    facts = {"kept_step": kept, "steps": recipe.steps, "seconds": time.monotonic() - start}
    settings, place = recipe.settings(run.subtask), folder / run.folder
    test = models.evaluate(training.model, settings, "test")
    training.model.save_pretrained(place)
    build_tokenizer(settings.modulus).save_pretrained(place)
    pd.DataFrame(rows, columns=METRICS).to_csv(place / METRICS_FILE, index=False)
    shutil.rmtree(place / models.TESTS, ignore_errors=True)  # of a model before
    record = {"schema_version": 1, **vars(run), "test": test, **facts, **shared.made_by()}
    write_json(place / models.RESULT_FILE, record)
    return record


def train_all(
    recipe: Recipe, runs: Sequence[PosGenRun], folder: Path, *, jobs: int = 1
) -> Iterator[dict[str, Any]]:
    """Train every run that has no result in the folder yet; yield all results.

    `jobs` runs are trained at a time, each in a process of its own.

    Raises:
        SettingError: the sequences cannot be made; nothing is written.
        UserError: the folder holds something else, or a loss is NaN or infinite.
    """
    for subtask in {run.subtask for run in runs}:
        models.split_tokens(recipe.settings(subtask))
    request = recipe.recorded()
    shared.refuse_other(folder / models.SETTINGS_FILE, request)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / models.SETTINGS_FILE, request)
    done = models.finished_runs(folder)
    yield from (done[run] for run in runs if run in done)
    # Small models keep one core busier than two: each process has its share of the cores.
    side_by_side = Parallel(n_jobs=jobs, return_as="generator_unordered")
    train = delayed(train_run)
    todo = [run for run in runs if run not in done]
    yield from side_by_side(train(recipe, run, folder, jobs == 1) for run in todo)
