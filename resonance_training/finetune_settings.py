"""What a fine-tuning run is, and the presets shipped in `harness_configs/train`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import yaml

from leval_tasks.errors import one_of
from resonance_training.posgen_settings import TrainingError


@dataclass(frozen=True, kw_only=True)
class FineTuneSettings:
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
    sequence_length: int = 2048
    steps: int = 100
    batch_size: int = 1
    accumulation: int = 1
    learning_rate: float = 2e-5
    weight_decay: float = 0.01
    adam_beta2: float = 0.95
    warmup: float = 0.05
    schedule: str = "constant_with_warmup"
    max_grad_norm: float = 0.0
    bf16: bool = True
    gradient_checkpointing: bool = False
    lora_rank: int = 0
    held_out: int = 3
    save_steps: int = 50
    seed: int = 42

    def __post_init__(self) -> None:
        for name in ("sequence_length", "steps", "batch_size", "accumulation", "learning_rate"):
            if getattr(self, name) <= 0:
                raise TrainingError(f"{name}: {getattr(self, name)} is not allowed; above 0")
        if not 0 <= self.warmup < 1:
            raise TrainingError(f"warmup: {self.warmup} is not allowed; a share from 0 to below 1")
        if self.lora_rank < 0:
            raise TrainingError(f"lora_rank: {self.lora_rank} is not allowed; 0 or more")

    def sequences(self, processes: int) -> int:
        """Training sequences of a run on so many processes."""
        return self.steps * self.batch_size * self.accumulation * processes

    def changed(self, changes: dict[str, Any]) -> FineTuneSettings:
        """A copy with those changes that are not None.

        Raises:
            TrainingError: a name is none of ours.
        """
        names = {field.name for field in dataclasses.fields(self)}
        for name in changes:
            one_of("setting", name, sorted(names), TrainingError)
        return dataclasses.replace(self, **{k: v for k, v in changes.items() if v is not None})


def preset_names() -> tuple[str, ...]:
    """Names of the shipped presets."""
    folder = files("harness_configs") / "train"
    return tuple(sorted(p.name[:-5] for p in folder.iterdir() if p.name.endswith(".yaml")))


def preset(name: str) -> FineTuneSettings:
    """A shipped preset.

    Raises:
        TrainingError: there is none of that name.
    """
    one_of("preset", name, preset_names(), TrainingError)
    text = (files("harness_configs") / "train" / f"{name}.yaml").read_text(encoding="utf-8")
    return FineTuneSettings().changed(yaml.safe_load(text))
