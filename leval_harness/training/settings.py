"""What a run of PosGen or of fine-tuning is, and their presets in `harness_configs`."""

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
    """Sizes of the decoder.

    Kind `llama` has SwiGLU and scaled attention; `t5` is the T5-Small layer, see `t5`. All
    dimensions of a head rotate. The authors' code never trains the feed-forward layers.
    """

    kind: Literal["llama", "t5"] = Field(default="llama", description="Of the layers.")
    layers: PositiveInt = Field(default=2, description="Number of layers.")
    hidden: PositiveInt = Field(default=512, description="Width of the residual stream.")
    heads: PositiveInt = Field(default=8, description="Attention heads of a layer.")
    head_dim: PositiveInt = Field(default=64, description="Dimensions of a head.")
    feed_forward: PositiveInt = Field(default=2048, description="Width of the feed-forward.")
    dropout: Share = Field(default=0.0, description="With kind llama of attention weights alone.")
    freeze_feed_forward: bool = Field(
        default=False, description="Never train the feed-forward layers and their norms."
    )


class Recipe(Settings):
    """Everything about training but the run's own sub-task, encoding and seed.

    `data` has the fields of `PosGenSettings` that differ from its defaults; a seed decides initial
    weights, dropout and batch order; without `validation_rows` the whole split is validated. The
    best model is the first with the highest in-distribution accuracy at a validation: `best`
    validates with the trained encoding, `best_scaled` with the code's YaRN, as the authors do.
    """

    architecture: Architecture = Architecture()
    reading: Reading = Field(
        default="text",
        description="text: trained as tested; code: trained unscaled, scaled for the test.",
    )
    data: dict[str, int | str] = Field(default_factory=dict)
    subtasks: tuple[str, ...] = Field(default=SUBTASKS, strict=False, min_length=1)
    seeds: tuple[int, ...] = Field(default=(0, 1, 2, 3, 4), strict=False, min_length=1)
    epochs: PositiveInt = Field(default=150, description="Passes over the training sequences.")
    batch_size: PositiveInt = Field(default=128, description="Sequences a step.")
    learning_rate: PositiveFloat = Field(default=2e-4, description="Peak of the one cycle.")
    weight_decay: NonNegativeFloat = Field(default=0.01, description="Of AdamW.")
    evaluate_every: PositiveInt = Field(default=2, description="Epochs between two validations.")
    validation_rows: PositiveInt | None = None
    bf16: bool = Field(default=False, description="bfloat16 autocast.")
    base: PositiveFloat = Field(default=10_000.0, description="Of the encodings' frequencies.")
    keep: Literal["last", "best", "best_scaled"] = Field(
        default="last",
        description="Model that is tested: last, best at a validation, or best_scaled: under YaRN.",
    )

    def settings(self, subtask: str) -> PosGenSettings:
        """The data set of a sub-task."""
        return parse_settings(PosGenSettings, {**self.data, "subtask": subtask})

    def recorded(self) -> dict[str, Any]:
        """What decides a trained model; all of a folder share it.

        The reading and the sub-tasks only say which models to train and how to test them.
        """
        return self.model_dump(exclude={"reading", "subtasks"})

    @property
    def steps_per_epoch(self) -> int:
        """Batches in one pass over the training sequences; the last one may be smaller."""
        return -(-self.settings("cot").train // self.batch_size)

    @property
    def steps(self) -> int:
        """Optimiser steps of a run."""
        return self.epochs * self.steps_per_epoch


@dataclass(frozen=True, order=True)
class PosGenRun:
    """One model: what it is trained on, how it encodes positions, and its seed."""

    subtask: str
    encoding: str
    seed: int

    @property
    def folder(self) -> str:
        """Below the output folder."""
        return f"{self.subtask}/{self.encoding}/seed-{self.seed}"


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


Preset = TypeVar("Preset", Recipe, FineTuneSettings)


def preset(kind: type[Preset], name: str) -> Preset:
    """A recipe or fine-tuning settings shipped in `harness_configs`, by name."""
    files = packaged_configs("posgen" if kind is Recipe else "train")
    return parse_settings(kind, read_yaml(files[check_choice("preset", name, files)]), name)


def rope_parameters(encoding: str, recipe: Recipe) -> dict[str, Any]:
    """The `rope_parameters` of one of `ENCODINGS`.

    YaRN extends the native context length, of the numbers and the `[EOS]` before them. The authors' code
    ramps over the extended length N in place of the trained one L, with a factor of N/L. As
    wavelengths are chosen by the native context length, that is written as the same ramp over L: `beta`
    turns in N tokens are `beta L/N` turns in L.
    """
    about, data = ENCODINGS[encoding], recipe.settings("cot")
    rope: dict[str, Any] = {"rope_theta": recipe.base}
    if about.scaling is None:
        return {"rope_type": "resonance" if about.resonance else "default", **rope}
    factor, turns = data.length / data.train_length, 1.0
    if about.scaling == "code":
        factor = turns = (data.length + 1) / (data.train_length + 1)
    return {
        "rope_type": "resonance_yarn" if about.resonance else "yarn",
        **rope,
        "factor": factor,
        "original_max_position_embeddings": data.train_length + 1,
        "beta_fast": 2.0 / turns,
        "beta_slow": 1.0 / turns,
    }
