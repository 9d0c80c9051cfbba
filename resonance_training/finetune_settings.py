"""What a fine-tuning run is, and the presets shipped in `harness_configs/train`."""

from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from leval_border.errors import one_of
from leval_border.settings import Settings, read
from leval_border.yaml_files import read_yaml
from resonance_training.posgen_settings import Share


class FineTuneSettings(Settings):
    """A fine-tuning run, apart from model, data and output folder.

    Attributes:
        rope: the RoPE request, as `rope_parameters` or with what the model knows left out; None
            keeps the model's own.
        sequence_length: tokens of a training sequence.
        steps: optimiser steps.
        batch_size: sequences a device reads at once.
        accumulation: micro-batches an optimiser step.
        learning_rate: peak, after the warm-up.
        weight_decay: of AdamW.
        adam_beta2: of AdamW; beta1 is 0.9.
        warmup: share of the steps in which the rate rises.
        schedule: transformers' name of what follows the warm-up.
        max_grad_norm: clipping; 0 is none.
        bf16: bfloat16 autocast, weights and optimiser in float32.
        gradient_checkpointing: recompute activations in the backward pass.
        lora_rank: rank of LoRA on all linear layers; 0 trains all weights.
        held_out: documents that are kept out of training.
        save_steps: steps between two resumable states.
        seed: of the split, the order and LoRA's initial weights.
    """

    rope: dict[str, Any] | None = None
    sequence_length: PositiveInt = 2048
    steps: PositiveInt = 100
    batch_size: PositiveInt = 1
    accumulation: PositiveInt = 1
    learning_rate: PositiveFloat = 2e-5
    weight_decay: NonNegativeFloat = 0.01
    adam_beta2: Share = 0.95
    warmup: Share = 0.05
    schedule: str = "constant_with_warmup"
    max_grad_norm: NonNegativeFloat = 0.0
    bf16: bool = True
    gradient_checkpointing: bool = False
    lora_rank: NonNegativeInt = 0
    held_out: NonNegativeInt = 3
    save_steps: PositiveInt = 50
    seed: int = 42


def presets() -> dict[str, Path]:
    """Files of the shipped presets by name."""
    folder = Path(str(files("harness_configs"))) / "train"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def preset(name: str) -> FineTuneSettings:
    """A shipped preset by name."""
    path = presets()[one_of("preset", name, presets())]
    return read(FineTuneSettings, read_yaml(path), name)
