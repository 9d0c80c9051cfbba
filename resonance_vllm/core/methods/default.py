"""Plain RoPE (Su et al. 2021)."""

from typing import TYPE_CHECKING

from resonance_vllm.core.method import Method, plain_frequencies

if TYPE_CHECKING:
    from torch import Tensor


class Default(Method):
    """No scaling."""

    name = "default"
    stock = True
    formula = "`b^(-2j/d)`"

    def frequencies(self, dim: int, seq_len: int | None = None) -> "Tensor":
        """`b^(-2j/d)`."""
        return plain_frequencies(self.rope_theta, dim)
