"""What a fine-tuning run is, and the presets shipped in `harness_configs/train`."""

from typing import Any

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from leval_harness.training.posgen_settings import Share
from leval_harness.yaml_files import read_yaml, shipped
from resonance_vllm.errors import one_of
from resonance_vllm.settings import Settings, read


class FineTuneSettings(Settings):
    """A fine-tuning run, apart from model, data and output folder.

    `rope` is the RoPE request, as `rope_parameters` or with what the model knows left out; None
    keeps the model's own.
    """

    rope: dict[str, Any] | None = None
    sequence_length: PositiveInt = Field(default=2048, description="Tokens of a training sequence.")
    steps: PositiveInt = Field(default=100, description="Optimiser steps.")
    batch_size: PositiveInt = Field(default=1, description="Sequences a device reads at once.")
    accumulation: PositiveInt = Field(default=1, description="Micro-batches an optimiser step.")
    learning_rate: PositiveFloat = Field(default=2e-5, description="Peak, after the warm-up.")
    weight_decay: NonNegativeFloat = Field(default=0.01, description="Of AdamW.")
    adam_beta2: Share = Field(default=0.95, description="Of AdamW; beta1 is 0.9.")
    warmup: Share = Field(default=0.05, description="Share of the steps in which the rate rises.")
    schedule: str = Field(default="constant_with_warmup", description="transformers' name of one.")
    max_grad_norm: NonNegativeFloat = Field(default=0.0, description="Of the gradients; 0: none.")
    bf16: bool = Field(
        default=True, description="bfloat16 autocast, float32 weights and optimiser."
    )
    gradient_checkpointing: bool = Field(default=False, description="Slower, in less memory.")
    lora_rank: NonNegativeInt = Field(default=0, description="Rank of LoRA; 0 trains all weights.")
    held_out: NonNegativeInt = Field(default=3, description="Documents kept out of training.")
    save_steps: PositiveInt = Field(default=50, description="Steps between two resumable states.")
    seed: int = Field(default=42, description="Of the split, the order and LoRA's initial weights.")


def preset(name: str) -> FineTuneSettings:
    """Settings shipped in `harness_configs/train` by name."""
    path = shipped("train")[one_of("preset", name, shipped("train"))]
    return read(FineTuneSettings, read_yaml(path), name)
