"""The scaling of Llama 3.1."""

import math
from typing import Annotated

from pydantic import Field

from resonance_vllm.core.method import (
    Positive,
    ScaledMethod,
    Tensor,
    TrainedLength,
    at_least,
    plain_frequencies,
)


class Llama3(ScaledMethod):
    """Wavelengths above `L/low_freq_factor` times `s`, those below `L/high_freq_factor` kept.

    Between the two the frequencies are mixed, linearly in the turns within `L`.
    """

    name = "llama3"
    stock = True
    formula = "long wavelengths times `s`, short ones kept, a ramp in the turns within `L` between"
    vllm_multiplies = False

    original_max_position_embeddings: TrainedLength
    low_freq_factor: Positive = Field(
        examples=[1.0], description="L over this is where full interpolation starts."
    )
    high_freq_factor: Annotated[float, at_least("low_freq_factor")] = Field(
        examples=[4.0], description="L over this is where interpolation ends; at least the low one."
    )

    def frequencies(self, dim: int, seq_len: int | None = None) -> Tensor:
        low, high = self.low_freq_factor, self.high_freq_factor
        plain = plain_frequencies(self.rope_theta, dim)
        turns = self.original_max_position_embeddings * plain / (2 * math.pi)
        kept = ((turns - low) / (high - low)).clamp(0, 1)  # a step where the two are one
        return plain / self.factor * (1 - kept) + plain * kept

    @property
    def extension(self) -> float | None:
        return None  # the factor shapes the frequencies and is no ratio of lengths

    def length_limit(self, positions: int) -> int:
        # Llama 3.1 has 8,192 * 8 and was trained to 131,072, as its config states.
        if positions > self.original_max_position_embeddings:
            return positions
        return int(self.original_max_position_embeddings * self.factor)
