"""CoPE (Li et al. 2026, arXiv 2602.05258): a cosine taper of the slowest frequencies."""

import math

from pydantic import Field

from resonance_vllm.core.method import Method, Tensor, Tokens, plain_frequencies
from resonance_vllm.errors import RopeConfigError


class Cope(Method):
    """Each of the `n` slowest features is multiplied by `(1 + cos(pi*k/(n-1)))/2`, k = 0..n-1.

    The slowest one stands still. There is no factor: lengths beyond the trained one extrapolate.
    """

    name = "cope"
    formula = "`b^(-2j/d)`; the slowest `n` times `(1 + cos(pi*k/(n-1)))/2`, k = 0..n-1"

    tapered: Tokens | None = Field(
        default=None, description="Number n of slowed features. [20 of 64, as in the paper]"
    )

    def frequencies(self, dim: int, seq_len: int | None = None) -> Tensor:
        import torch

        result = plain_frequencies(self.rope_theta, dim)
        count = self.tapered or max(2, round(len(result) * 20 / 64))
        if not 2 <= count <= len(result):
            raise RopeConfigError(
                f"tapered: {count} is not allowed with {len(result)} features; allowed: 2 to "
                f"{len(result)}"
            )
        angles = torch.linspace(0, math.pi, count, dtype=torch.float64, device="cpu")
        result[-count:] *= (1 + angles.cos()) / 2
        return result
