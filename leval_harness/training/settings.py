"""Settings of PosGen and of fine-tuning, and their presets in `harness_configs`."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from leval_tasks.common.metadata import SUBTASKS, PosGenSettings
from leval_tasks.posgen.encodings import ENCODINGS, Reading
from resonance_vllm.common.errors import check_choice
from resonance_vllm.common.settings import Settings, parse_settings
from resonance_vllm.common.yaml_files import packaged_configs, read_yaml

Share = Annotated[float, Field(ge=0, lt=1)]


class Architecture(Settings):
    """Sizes of the decoder that PosGen trains; all dimensions of a head are rotated.

    Kind `llama` is a Llama layer (SwiGLU, attention logits divided by the square root of the head
    size), `t5` the layer of T5-Small, see `leval_harness.training.t5`.
    """

    kind: Literal["llama", "t5"] = Field(
        default="llama", description="Kind of decoder layer: Llama's, or T5-Small's."
    )
    layers: PositiveInt = Field(default=2, description="Number of decoder layers.")
    hidden: PositiveInt = Field(default=512, description="Width of the hidden states.")
    heads: PositiveInt = Field(default=8, description="Number of attention heads per layer.")
    head_dim: PositiveInt = Field(default=64, description="Number of dimensions per head.")
    feed_forward: PositiveInt = Field(
        default=2048, description="Width of the feed-forward layers inside."
    )
    dropout: Share = Field(
        default=0.0,
        description="Dropout rate; with kind llama it applies to attention weights only.",
    )
    # the authors' code never trains these, see `harness_configs/posgen/code.yaml`
    freeze_feed_forward: bool = Field(
        default=False, description="Leave the feed-forward layers and their norms untrained."
    )


class Recipe(Settings):
    """Everything about a PosGen training that its sub-task, encoding and seed do not say.

    Attributes:
        architecture: sizes of the decoder.
        reading: `text` trains each model with the encoding that it is tested with; `code` trains
            without scaling and switches it on for the test, as the authors' code does.
        data: the fields of `PosGenSettings` that differ from its defaults.
        subtasks: sub-tasks that models are trained on.
        seeds: each decides initial weights, dropout and batch order of one model per sub-task and
            encoding.
        epochs: passes over the training sequences.
        batch_size: sequences per optimiser step.
        learning_rate: peak of the one-cycle schedule.
        weight_decay: of AdamW.
        evaluate_every: epochs between two validations.
        validation_rows: sequences of the validation split that are used; None for all.
        bf16: whether the forward pass runs under bfloat16 autocast.
        base: `rope_theta` of the encodings.
        keep: the model that is tested: the `last` one, or the first one with the highest
            in-distribution accuracy at a validation. `best` validates with the encoding that is
            trained, `best_scaled` with the YaRN of the authors' code, as the authors do.
    """

    architecture: Architecture = Architecture()
    reading: Reading = Field(
        default="text",
        description="text trains with the encoding that is tested; code trains without scaling and "
        "switches it on for the test.",
    )
    data: dict[str, int | str] = Field(default_factory=dict)
    subtasks: tuple[str, ...] = Field(default=SUBTASKS, strict=False, min_length=1)
    seeds: tuple[int, ...] = Field(default=(0, 1, 2, 3, 4), strict=False, min_length=1)
    epochs: PositiveInt = Field(
        default=150, description="Number of passes over the training sequences."
    )
    batch_size: PositiveInt = Field(
        default=128, description="Number of sequences per optimiser step."
    )
    learning_rate: PositiveFloat = Field(
        default=2e-4, description="Peak learning rate of the one-cycle schedule."
    )
    weight_decay: NonNegativeFloat = Field(default=0.01, description="Weight decay of AdamW.")
    evaluate_every: PositiveInt = Field(
        default=2, description="Number of epochs between two validations."
    )
    validation_rows: PositiveInt | None = None
    bf16: bool = Field(default=False, description="Run the forward pass under bfloat16 autocast.")
    base: PositiveFloat = Field(
        default=10_000.0, description="Base of the encodings' frequencies, rope_theta."
    )
    keep: Literal["last", "best", "best_scaled"] = Field(
        default="last",
        description="Test the last model, or the best one at a validation; best_scaled validates "
        "under YaRN.",
    )

    def settings(self, subtask: str) -> PosGenSettings:
        """Return the settings of a sub-task's data set."""
        return parse_settings(PosGenSettings, {**self.data, "subtask": subtask})

    def recorded(self) -> dict[str, Any]:
        """Return the settings that decide a trained model; all models in a folder share them.

        The reading and the sub-tasks only say which models to train and how to test them.
        """
        return self.model_dump(exclude={"reading", "subtasks"})

    @property
    def steps_per_epoch(self) -> int:
        """Batches in one pass over the training sequences; the last one may be smaller."""
        return math.ceil(self.settings("cot").train / self.batch_size)

    @property
    def steps(self) -> int:
        """Optimiser steps of a training."""
        return self.epochs * self.steps_per_epoch


