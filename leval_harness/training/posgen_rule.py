"""Train PosGen models on random numbers that the rule labels, of growing length.

In a PosGen sequence every second number of the semi-recursive sub-task follows from near ones, and
a model that has learned so much stops there. Where the numbers are random and the label at every
place is what the rule gives for them, nothing but the rule fits. Lengths grow, so that where the
far token stands is learned on short sequences first.
"""

import contextlib
import logging
import math
import pickle
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from leval_harness.training import trainer as shared
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
from leval_harness.training.stacked import token_losses
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
        self.recipe, self.run, self.device = recipe, run, device
        self.data = StackData(recipe, [run])
        self.stages = lengths(self.data.settings)
        self.stack = build_stack(recipe, [run]).to(device)
        self.optimizer = adamw(self.stack, recipe)
        self.generator = np.random.RandomState(run.seed)
        # `stage` is one past the last in the final steps, which decay.
        self.stage = self.in_stage = self.step = 0
        self.recent: deque[float] = deque(maxlen=JUDGED)
        self.rows: list[list[Any]] = []
        self.seconds = 0.0

    COUNTERS = ("stage", "in_stage", "step", "recent", "rows", "seconds")

    def state(self) -> dict[str, Any]:
        """Everything that a resumed training needs."""
        counters = {name: getattr(self, name) for name in self.COUNTERS}
        counters["recent"] = list(self.recent)
        name, keys, *rest = self.generator.get_state(legacy=True)
        random = ([name, np.asarray(keys).tolist(), *rest], torch.get_rng_state())
        weights = (self.stack.state_dict(), self.optimizer.state_dict())
        return {"counters": counters, "random": random, "weights": weights}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        for name, value in state["counters"].items():
            setattr(self, name, deque(value, JUDGED) if name == "recent" else value)
        name, keys, *rest = state["random"][0]
        self.generator.set_state((name, np.array(keys, dtype=np.uint32), *rest))
        torch.set_rng_state(state["random"][1].cpu())
        self.stack.load_state_dict(state["weights"][0])
        self.optimizer.load_state_dict(state["weights"][1])

    @property
    def final(self) -> bool:
        """Whether all stages are done, so that the final steps run."""
        return self.stage == len(self.stages)

    @property
    def done(self) -> bool:
        """Whether the last step is done."""
        return self.final and self.in_stage == self.recipe.final_steps

    def advance(self) -> None:
        """One step, and the next stage where this one is over.

        Raises:
            UserError: the loss is NaN or infinite.
        """
        recipe, settings = self.recipe, self.data.settings
        length = self.stages[min(self.stage, len(self.stages) - 1)]
        tokens = recipe.batch_size * settings.train_length
        made = batch(settings, length, tokens, self.generator)
        inputs, labels = (part.to(self.device) for part in made)
        left = 1 - self.in_stage / recipe.final_steps if self.final else 1.0
        for group in self.optimizer.param_groups:
            group["lr"] = recipe.learning_rate * left
        with torch.autocast(self.device.type, torch.bfloat16, enabled=recipe.bf16):
            logits = self.stack.logits(inputs[None])[:, :, settings.seed_tokens :]
            loss = token_losses(logits, labels[None]).mean()
        require_finite(loss.item(), self.step, self.run, recipe)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.stack.parameters(), CLIP)
        self.optimizer.step()
        self.recent.append(float((logits.argmax(-1)[0] == labels).double().mean()))
        self.step += 1
        self.in_stage += 1
        accuracy = sum(self.recent) / len(self.recent)
        learned = len(self.recent) == JUDGED and accuracy >= recipe.stage_accuracy
        if not self.final and (learned or self.in_stage == recipe.stage_steps):
            logger.info("%s: %d numbers, %.3f right", self.run.folder, length, accuracy)
            self._end_stage(loss.item())
        elif self.done:
            self._end_stage(loss.item())
            self.stage, self.in_stage = len(self.stages), recipe.final_steps

    def _end_stage(self, loss: float) -> None:
        (result,) = evaluate(self.stack, self.data, "validation", self.recipe.validation_rows)
        self.rows.append(metrics_row(self.step, self.step, loss, result))
        self.stage, self.in_stage = self.stage + 1, 0
        self.recent.clear()


def train_by_rule(recipe: Recipe, runs: Sequence[PosGenRun], work: Work) -> list[dict[str, Any]]:
    """Train runs one after another; what is written and raised is as in `train_stack`."""
    best = torch.device("cpu") if work.device == "cpu" else shared.fastest_device()
    written = []
    for run in runs:
        torch.manual_seed(run.seed)
        training = _Training(recipe, run, best)
        file = work.folder / ".unfinished" / f"{run.folder.replace('/', '-')}.pt"
        if (state := _load(file, best)) is not None:
            training.restore(state)
        logger.info("training %s, from step %d", run.folder, training.step)
        if not _train(training, file, work):
            break
        shared.write_rows(work.folder / run.folder / METRICS_FILE, METRICS, training.rows)
        steps = training.step
        training.stack.eval()
        made = (training.stack, training.data, work.folder, [steps], steps, training.seconds)
        written += write_results(*made)
        file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # states of runs in other processes are there yet
            file.parent.rmdir()
    return written


def _train(training: _Training, file: Path, work: Work) -> bool:
    """Train until the end or the deadline, saving states; return whether the end is reached."""
    most = len(training.stages) * training.recipe.stage_steps + training.recipe.final_steps
    deadline = work.deadline or math.inf
    start, before = time.monotonic(), training.seconds
    with tqdm(total=most, initial=training.step, disable=not work.shows_bar) as bar:
        while not training.done and time.monotonic() < deadline:
            training.advance()
            training.seconds = before + time.monotonic() - start
            bar.update()
            if training.step % work.save_steps == 0:
                _save(training.state(), file)
    if not training.done:
        _save(training.state(), file)
    return training.done


def _save(state: dict[str, Any], file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(".part")
    torch.save(state, temporary)
    temporary.replace(file)


def _load(file: Path, device: torch.device) -> dict[str, Any] | None:
    """A state, or None if there is none or it cannot be read; training then starts again."""
    try:
        state: dict[str, Any] = torch.load(file, map_location=device, weights_only=True)
    except FileNotFoundError:
        return None
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        logger.warning("%s: no state can be read (%s); trained from the start", file, error)
        return None
    return state
