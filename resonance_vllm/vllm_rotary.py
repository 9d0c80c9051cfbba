"""Rotary embeddings for vLLM: vLLM's own classes with another cos/sin table.

Only the content of the table differs, so kernels, torch.compile and CUDA graphs see what they
always see and the rotation costs what vLLM's own costs. The maths is `resonance_vllm.core`.
"""

from collections.abc import Callable
from typing import Any

import torch
from vllm.model_executor.layers.rotary_embedding import (
    LinearScalingRotaryEmbedding,
    Llama3RotaryEmbedding,
    RotaryEmbedding,
    YaRNScalingRotaryEmbedding,
)

from resonance_vllm.core.phase import cos_sin_cache
from resonance_vllm.core.spec import RopeSpec


class SpecTable:
    """Mixin: fills the cos/sin table from a `RopeSpec`.

    With a resonance type the table holds the exact phase: rows one wavelength apart are equal bit
    for bit. It has as many rows as the caller asks for, whatever the class would have built, and
    it is made in the dtype in which vLLM keeps it, so that no second copy exists.
    """

    rotary_dim: int
    dtype: torch.dtype
    use_flashinfer: bool

    def __init__(self, spec: RopeSpec, rows: int, served_length: int, **arguments: Any) -> None:
        """Build the embedding.

        Args:
            spec: the settings.
            rows: positions `0..rows-1` get a row.
            served_length: longest sequence served, which fixes `dynamic` and `longrope`.
            arguments: constructor arguments of the vLLM class.
        """
        self.spec = spec
        self.rows = rows
        self.served_length = served_length
        super().__init__(**arguments)

    def _compute_cos_sin_cache(self) -> torch.Tensor:
        return cos_sin_cache(
            self.spec,
            self.rotary_dim,
            self.rows,
            dtype=torch.float32 if self.use_flashinfer else self.dtype,
            device=torch.get_default_device(),
            seq_len=self.served_length,
        )

    def extra_repr(self) -> str:
        """What `print(model)` shows."""
        return f"{super().extra_repr()}, rows={self.rows}, spec={self.spec.to_dict()}"  # type: ignore[misc]


class ResonanceYaRNRotaryEmbedding(SpecTable, YaRNScalingRotaryEmbedding):
    """YaRN with wavelengths rounded to integers, and exact phase (arXiv 2403.00071)."""


def _no_arguments(spec: RopeSpec) -> dict[str, Any]:
    return {}


def _linear_arguments(spec: RopeSpec) -> dict[str, Any]:
    return {"scaling_factors": spec.factor}


def _llama3_arguments(spec: RopeSpec) -> dict[str, Any]:
    return {
        "scaling_factor": spec.factor,
        "low_freq_factor": spec.low_freq_factor,
        "high_freq_factor": spec.high_freq_factor,
        "orig_max_position": spec.original_max_position_embeddings,
    }


def _yarn_arguments(spec: RopeSpec) -> dict[str, Any]:
    names = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor", "truncate")
    return {"scaling_factor": spec.factor, **{name: getattr(spec, name) for name in names}}


# method -> (vLLM's class for it, its constructor arguments beyond the common ones). vLLM's `ntk`
# and `dynamic` are other formulas, and its class for longrope has a forward pass of its own that
# picks between two tables on every call: the plain class serves for these.
BASES: dict[str, tuple[type[RotaryEmbedding], Callable[[RopeSpec], dict[str, Any]]]] = {
    "default": (RotaryEmbedding, _no_arguments),
    "linear": (LinearScalingRotaryEmbedding, _linear_arguments),
    "ntk_aware": (RotaryEmbedding, _no_arguments),
    "dynamic": (RotaryEmbedding, _no_arguments),
    "yarn": (YaRNScalingRotaryEmbedding, _yarn_arguments),
    "llama3": (Llama3RotaryEmbedding, _llama3_arguments),
    "longrope": (RotaryEmbedding, _no_arguments),
}


def rotary_class(spec: RopeSpec) -> type[SpecTable]:
    """The class of vLLM for the base method of `spec`, with the table of `spec`."""
    base = BASES[spec.method][0]
    if base is YaRNScalingRotaryEmbedding and spec.resonance:
        return ResonanceYaRNRotaryEmbedding
    name = "".join(part.capitalize() for part in spec.rope_type.split("_"))
    return type(f"{name}RotaryEmbedding", (SpecTable, base), {"__module__": __name__})


def build(
    spec: RopeSpec,
    *,
    head_size: int,
    rotary_dim: int,
    max_position: int,
    is_neox_style: bool,
    dtype: torch.dtype,
    served_length: int | None,
) -> SpecTable:
    """The rotary embedding of a model's layers.

    Args:
        spec: the settings.
        head_size: size of a head.
        rotary_dim: rotated dimensions of it, even.
        max_position: what the model says of its longest position.
        is_neox_style: halves rotated against each other (True) or neighbours (False).
        dtype: of the table: the model's.
        served_length: vLLM's `max_model_len`, None where no engine is configured.

    Returns:
        A subclass of vLLM's `RotaryEmbedding`.
    """
    extended = int((spec.original_max_position_embeddings or max_position) * (spec.factor or 1.0))
    length = served_length or extended
    return rotary_class(spec)(
        spec,
        # vLLM's kernels do not check: a position without a row reads foreign memory.
        rows=max(extended, max_position, length),
        served_length=length,
        head_size=head_size,
        rotary_dim=rotary_dim,
        max_position_embeddings=spec.original_max_position_embeddings or max_position,
        base=spec.rope_theta,
        is_neox_style=is_neox_style,
        dtype=dtype,
        **BASES[spec.method][1](spec),
    )