@dataclass(frozen=True, order=True)
class PosGenRun:
    """One model: the sub-task that it is trained on, its position encoding, and its seed."""

    subtask: str
    encoding: str
    seed: int

    @property
    def folder(self) -> str:
        """Folder of the model below the output folder."""
        return f"{self.subtask}/{self.encoding}/seed-{self.seed}"


class FineTuneSettings(Settings):
    """Settings of a fine-tuning, without model, data and output folder.

    `rope` holds `rope_parameters`, in which keys that the model's config states may be omitted; None
    keeps the model's own settings.
    """

    rope: dict[str, Any] | None = None
    sequence_length: PositiveInt = Field(
        default=2048, description="Length of a training sequence in tokens."
    )
    steps: PositiveInt = Field(default=100, description="Number of optimiser steps.")
    batch_size: PositiveInt = Field(
        default=1, description="Number of sequences per device and forward pass."
    )
    accumulation: PositiveInt = Field(
        default=1, description="Number of forward passes per optimiser step."
    )
    learning_rate: PositiveFloat = Field(
        default=2e-5, description="Learning rate after the warm-up."
    )
    weight_decay: NonNegativeFloat = Field(default=0.01, description="Weight decay of AdamW.")
    adam_beta2: Share = Field(default=0.95, description="Beta2 of AdamW; beta1 is 0.9.")
    warmup: Share = Field(
        default=0.05, description="Share of the steps in which the learning rate rises."
    )
    schedule: str = Field(
        default="constant_with_warmup",
        description="Learning-rate schedule, by its name in transformers.",
    )
    max_grad_norm: NonNegativeFloat = Field(
        default=0.0, description="Norm to which gradients are clipped; 0 clips nothing."
    )
    bf16: bool = Field(
        default=True,
        description="Use bfloat16 autocast; weights and optimiser stay in float32.",
    )
    gradient_checkpointing: bool = Field(
        default=False, description="Recompute activations to save memory, which is slower."
    )
    lora_rank: NonNegativeInt = Field(
        default=0, description="Rank of LoRA adapters; 0 trains all weights."
    )
    held_out: NonNegativeInt = Field(
        default=3, description="Number of documents that are kept out of training."
    )
    save_steps: PositiveInt = Field(
        default=50, description="Number of steps between two states that can be resumed."
    )
    seed: int = Field(
        default=42, description="Seed of the document split, the order and LoRA's initial weights."
    )


Preset = TypeVar("Preset", Recipe, FineTuneSettings)


def preset(kind: type[Preset], name: str) -> Preset:
    """Return a recipe, or fine-tuning settings, that this package ships.

    Args:
        kind: `Recipe` or `FineTuneSettings`.
        name: name of the YAML file without its suffix.

    Raises:
        SettingError: there is no such file, with the nearest names.
    """
    folder = "train"
    if kind is Recipe:
        folder = "posgen"
    files = packaged_configs(folder)
    return parse_settings(kind, read_yaml(files[check_choice("preset", name, files)]), name)


def rope_parameters(encoding: str, recipe: Recipe) -> dict[str, Any]:
    """Return the `rope_parameters` of one of `ENCODINGS`.

    YaRN extends the original context length L, which is the numbers of a training sequence and the
    `[EOS]` before them. The authors' code (scaling `code`) computes its ramp over the extended
    length N instead of L, with a factor of N/L. YaRN's ramp is defined over L here, so the same
    ramp is written with other bounds: `beta` rotations in N tokens are `beta L/N` rotations in L.

    Args:
        encoding: name of the encoding.
        recipe: lengths of the sequences, and the base of the frequencies.
    """
    chosen = ENCODINGS[encoding]
    data = recipe.settings("cot")
    if chosen.scaling is None:
        rope_type = "default"
        if chosen.resonance:
            rope_type = "resonance"
        return {"rope_type": rope_type, "rope_theta": recipe.base}
    rope_type = "yarn"
    if chosen.resonance:
        rope_type = "resonance_yarn"
    factor = data.length / data.train_length
    ramp_length_ratio = 1.0  # ramp over L
    if chosen.scaling == "code":
        factor = (data.length + 1) / (data.train_length + 1)
        ramp_length_ratio = factor  # ramp over N
    return {
        "rope_type": rope_type,
        "rope_theta": recipe.base,
        "factor": factor,
        "original_max_position_embeddings": data.train_length + 1,
        "beta_fast": 2.0 / ramp_length_ratio,
        "beta_slow": 1.0 / ramp_length_ratio,
    }
