"""Test PosGen models, when they are trained and under other encodings.

A finished run has a `result.json`. Each of its tests under another encoding is a file
`tested/<encoding>.json` beside it.
"""

import logging
import math
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from leval_harness.training.posgen_models import StackData, load_stack, save_models
from leval_harness.training.posgen_settings import PosGenRun, Recipe, rope_parameters
from leval_harness.training.stack import Stack, token_losses
from leval_harness.training.trainer import device_of, exclusive, made_by
from leval_tasks.posgen.encodings import ENCODINGS
from leval_tasks.posgen.sequences import position_ranges
from resonance_vllm.errors import SettingError, UserError, one_of
from resonance_vllm.files import read_object, write_json
from resonance_vllm.settings import read

logger = logging.getLogger(__name__)

SETTINGS_FILE = "settings.json"
RESULT_FILE = "result.json"
TESTS = "tested"
METRICS_FILE = "metrics.csv"
METRICS = ("step", "epoch", "train_loss", "validation_loss", "id_accuracy", "ood_accuracy")
EVALUATION_BATCH = 125


@torch.no_grad()
def evaluate(
    stack: Stack, data: StackData, split: str, rows: int | None = None
) -> list[dict[str, Any]]:
    """Teacher-forced metrics of each model, over all tokens after the seed of its first `rows`.

    Returns:
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


def metrics_row(step: int, epoch: float, loss: float, validation: Mapping[str, Any]) -> list[Any]:
    """A row of a run's `metrics.csv`, see `METRICS`."""
    return [step, epoch, loss, *(validation[n] for n in ("loss", "id_accuracy", "ood_accuracy"))]


def require_finite(loss: float, step: int, run: PosGenRun, recipe: Recipe) -> None:
    """Refuse a loss that is NaN or infinite.

    Raises:
        UserError: names the loss, the step and the run.
    """
    if not math.isfinite(loss):
        raise UserError(
            f"loss: {loss} at step {step} in {run.folder}; lower the learning rate "
            f"({recipe.learning_rate:g}) or train without bf16"
        )


def write_results(
    stack: Stack,
    data: StackData,
    folder: Path,
    kept_steps: Sequence[int],
    steps: int,
    seconds: float,
) -> list[dict[str, Any]]:
    """Test the trained models of a stack, write each as a checkpoint, and `result.json` last.

    Args:
        stack: the trained models.
        data: of their runs.
        folder: output folder of all runs.
        kept_steps: for each model the step whose weights it has.
        steps: of the training.
        seconds: all of them together took.
    """
    results = evaluate(stack, data, "test")
    save_models(stack, data.recipe, data.runs, folder)
    count = len(data.runs)
    shared = {"steps": steps, "seconds": seconds / count, "stack": count, **made_by()}
    written = []
    for run, step, result in zip(data.runs, kept_steps, results, strict=True):
        record = {"schema_version": 1, **vars(run), "kept_step": step, "test": result, **shared}
        shutil.rmtree(folder / run.folder / TESTS, ignore_errors=True)  # of a model before
        write_json(folder / run.folder / RESULT_FILE, record)
        written.append(record)
    return written


def read_recipe(folder: Path) -> Recipe:
    """The recipe that a folder's models were trained by; its `reading` is not recorded.

    Raises:
        UserError: the folder was not written by `posgen train`.
    """
    written = read_object(folder / SETTINGS_FILE)
    if written is None:
        raise UserError(f"folder: {folder} holds no {SETTINGS_FILE} of `posgen train`")
    return read(Recipe, written, SETTINGS_FILE)


def finished_runs(folder: Path) -> dict[PosGenRun, dict[str, Any]]:
    """Each finished run of a folder, and its result."""
    found = {}
    for file in sorted(folder.glob(f"*/*/seed-*/{RESULT_FILE}")):
        result = read_object(file) or {}
        try:
            run = PosGenRun(result["subtask"], result["encoding"], result["seed"])
        except (KeyError, SettingError):
            run = None
        if run is None or run.folder != file.parent.relative_to(folder).as_posix():
            logger.warning("%s: is no result of this place; left out", file)
        else:
            found[run] = result
    return found


def cross(
    folder: Path,
    tests: Mapping[str, Sequence[str]],
    *,
    stack_size: int = 1,
    device: str = "cpu",
) -> Iterator[dict[str, Any]]:
    """Test finished runs under every encoding that they have no test of; yield the new tests.

    Args:
        folder: of `posgen train`; it may still be training.
        tests: trained encoding -> those to test it under. Its own is left out: training has
            tested it.
        stack_size: models tested at a time.
        device: `auto` or `cpu`.

    Raises:
        SettingError: there is no such encoding.
        UserError: the folder was not written by `posgen train`, or another test works on it.
    """
    for encoding in dict.fromkeys(chain(*tests.values())):
        one_of("encoding", encoding, ENCODINGS)
    recipe = read_recipe(folder)
    with exclusive(folder / f".{TESTS}"):
        waiting: dict[tuple[str, str], list[PosGenRun]] = defaultdict(list)
        for run in finished_runs(folder):
            for encoding in tests.get(run.encoding, ()):
                if encoding != run.encoding and not _test_file(folder, run, encoding).exists():
                    waiting[run.subtask, encoding].append(run)
        stacks = [
            (encoding, runs[start : start + stack_size])
            for (_, encoding), runs in waiting.items()
            for start in range(0, len(runs), stack_size)
        ]
        for encoding, runs in tqdm(stacks, disable=None if stacks else True):
            stack = load_stack(recipe, runs, folder).to(device_of(device))
            stack.rotate_by([rope_parameters(encoding, recipe)] * len(runs))
            results = evaluate(stack, StackData(recipe, runs), "test")
            for run, result in zip(runs, results, strict=True):
                record = {"schema_version": 1, **vars(run), "tested_with": encoding}
                record |= {"test": result, **made_by()}
                file = _test_file(folder, run, encoding)
                file.parent.mkdir(exist_ok=True)
                write_json(file, record)
                yield record


def _test_file(folder: Path, run: PosGenRun, encoding: str) -> Path:
    return folder / run.folder / TESTS / f"{encoding}.json"
