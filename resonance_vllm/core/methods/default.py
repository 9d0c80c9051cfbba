"""Plain RoPE (Su et al. 2021)."""

from resonance_vllm.core.method import Method, Tensor, plain_frequencies


class Default(Method):
    """No scaling."""

    name = "default"
    stock = True
    formula = "`b^(-2j/d)`"

    def frequencies(self, dim: int, seq_len: int | None = None) -> Tensor:
        return plain_frequencies(self.rope_theta, dim)
