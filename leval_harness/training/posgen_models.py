"""PosGen models, and the sequences that they learn."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_model as load_weights
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from leval_harness.training.posgen_settings import PosGenRun, Recipe, rope_parameters
from leval_harness.training.t5 import PosGenT5Config, PosGenT5ForCausalLM
from leval_tasks.metadata import PosGenSettings
from leval_tasks.posgen.sequences import PREFIX, special_id, splits, vocabulary_size
from resonance_vllm.config import ModelPositions, hf_overrides
from resonance_vllm.hf import apply_rope, register

WEIGHTS = "model.safetensors"


def build_config(recipe: Recipe, run: PosGenRun) -> Any:
    """The transformers configuration of a run, with its full RoPE settings.

    Its field `posgen` records what the model was trained on; the lm-eval tasks read it.
    """
    register()
    a, data = recipe.architecture, recipe.settings(run.subtask)
    end = special_id(PREFIX, data.modulus)
    plain = ModelPositions(max_position_embeddings=data.length + 4)
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
        return PosGenT5Config(dropout=a.dropout, **common)
    return LlamaConfig(tie_word_embeddings=False, **common)


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
        for split, numbers in vars(splits(settings)).items()
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
