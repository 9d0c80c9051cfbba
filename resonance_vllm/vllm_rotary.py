"""Rotary embeddings for vLLM: vLLM's own classes with another cos/sin table.

Only the content of the table differs, so kernels, torch.compile and CUDA graphs see what they
always see and the rotation costs what vLLM's own costs. The maths is `resonance_vllm.core`.
"""

from typing import Any

import torch
from vllm.model_executor.layers import rotary_embedding

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
        self.spec = spec
        self.rows = rows
        self.served_length = served_length  # fixes `dynamic` and `longrope`
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


class ResonanceYaRNRotaryEmbedding(SpecTable, rotary_embedding.YaRNScalingRotaryEmbedding):
    """YaRN with wavelengths rounded to integers, and exact phase (arXiv 2403.00071)."""


def _rotary_class(spec: RopeSpec) -> type[SpecTable]:
    base = getattr(rotary_embedding, spec.method.vllm_class)
    if spec.resonance and base is rotary_embedding.YaRNScalingRotaryEmbedding:
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

    The arguments are those of vLLM's `get_rope`, and `served_length`, vLLM's `max_model_len`, None
    where no engine is configured.
    """
    method = spec.method
    limit = method.length_limit(max_position)
    length = served_length or limit
    return _rotary_class(spec)(
        spec,
        # vLLM's kernels do not check: a position without a row reads foreign memory.
        rows=max(limit, max_position, length),
        served_length=length,
        head_size=head_size,
        rotary_dim=rotary_dim,
        max_position_embeddings=method.trained_length or max_position,
        base=method.rope_theta,
        is_neox_style=is_neox_style,
        dtype=dtype,
        **{name: getattr(method, key) for name, key in method.vllm_arguments.items()},
    )
