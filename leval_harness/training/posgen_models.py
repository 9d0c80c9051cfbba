"""PosGen models, the sequences that they learn, and their tests.

A finished training has a `result.json`. Each test of the model with another encoding is a file
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
"""Sequences of a forward pass in a test; it divides the splits' sizes."""


def build_config(recipe: Recipe, run: PosGenRun) -> Any:
    """Return the transformers config of a model, with its full RoPE settings.

    Its field `posgen` records what the model is trained on, which the lm-eval tasks read.

    Args:
        recipe: settings of the training.
        run: sub-task, encoding and seed of the model.
    """
    register()
    architecture = recipe.architecture
    data = recipe.settings(run.subtask)
    end = special_id(PREFIX, data.modulus)
    plain = PositionConfig(max_position_embeddings=data.length + 4)
    rope = hf_overrides(plain.complete(rope_parameters(run.encoding, recipe)), plain)
    # plain RoPE has no limit of its own, but all models are tested at the same length
    rope["max_position_embeddings"] = max(rope["max_position_embeddings"], data.length + 4)
    common = {
        "vocab_size": vocabulary_size(data.modulus),
        "hidden_size": architecture.hidden,
        "intermediate_size": architecture.feed_forward,
        "num_hidden_layers": architecture.layers,
        "num_attention_heads": architecture.heads,
        "num_key_value_heads": architecture.heads,
        "head_dim": architecture.head_dim,
        "rms_norm_eps": 1e-6,
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": special_id("[PAD]", data.modulus),
        "posgen": {**data.model_dump(), "encoding": run.encoding, "run_seed": run.seed},
        **rope,
    }
    if architecture.kind == "t5":
        return PosGenT5Config(dropout=architecture.dropout, tie_word_embeddings=True, **common)
    return LlamaConfig(attention_dropout=architecture.dropout, tie_word_embeddings=False, **common)


def build_model(recipe: Recipe, run: PosGenRun) -> Any:
    """Return a freshly initialised model, whose weights are decided by the run's seed alone."""
    config = build_config(recipe, run)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        model_class = LlamaForCausalLM
        if recipe.architecture.kind == "t5":
            model_class = PosGenT5ForCausalLM
        model = model_class(config)
    apply_rope(model)
    for name, parameter in model.named_parameters():
        feed_forward = ".mlp." in name or ".post_attention_layernorm." in name
        parameter.requires_grad = not (recipe.architecture.freeze_feed_forward and feed_forward)
    return model


def load_model(recipe: Recipe, run: PosGenRun, folder: Path) -> Any:
    """Load a trained model from an output folder."""
    model = build_model(recipe, run)
    load_weights(model, folder / run.folder / WEIGHTS)
    return model


@cache
def split_tokens(settings: PosGenSettings) -> dict[str, Tensor]:
    """Return the token ids of a data set.

    Returns:
        `train`, `validation` and `test`, each int64 `[n, length + 1]` with the prefix token in
        front.

    Raises:
        SettingError: there are not enough different sequences.
    """
    prefix = special_id(PREFIX, settings.modulus)
    return {
        split: torch.from_numpy(np.pad(numbers, ((0, 0), (1, 0)), constant_values=prefix))
        for split, numbers in splits(settings)._asdict().items()
    }


def inputs_and_labels(settings: PosGenSettings, sequences: Tensor) -> tuple[Tensor, Tensor]:
    """Split sequences into inputs and labels: each number after the seed follows from the earlier.

    Args:
        settings: the data set.
        sequences: token ids `[batch, length + 1]`.

    Returns:
        Inputs `[batch, length]`, and labels `[batch, length - seed]` of the last positions.
    """
    return sequences[:, :-1], sequences[:, settings.seed_tokens + 1 :]


def batches(recipe: Recipe, run: PosGenRun) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the inputs and labels of each training step.

    The order of the sequences depends on the run's seed and the epoch alone. The last batch of an
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
        yield inputs_and_labels(settings, sequences[order.split(recipe.batch_size)[index]])


