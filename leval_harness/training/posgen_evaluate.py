"""Test PosGen models, when they are trained and under other encodings.

A finished run has a `result.json`. Each of its tests under another encoding is a file
`tested/<encoding>.json` beside it.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from leval_harness.training.posgen_models import load_model, parted, split_tokens
from leval_harness.training.posgen_settings import PosGenRun, Recipe, rope_parameters
from leval_harness.training.trainer import device_of, made_by
from leval_tasks.metadata import PosGenSettings
from leval_tasks.posgen.sequences import position_ranges
from resonance_vllm.errors import UserError
from resonance_vllm.files import read_object, write_json
from resonance_vllm.hf import apply_rope
from resonance_vllm.settings import read

SETTINGS_FILE = "settings.json"
RESULT_FILE = "result.json"
TESTS = "tested"
EVALUATION_BATCH = 125


def losses_and_hits(model: Any, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Loss of every label, and whether it is the most probable token.

    Args:
        model: of transformers.
        inputs: `[batch, length]`.
        labels: of the last places of the inputs, `[batch, labels]`.

    Returns:
        Cross-entropy in float32 and hits, both `[batch, labels]`.
    """
    labels = labels.to(model.device)
    logits = model(input_ids=inputs.to(model.device), use_cache=False).logits
    logits = logits[:, -labels.shape[1] :].float()
    losses = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return losses.view(labels.shape), logits.argmax(-1) == labels


@torch.no_grad()
def evaluate(
    model: Any, settings: PosGenSettings, split: str, rows: int | None = None
) -> dict[str, Any]:
    """Teacher-forced metrics over all tokens after the seed of the first `rows` of a split.

    Returns:
        `loss` in nats, the fractions `id_accuracy` and `ood_accuracy`, and `by_position`, that of
        each number after the seed.
    """
    was_training = model.training
    model.eval()
    sequences = split_tokens(settings)[split][:rows]
    losses = correct = torch.zeros((), dtype=torch.float64, device=model.device)
    for batch in sequences.split(EVALUATION_BATCH):
        of_batch, hits = losses_and_hits(model, *parted(settings, batch))
        losses = losses + of_batch.double().sum(dim=0)
        correct = correct + hits.double().sum(dim=0)
    model.train(was_training)
    shares, seed = (correct / len(sequences)).tolist(), settings.seed_tokens
    bands = position_ranges(settings).items()  # the first share is of the number after the seed
    return {
        "loss": float(losses.mean() / len(sequences)),
        **{name: sum(shares[a - seed : b - seed]) / (b - a) for name, (a, b) in bands},
        "by_position": shares,
    }


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
    files = sorted(folder.glob(f"*/*/seed-*/{RESULT_FILE}"))
    results = [result for file in files if (result := read_object(file))]
    return {PosGenRun(each["subtask"], each["encoding"], each["seed"]): each for each in results}


def cross(
    folder: Path, tests: Mapping[str, Sequence[str]], *, device: str = "cpu"
) -> Iterator[dict[str, Any]]:
    """Test finished runs under every encoding that they have no test of; yield the new tests.

    Args:
        folder: of `posgen train`; it may still be training.
        tests: trained encoding -> those to test it under. Its own is left out: training has
            tested it.
        device: `auto` or `cpu`.

    Raises:
        UserError: the folder was not written by `posgen train`.
    """
    recipe = read_recipe(folder)
    waiting = [
        (run, encoding, file)
        for run in finished_runs(folder)
        for encoding in tests.get(run.encoding, ())
        if encoding != run.encoding
        and not (file := folder / run.folder / TESTS / f"{encoding}.json").exists()
    ]
    for run, encoding, file in tqdm(waiting, disable=None if waiting else True):
        model = load_model(recipe, run, folder).to(device_of(device))
        apply_rope(model, rope_parameters(encoding, recipe))
        test = evaluate(model, recipe.settings(run.subtask), "test")
        record = {"schema_version": 1, **vars(run), "tested_with": encoding, "test": test}
        record |= made_by()
        file.parent.mkdir(exist_ok=True)
        write_json(file, record)
        yield record
