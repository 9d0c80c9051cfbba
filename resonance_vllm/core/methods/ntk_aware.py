"""NTK-aware scaling (bloc97): a larger base. New in both libraries."""

from typing import Literal

from pydantic import Field

from resonance_vllm.core.method import ScaledMethod, Tensor, Tokens, plain_frequencies
from resonance_vllm.errors import RopeConfigError


class NtkAware(ScaledMethod):
    """The slowest feature is interpolated by exactly the factor, the fastest is left alone."""

    name = "ntk_aware"
    aliases = ("ntk",)
    formula = "base `b*s^(d/(d-2))`; `base_scaling: paper`: base `s*b`"
    vllm_lookalikes = {
        "ntk": "base*factor divided by factor^(2/d), not NTK-aware scaling: write ntk_aware for "
        "that"
    }

    base_scaling: Literal["exact", "paper"] = Field(
        default="exact", description="Base b*s^(d/(d-2)), or s*b as in the paper's Appendix C.2."
    )

    longest_sequence: Tokens | None = Field(
        default=None, description="Longest sequence in tokens. [L*s]"
    )

    def length_limit(self, positions: int) -> int:
        return self.longest_sequence or super().length_limit(positions)

    def frequencies(self, dim: int, seq_len: int | None = None) -> Tensor:
        if self.base_scaling == "paper":
            return plain_frequencies(self.rope_theta * self.factor, dim)
        return plain_frequencies(ntk_base(self.rope_theta, self.factor, dim), dim)


def ntk_base(base: float, factor: float, dim: int) -> float:
    """bloc97's base `b*s^(d/(d-2))`; a `dim` below 4 is a RopeConfigError."""
    if dim < 4:
        raise RopeConfigError(f"dim: {dim} is not allowed with NTK scaling; allowed: at least 4")
    return float(base * factor ** (dim / (dim - 2)))