def losses_and_hits(model: Any, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the loss of each label, and whether it is the most probable token.

    Args:
        model: a PosGen model.
        inputs: token ids `[batch, length]`.
        labels: token ids `[batch, labels]` of the last positions.

    Returns:
        Cross-entropy in nats, float32 `[batch, labels]`, and booleans of the same shape.
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
    """Measure a model by teacher forcing on all numbers after the seed.

    Args:
        model: a PosGen model.
        settings: the data set.
        split: `train`, `validation` or `test`.
        rows: number of sequences, from the first; None for the whole split.

    Returns:
        `loss` in nats per number, the fractions `id_accuracy` and `ood_accuracy`, and
        `by_position`, the accuracy of each number after the seed.
    """
    was_training = model.training
    model.eval()
    parts = split_tokens(settings)[split][:rows].split(EVALUATION_BATCH)
    all_losses: list[Tensor] = []
    all_hits: list[Tensor] = []
    for part in parts:
        losses, hits = losses_and_hits(model, *inputs_and_labels(settings, part))
        all_losses.append(losses)
        all_hits.append(hits)
    model.train(was_training)
    accuracies = torch.cat(all_hits).cpu().double().mean(dim=0).tolist()
    result: dict[str, Any] = {"loss": float(torch.cat(all_losses).cpu().double().mean())}
    for name, (start, end) in position_ranges(settings).items():
        # the first accuracy is that of the number after the seed
        inside = accuracies[start - settings.seed_tokens : end - settings.seed_tokens]
        result[name] = sum(inside) / (end - start)
    result["by_position"] = accuracies
    return result


def read_recipe(folder: Path) -> Recipe:
    """Return the recipe that the models in a folder were trained by.

    Its `reading` and sub-tasks are not recorded, and are the defaults.

    Raises:
        UserError: the folder was not written by `posgen train`.
    """
    written = read_json_object(folder / SETTINGS_FILE)
    if written is None:
        raise UserError(
            f"folder: {folder} holds no {SETTINGS_FILE}; give an output folder of `posgen train`"
        )
    return parse_settings(Recipe, written, SETTINGS_FILE)


def finished_runs(folder: Path) -> dict[PosGenRun, dict[str, Any]]:
    """Return each finished model of an output folder with its result."""
    results = {}
    for file in sorted(folder.glob(f"*/*/seed-*/{RESULT_FILE}")):
        if result := read_json_object(file):
            run = PosGenRun(result["subtask"], result["encoding"], result["seed"])
            results[run] = result
    return results


def cross(folder: Path, tests: Mapping[str, Sequence[str]]) -> Iterator[dict[str, Any]]:
    """Test finished models with other encodings, and yield the tests that had no result yet.

    Args:
        folder: output folder of a training.
        tests: encoding that a model is trained with -> encodings to test it with. The same one is
            skipped, because training tests it.

    Yields:
        What the file of each new test holds.

    Raises:
        UserError: the folder was not written by `posgen train`.
    """
    recipe = read_recipe(folder)
    remaining: list[tuple[PosGenRun, str, Path]] = []
    for run in finished_runs(folder):
        for encoding in tests.get(run.encoding, ()):
            file = folder / run.folder / TESTS / f"{encoding}.json"
            if encoding != run.encoding and not file.exists():
                remaining.append((run, encoding, file))
    # None: no bar where standard error is no terminal
    for run, encoding, file in tqdm(remaining, disable=None if remaining else True):
        model = load_model(recipe, run, folder).to(device())
        apply_rope(model, rope_parameters(encoding, recipe))
        record = {
            "schema_version": 1,
            **vars(run),
            "tested_with": encoding,
            "test": evaluate(model, recipe.settings(run.subtask), "test"),
            **made_by(),
        }
        file.parent.mkdir(exist_ok=True)
        write_json(file, record)
        yield record
