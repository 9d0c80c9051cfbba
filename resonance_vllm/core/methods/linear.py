"""Position interpolation (Chen et al. 2023)."""

from typing import TYPE_CHECKING, Any

from resonance_vllm.core.method import ScaledMethod, plain_frequencies

if TYPE_CHECKING:
    from torch import Tensor


class Linear(ScaledMethod):
    """Every frequency divided by the factor."""

    name = "linear"
    stock = True
    formula = "divided by `factor`"
    vllm_class = "LinearScalingRotaryEmbedding"
    vllm_arguments = {"scaling_factors": "factor"}

    def frequencies(self, dim: int, seq_len: int | None = None) -> "Tensor":
        """`b^(-2j/d) / s`."""
        return plain_frequencies(self.rope_theta, dim) / self.factor

    def for_transformers(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Its own `linear` warns of the trained length."""
        if parameters["rope_type"] == self.name:
            parameters.pop("original_max_position_embeddings", None)
        return parameters

    def stock_rows(self, positions: int) -> int:
        """As many as the extended length has."""
        return int(positions * self.factor)
