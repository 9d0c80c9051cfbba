"""YaRN (Peng et al. 2023), as its code has it and as its paper has it."""

import math
from typing import Annotated, Any, Literal

from pydantic import Field

from resonance_vllm.core.method import (
    Positive,
    ScaledMethod,
    Tensor,
    TrainedLength,
    at_least,
    plain_frequencies,
)


class Yarn(ScaledMethod):
    """Fast features kept, slow ones divided by the factor, a ramp between.

    `ramp: dimension` mixes frequencies, linearly in `j` between two dimensions (YaRN's code,
    transformers, vLLM). `ramp: wavelength` mixes wavelengths by the paper's gamma; no library has
    that, so it goes by a name of its own there.
    """

    name = "yarn"
    variants = {"yarn_wavelength": {"ramp": "wavelength"}}
    stock = True
    formula = "fast features kept, slow ones divided by `s`"
    vllm_multiplies = False
    derived = {"attention_factor": ("factor", "mscale", "mscale_all_dim")}

    original_max_position_embeddings: TrainedLength
    ramp: Literal["dimension", "wavelength"] = Field(
        default="dimension",
        description="By dimension index, as in code, or the paper's gamma.",
    )
    beta_slow: Positive = Field(1.0, description="Turns within L below which s applies in full.")
    beta_fast: Annotated[float, at_least("beta_slow")] = Field(
        default=32.0,
        validate_default=True,
        description="Turns within L above which a feature is left alone; at least beta_slow.",
    )
    truncate: bool = Field(True, description="Round the ramp's two dimensions outward.")
    attention_factor: Positive | None = Field(
        default=None, description="What cos and sin are multiplied by. [0.1*ln(s)+1]"
    )
    mscale: Positive | None = Field(None, description="Numerator of the attention factor.")
    mscale_all_dim: Positive | None = Field(None, description="Its denominator.")

    def frequencies(self, dim: int, seq_len: int | None = None) -> Tensor:
        import torch

        plain = plain_frequencies(self.rope_theta, dim)
        if self.ramp == "wavelength":
            wavelengths = 2 * math.pi / plain
            turns = self.original_max_position_embeddings / wavelengths
            gamma = ((turns - self.beta_slow) / (self.beta_fast - self.beta_slow)).clamp(0, 1)
            return 2 * math.pi / ((1 - gamma) * self.factor * wavelengths + gamma * wavelengths)
        low, high = self._correction_range(dim)
        if low == high:
            high += 0.001  # as the reference code does, instead of a division by zero
        indices = torch.arange(dim // 2, dtype=torch.float64, device="cpu")
        kept = 1 - ((indices - low) / (high - low)).clamp(0, 1)
        return plain / self.factor * (1 - kept) + plain * kept

    def _correction_range(self, dim: int) -> tuple[float, float]:
        """Dimension indices between which YaRN's code ramps."""
        low, high = (self._dimension_with(turns, dim) for turns in (self.beta_fast, self.beta_slow))
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        return max(low, 0), min(high, dim - 1)

    def _dimension_with(self, turns: float, dim: int) -> float:
        original = self.original_max_position_embeddings
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(self.rope_theta))

    def scale(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._scaled(self.mscale) / self._scaled(self.mscale_all_dim)
        return self._scaled(1.0)

    def _scaled(self, mscale: float) -> float:
        return 0.1 * mscale * math.log(self.factor) + 1.0

    def for_vllm(self, parameters: dict[str, Any]) -> dict[str, Any]:
        if parameters["rope_type"] == self.name:  # gpt-oss's code reads them unasked
            own = {key: getattr(self, key) for key in ("beta_fast", "beta_slow", "truncate")}
            parameters = {**own, **parameters}
        return parameters

    def stock_rows(self, positions: int) -> int:
        return self.length_limit(positions)
