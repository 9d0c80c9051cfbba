"""Train PosGen models on random numbers that the rule labels, of growing length.

In a PosGen sequence every second number of the semi-recursive sub-task follows from near ones, and
a model that has learned so much stops there. Where the numbers are random and the label at every
place is what the rule gives for them, nothing but the rule fits. Lengths grow, so that where the
far token stands is learned on short sequences first.
"""

import logging
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leval_harness.training.posgen_settings import PosGenRun, Recipe, Work
from leval_harness.training.posgen_train import Training
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
    labels = rule_labels(numbers, s)
    prefix = special_id(PREFIX, s.modulus)
    inputs = np.pad(numbers[:, :-1], ((0, 0), (1, 0)), constant_values=prefix)
    return torch.from_numpy(inputs), torch.from_numpy(labels)


def train_by_rule(recipe: Recipe, run: PosGenRun, work: Work) -> dict[str, Any]:
    """Train a model; what is written and raised is as in `train_run`.

    Each stage until it is learned or its steps are over, then steps that decay. A run takes
    minutes, so one that was stopped begins again.
    """
    training = Training(recipe, run, work)
    settings, generator = training.settings, np.random.RandomState(run.seed)
    tokens = recipe.batch_size * settings.train_length

    def learn(length: int, rate: float) -> tuple[float, float]:
        inputs, labels = batch(settings, length, tokens, generator)
        loss, hits = training.learn(inputs, labels, rate, CLIP)
        return training.finite(loss), float(hits.double().mean())

    for length in lengths(settings):
        recent: deque[float] = deque(maxlen=JUDGED)
        for _ in range(recipe.stage_steps):
            loss, right = learn(length, recipe.learning_rate)
            recent.append(right)
            if len(recent) == JUDGED and sum(recent) / JUDGED >= recipe.stage_accuracy:
                break
        logger.info("%s: %d numbers, %.3f right", run.folder, length, sum(recent) / len(recent))
        training.validate(loss, training.step)
    for at in range(recipe.final_steps):
        rate = recipe.learning_rate * (1 - at / recipe.final_steps)
        loss, _ = learn(settings.train_length, rate)
    training.validate(loss, training.step)
    return training.result()
