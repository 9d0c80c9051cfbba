"""Train PosGen models on random numbers that the rule labels, of growing length.

In a PosGen sequence every second number of the semi-recursive sub-task follows from near ones, and
a model that has learned so much stops there. Where the numbers are random and the label at every
place is what the rule gives for them, nothing but the rule fits. Lengths grow, so that where the
far token stands is learned on short sequences first.
"""

import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from leval_harness.training.posgen_evaluate import (
    METRICS,
    METRICS_FILE,
    evaluate,
    metrics_row,
    require_finite,
    write_results,
)
from leval_harness.training.posgen_models import StackData, adamw, build_stack
from leval_harness.training.posgen_settings import PosGenRun, Recipe, Work
from leval_harness.training.stack import token_losses
from leval_harness.training.trainer import device_of, write_rows
from leval_tasks.metadata import PosGenSettings
from leval_tasks.posgen.sequences import rule_labels
from leval_tasks.posgen.vocabulary import PREFIX, special_id

logger = logging.getLogger(__name__)

GROWTH = (6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256)
"""Numbers in a sequence, stage after stage, up to the trained length."""
CLIP = 1.0
"""Largest norm of a model's gradient."""
JUDGED = 20
"""Steps over which the accuracy is averaged that ends a stage."""


def lengths(settings: PosGenSettings) -> list[int]:
    """Lengths of the stages; the last one is the trained length."""
    shorter = [n for n in GROWTH if settings.seed_tokens < n < settings.train_length]
    return [*shorter, settings.train_length]


def batch(
    settings: PosGenSettings, length: int, tokens: int, generator: np.random.RandomState
) -> tuple[Tensor, Tensor]:
    """Inputs `[n, length]` (prefix first) and labels `[n, length - seed]` of so many tokens."""
    s = settings
    numbers = generator.randint(0, s.modulus, size=(max(tokens // length, 1), length))
    labels = rule_labels(numbers, s.subtask, s.modulus, s.far, s.near)
    prefix = special_id(PREFIX, s.modulus)
    inputs = np.pad(numbers[:, :-1], ((0, 0), (1, 0)), constant_values=prefix)
    return torch.from_numpy(inputs), torch.from_numpy(labels)


class _Training:
    """The training of one model: its state and its steps."""

    def __init__(self, recipe: Recipe, run: PosGenRun, device: torch.device) -> None:
        torch.manual_seed(run.seed)
        self.recipe, self.run, self.device = recipe, run, device
        self.data = StackData(recipe, [run])
        self.stages = lengths(self.data.settings)
        self.stack = build_stack(recipe, [run]).to(device)
        self.optimizer = adamw(self.stack, recipe)
        self.generator = np.random.RandomState(run.seed)
        self.rows: list[list[Any]] = []
        self.step = 0

    def train(self) -> None:
        """Each stage until it is learned or its steps are over, then steps that decay.

        Raises:
            UserError: the loss is NaN or infinite.
        """
        recipe = self.recipe
        for length in self.stages:
            recent: deque[float] = deque(maxlen=JUDGED)
            for _ in range(recipe.stage_steps):
                loss, accuracy = self._advance(length, recipe.learning_rate)
                recent.append(accuracy)
                mean = sum(recent) / len(recent)
                if len(recent) == JUDGED and mean >= recipe.stage_accuracy:
                    break
            logger.info("%s: %d numbers, %.3f right", self.run.folder, length, mean)
            self._validate(loss)
        for at in range(recipe.final_steps):
            left = 1 - at / recipe.final_steps
            loss, _ = self._advance(self.stages[-1], recipe.learning_rate * left)
        self._validate(loss)

    def _advance(self, length: int, rate: float) -> tuple[float, float]:
        """Loss and accuracy of a batch of sequences of a length, of which the model then learns."""
        recipe, settings = self.recipe, self.data.settings
        tokens = recipe.batch_size * settings.train_length
        made = batch(settings, length, tokens, self.generator)
        inputs, labels = (part.to(self.device) for part in made)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast(self.device.type, torch.bfloat16, enabled=recipe.bf16):
            logits = self.stack.logits(inputs[None])[:, :, settings.seed_tokens :]
            loss = token_losses(logits, labels[None]).mean()
        require_finite(loss.item(), self.step, self.run, recipe)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.stack.parameters(), CLIP)
        self.optimizer.step()
        self.step += 1
        return loss.item(), float((logits.argmax(-1)[0] == labels).double().mean())

    def _validate(self, loss: float) -> None:
        (result,) = evaluate(self.stack, self.data, "validation", self.recipe.validation_rows)
        self.rows.append(metrics_row(self.step, self.step, loss, result))


def train_by_rule(recipe: Recipe, runs: Sequence[PosGenRun], work: Work) -> list[dict[str, Any]]:
    """Train runs one after another; what is written and raised is as in `train_stack`.

    A run takes minutes, so one that was stopped begins again.
    """
    device = device_of(work.device)
    written = []
    for run in tqdm(runs, disable=None if work.progress else True):
        start = time.monotonic()
        training = _Training(recipe, run, device)
        training.train()
        write_rows(work.folder / run.folder / METRICS_FILE, METRICS, training.rows)
        training.stack.eval()
        seconds, steps = time.monotonic() - start, training.step
        made = (training.stack, training.data, work.folder, [steps], steps, seconds)
        written += write_results(*made)
    return written
