"""PosGen models, the sequences that they learn, and their tests.

A finished run has a `result.json`. Each of its tests under another encoding is a file
`tested/<encoding>.json` beside it.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_model as load_weights
from torch import Tensor
from torch.nn.functional import cross_entropy
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM

from leval_harness.training.settings import PosGenRun, Recipe, rope_parameters
from leval_harness.training.t5 import PosGenT5Config, PosGenT5ForCausalLM
from leval_harness.training.trainer import device, made_by
from leval_tasks.common.metadata import PosGenSettings
from leval_tasks.posgen.sequences import (
    PREFIX,
    position_ranges,
    special_id,
    splits,
    vocabulary_size,
)
from resonance_vllm.checkpoint.overrides import hf_overrides
from resonance_vllm.checkpoint.positions import PositionConfig
from resonance_vllm.common.errors import UserError
from resonance_vllm.common.files import read_json_object, write_json
from resonance_vllm.common.settings import parse_settings
from resonance_vllm.hf import apply_rope, register

WEIGHTS = "model.safetensors"
SETTINGS_FILE = "settings.json"
RESULT_FILE = "result.json"
TESTS = "tested"
EVALUATION_BATCH = 125


def build_config(recipe: Recipe, run: PosGenRun) -> Any:
    """The transformers configuration of a run, with its full RoPE settings.

    Its field `posgen` records what the model was trained on; the lm-eval tasks read it.
    """
    register()
    a, data = recipe.architecture, recipe.settings(run.subtask)
    end = special_id(PREFIX, data.modulus)
    plain = PositionConfig(max_position_embeddings=data.length + 4)
    rope = hf_overrides(plain.complete(rope_parameters(run.encoding, recipe)), plain)
    # A default RoPE has no limit of its own; all models are tested at the same length.
    rope["max_position_embeddings"] = max(rope["max_position_embeddings"], data.length + 4)
    common = {
        "vocab_size": vocabulary_size(data.modulus),
        "hidden_size": a.hidden,
        "intermediate_size": a.feed_forward,
        "num_hidden_layers": a.layers,
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.heads,
        "head_dim": a.head_dim,
        "rms_norm_eps": 1e-6,
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": special_id("[PAD]", data.modulus),
        "posgen": {**data.model_dump(), "encoding": run.encoding, "run_seed": run.seed},
        **rope,
    }
    if a.kind == "t5":
        return PosGenT5Config(dropout=a.dropout, tie_word_embeddings=True, **common)
    return LlamaConfig(attention_dropout=a.dropout, tie_word_embeddings=False, **common)


def build_model(recipe: Recipe, run: PosGenRun) -> Any:
    """A freshly initialised model; its weights follow from the run's seed alone."""
    config = build_config(recipe, run)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        kind = PosGenT5ForCausalLM if recipe.architecture.kind == "t5" else LlamaForCausalLM
        model = kind(config)
    apply_rope(model)
    for name, parameter in model.named_parameters():
        feed_forward = ".mlp." in name or ".post_attention_layernorm." in name
        parameter.requires_grad = not (recipe.architecture.freeze_feed_forward and feed_forward)
    return model


def load_model(recipe: Recipe, run: PosGenRun, folder: Path) -> Any:
    """A trained model of a folder."""
    model = build_model(recipe, run)
    load_weights(model, folder / run.folder / WEIGHTS)
    return model


@cache
def split_tokens(settings: PosGenSettings) -> dict[str, Tensor]:
    """Token ids `[n, length + 1]` of `train`, `validation` and `test`, the prefix token in front.

    Raises:
        SettingError: the settings cannot be met.
    """
    prefix = special_id(PREFIX, settings.modulus)
    return {
        split: torch.from_numpy(np.pad(numbers, ((0, 0), (1, 0)), constant_values=prefix))
        for split, numbers in splits(settings)._asdict().items()
    }


def parted(settings: PosGenSettings, sequences: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and labels: every number after the seed follows from those before it."""
    return sequences[:, :-1], sequences[:, settings.seed_tokens + 1 :]


def batches(recipe: Recipe, run: PosGenRun) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and labels of each training step.

    The order of the sequences depends on the run's seed and the epoch alone; the last batch of an
    epoch may be smaller.

    Yields:
        `[batch, train_length]` and `[batch, train_length - seed]`.
    """
    settings = recipe.settings(run.subtask)
    sequences = split_tokens(settings)["train"]
    for step in range(recipe.steps):
        epoch, index = divmod(step, recipe.steps_per_epoch)
        generator = np.random.RandomState(np.array([run.seed, epoch], dtype=np.uint32))
        order = torch.from_numpy(generator.permutation(settings.train))
        yield parted(settings, sequences[order.split(recipe.batch_size)[index]])


def losses_and_hits(model: Any, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy in float32 of every label, and whether it is the most probable token.

    Labels `[batch, labels]`, as both results, are of the last places of inputs `[batch, length]`.
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
    parts = split_tokens(settings)[split][:rows].split(EVALUATION_BATCH)
    found = zip(*(losses_and_hits(model, *parted(settings, part)) for part in parts), strict=True)
    losses, hits = (torch.cat(each).cpu().double() for each in found)
    model.train(was_training)
    shares, seed = hits.mean(dim=0).tolist(), settings.seed_tokens
    bands = position_ranges(settings).items()  # the first share is of the number after the seed
    return {
        "loss": float(losses.mean()),
        **{name: sum(shares[a - seed : b - seed]) / (b - a) for name, (a, b) in bands},
        "by_position": shares,
    }


def read_recipe(folder: Path) -> Recipe:
    """The recipe that a folder's models were trained by; its `reading` is not recorded.

    Raises:
        UserError: the folder was not written by `posgen train`.
    """
    written = read_json_object(folder / SETTINGS_FILE)
    if written is None:
        raise UserError(f"folder: {folder} holds no {SETTINGS_FILE} of `posgen train`")
    return parse_settings(Recipe, written, SETTINGS_FILE)


def finished_runs(folder: Path) -> dict[PosGenRun, dict[str, Any]]:
    """Each finished run of a folder, and its result."""
    files = sorted(folder.glob(f"*/*/seed-*/{RESULT_FILE}"))
    results = [result for file in files if (result := read_json_object(file))]
    return {PosGenRun(each["subtask"], each["encoding"], each["seed"]): each for each in results}


def cross(folder: Path, tests: Mapping[str, Sequence[str]]) -> Iterator[dict[str, Any]]:
    """Test finished runs under every encoding that they have no test of; yield the new tests.

    `tests` is trained encoding -> those to test it under. Its own is left out: training tests it.

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
        model = load_model(recipe, run, folder).to(device())
        apply_rope(model, rope_parameters(encoding, recipe))
        test = evaluate(model, recipe.settings(run.subtask), "test")
        record = {"schema_version": 1, **vars(run), "tested_with": encoding, "test": test}
        record |= made_by()
        file.parent.mkdir(exist_ok=True)
        write_json(file, record)
        yield record
