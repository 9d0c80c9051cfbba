"""Position interpolation (Chen et al. 2023)."""

from resonance_vllm.core.method import ScaledMethod, Tensor, plain_frequencies


class Linear(ScaledMethod):
    """Every frequency divided by the factor."""

    name = "linear"
    stock = True
    hf_warns_of = ("original_max_position_embeddings",)
    formula = "divided by `factor`"
    positions_multiplied = True

    def frequencies(self, dim: int, seq_len: int | None = None) -> Tensor:
        return plain_frequencies(self.rope_theta, dim) / self.factor

    def stock_rows(self, positions: int) -> int:
        return int(positions * self.factor)
