"""PosGen models and their sequences: single models as checkpoints, many of them as one stack."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM

from leval_harness.training.posgen_settings import PosGenRun, Recipe, rope_parameters
from leval_harness.training.stack import Stack
from leval_harness.training.t5 import PosGenT5Config, PosGenT5ForCausalLM
from leval_tasks.metadata import PosGenSettings
from leval_tasks.posgen.sequences import splits
from leval_tasks.posgen.vocabulary import PREFIX, build_tokenizer, special_id, vocabulary_size
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
    """A freshly initialised single model; its weights follow from the run's seed alone."""
    config = build_config(recipe, run)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        kind = PosGenT5ForCausalLM if recipe.architecture.kind == "t5" else LlamaForCausalLM
        model = kind(config)
    apply_rope(model)
    return model


def build_stack(recipe: Recipe, runs: Sequence[PosGenRun]) -> Stack:
    """New models of several runs as one module, each with its run's own encoding."""
    return _stack(recipe, runs, [build_model(recipe, run).state_dict() for run in runs])


def load_stack(recipe: Recipe, runs: Sequence[PosGenRun], folder: Path) -> Stack:
    """Trained models of several runs of a folder as one module."""
    return _stack(recipe, runs, [load_file(folder / run.folder / WEIGHTS) for run in runs])


def _stack(
    recipe: Recipe, runs: Sequence[PosGenRun], states: Sequence[Mapping[str, Tensor]]
) -> Stack:
    length = recipe.settings(runs[0].subtask).length + 1
    ropes = [rope_parameters(run.encoding, recipe) for run in runs]
    return Stack(recipe.architecture, states, ropes, length, recipe.keep != "last")


def adamw(stack: Stack, recipe: Recipe) -> torch.optim.AdamW:
    """The optimiser of the weights that are trained."""
    trained = [p for p in stack.parameters() if p.requires_grad]
    return torch.optim.AdamW(trained, lr=recipe.learning_rate, weight_decay=recipe.weight_decay)


def save_models(stack: Stack, recipe: Recipe, runs: Sequence[PosGenRun], folder: Path) -> None:
    """Write each model of a stack as a checkpoint of its own, with the number tokenizer."""
    for index, run in enumerate(runs):
        model = build_model(recipe, run)
        model.load_state_dict(stack.state_of(index))
        model.save_pretrained(folder / run.folder)
        tokenizer = build_tokenizer(recipe.settings(run.subtask).modulus)
        tokenizer.save_pretrained(folder / run.folder)


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


class StackData:
    """The sequences of the runs of a stack."""

    def __init__(self, recipe: Recipe, runs: Sequence[PosGenRun]) -> None:
        self.recipe, self.runs = recipe, list(runs)
        self.settings = recipe.settings(runs[0].subtask)
        self.first_target = self.settings.seed_tokens + 1

    def sequences(self, run: PosGenRun, split: str) -> Tensor:
        """`[n, length + 1]` of `train`, `validation` or `test`."""
        return split_tokens(self.recipe.settings(run.subtask))[split]


class Batches(Dataset[Tensor]):
    """Every batch of every epoch as one item, so that a resumed run continues at its step.

    The order of a run's sequences depends on its seed alone.
    """

    def __init__(self, data: StackData) -> None:
        self.data = data
        self._epoch, self._orders = -1, np.empty((0, 0), dtype=np.int64)

    def __len__(self) -> int:
        return self.data.recipe.steps

    def __getitem__(self, step: int) -> Tensor:
        """`[models, batch, train_length + 1]`; the last batch of an epoch may be smaller."""
        recipe, runs = self.data.recipe, self.data.runs
        epoch, index = divmod(step, recipe.steps_per_epoch)
        if epoch != self._epoch:
            n = self.data.settings.train
            self._orders = np.stack([_epoch_order(run.seed, epoch, n) for run in runs])
            self._epoch = epoch
        orders = self._orders[:, index * recipe.batch_size : (index + 1) * recipe.batch_size]
        return torch.stack(
            [
                self.data.sequences(run, "train")[torch.from_numpy(order)]
                for run, order in zip(runs, orders, strict=True)
            ]
        )


def _epoch_order(seed: int, epoch: int, n: int) -> np.ndarray:
    generator = np.random.RandomState(np.array([seed, epoch], dtype=np.uint32))
    return generator.permutation(n)
