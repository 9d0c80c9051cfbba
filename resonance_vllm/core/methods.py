"""The RoPE methods that change frequencies alone, one class each.

A class with a `name`, here or in a module `methods_*.py` beside this one, is a method everywhere:
all lists are made from `resonance_vllm.core.spec.METHODS`.
"""

import math
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.core.method import (
    Divisors,
    Extension,
    Method,
    OriginalLength,
    Positive,
    ScaledMethod,
    Tensor,
    plain_frequencies,
)


class Default(Method):
    """Plain RoPE: `theta_j = b^(-2j/d)` (Su et al. 2021, arXiv 2104.09864)."""

    name = "default"
    stock = True

    def compute_inv_freq(self, dim: int, seq_len: int | None = None) -> Tensor:
        return plain_frequencies(self.rope_theta, dim)


class Linear(ScaledMethod):
    """Position interpolation: `theta_j = b^(-2j/d) / s` (Chen et al. 2023, arXiv 2306.15595).

    Every position `n` is rotated as position `n/s` was in training, fast features included.
    """

    name = "linear"
    stock = True
    config_length_is_scaled = True

    def compute_inv_freq(self, dim: int, seq_len: int | None = None) -> Tensor:
        return plain_frequencies(self.rope_theta, dim) / self.factor


class NtkAware(ScaledMethod):
    """NTK-aware scaling: plain RoPE with the base `b' = b * s^(d/(d-2))` (bloc97, 2023).

    The slowest feature, `j = d/2 - 1`, is interpolated by exactly `s`:
    `b'^(-(d-2)/d) = b^(-(d-2)/d) / s`. The fastest, `j = 0`, keeps its frequency of 1. With
    `base_scaling: paper` the base is `b' = s * b`, as in Appendix C.2 of Resonance RoPE
    (arXiv 2403.00071), which interpolates the slowest feature by `s^((d-2)/d)`. Neither
    transformers nor vLLM has the method; vLLM's `ntk` is another formula.
    """

    name = "ntk_aware"

    base_scaling: Literal["exact", "paper"] = Field(
        "exact", description="Base b*s^(d/(d-2)), or s*b as in the paper's Appendix C.2."
    )

    def compute_inv_freq(self, dim: int, seq_len: int | None = None) -> Tensor:
        if self.base_scaling == "paper":
            return plain_frequencies(self.rope_theta * self.factor, dim)
        return plain_frequencies(ntk_base(self.rope_theta, self.factor, dim), dim)


def ntk_base(base: float, factor: float, dim: int) -> float:
    """Compute the base of NTK-aware scaling, `b * s^(d/(d-2))`.

    Raises:
        RopeConfigError: `dim` is below 4, where the exponent is not defined.
    """
    if dim < 4:
        raise RopeConfigError(f"dim: {dim} is not allowed with NTK scaling; allowed: at least 4")
    return float(base * factor ** (dim / (dim - 2)))


class Dynamic(ScaledMethod):
    """Dynamic NTK as in transformers: NTK-aware scaling by a factor that grows with the length.

    For a sequence of `l` tokens the factor is `s * max(l, L) / L - (s - 1)`: 1 up to `L`, so short
    sequences are rotated as in training. With `factor: 1.0` it is `l / L`, the dynamic NTK of the
    Resonance RoPE paper (arXiv 2403.00071).
    """

    name = "dynamic"
    stock = True
    depends_on_length = True

    def compute_inv_freq(self, dim: int, seq_len: int | None = None) -> Tensor:
        factor = self._factor_at(seq_len)
        return plain_frequencies(ntk_base(self.rope_theta, factor, dim), dim)

    def _factor_at(self, length: int | None) -> float:
        """Return `s * length/L - (s - 1)`; 1 up to `L` tokens and without a length."""
        original = self.original_max_position_embeddings
        if original is None:
            raise RopeConfigError("original_max_position_embeddings: missing")
        longest = max(original if length is None else length, original)
        return self.factor * longest / original - (self.factor - 1)

    def at_length(self, length: int) -> NtkAware:
        """Return `ntk_aware` with the base that `dynamic` has at this length in tokens."""
        return NtkAware(**{**dict(self), "factor": self._factor_at(length)})


class Yarn(ScaledMethod):
    r"""YaRN: fast features kept, slow ones divided by the factor, a ramp between.

    Peng et al. 2023, arXiv 2309.00071. `r_j = L / lambda_j` is the number of periods of a feature
    within `L`. Features with `r_j >= beta_fast` keep their frequency, those with
    `r_j <= beta_slow` get `theta_j / s`. Between the two there are two definitions:

    - `ramp: dimension` (the default) is what the authors' code, transformers, vLLM and every
      published checkpoint do. `beta_fast` and `beta_slow` are turned into dimension indices,
      `j(r) = d ln(L / (2 pi r)) / (2 ln b)`, with `truncate` rounded outward (floor, ceiling), then
      clamped to `[0, d - 1]`. The weight of the kept frequency falls linearly in `j` from 1 at the
      first index to 0 at the second, and frequencies are mixed.
    - `ramp: wavelength` is the paper's formula: the weight is
      `gamma_j = clamp((r_j - beta_slow) / (beta_fast - beta_slow), 0, 1)`, and wavelengths are
      mixed:
      `lambda'_j = (1 - gamma_j) s lambda_j + gamma_j lambda_j`. Libraries do not have it; only
      Resonance on it runs, as a type of this package.

    The attention factor is `0.1 ln(s) + 1` (the paper's `sqrt(1/t)`), unless `attention_factor`
    states it, or `mscale` and `mscale_all_dim` do (DeepSeek):
    `(0.1 mscale ln(s) + 1) / (0.1 mscale_all_dim ln(s) + 1)`.
    """

    name = "yarn"
    stock = True

    original_max_position_embeddings: OriginalLength
    ramp: Literal["dimension", "wavelength"] = Field(
        "dimension", description="By dimension index, as in code, or the paper's gamma."
    )
    beta_slow: Positive = Field(1.0, description="Periods within L below which s applies in full.")
    beta_fast: Positive = Field(32.0, description="Periods within L above which s does not apply.")
    truncate: bool = Field(True, description="Round the ramp's two dimensions outward.")
    attention_factor: Positive | None = Field(None, description="Scale of cos, sin. [0.1*ln(s)+1]")
    mscale: Positive | None = Field(None, description="Numerator of the attention factor.")
    mscale_all_dim: Positive | None = Field(None, description="Its denominator.")

    @model_validator(mode="after")
    def _check_betas(self) -> Self:
        """Refuse a ramp whose fast end lies below its slow one."""
        slow = self.beta_slow
        fast = self.beta_fast
        if fast < slow:
            raise RopeConfigError(f"beta_fast: {fast} is below beta_slow={slow}")
        return self

    @property
    def is_stock_formula(self) -> bool:
        return self.ramp == "dimension"

    def compute_inv_freq(self, dim: int, seq_len: int | None = None) -> Tensor:
        import torch

        plain = plain_frequencies(self.rope_theta, dim)
        if self.ramp == "wavelength":
            wavelengths = 2 * math.pi / plain
            periods = self.original_max_position_embeddings / wavelengths
            gamma = ((periods - self.beta_slow) / (self.beta_fast - self.beta_slow)).clamp(0, 1)
            return 2 * math.pi / ((1 - gamma) * self.factor * wavelengths + gamma * wavelengths)
        low, high = self._correction_range(dim)
        if low == high:
            high += 0.001  # as the authors' code does, instead of a division by zero
        indices = torch.arange(dim // 2, dtype=torch.float64, device="cpu")
        kept = 1 - ((indices - low) / (high - low)).clamp(0, 1)
        return plain / self.factor * (1 - kept) + plain * kept

    def _correction_range(self, dim: int) -> tuple[float, float]:
        """Return the dimension indices between which `ramp: dimension` mixes frequencies."""
        low = self._dimension_of(self.beta_fast, dim)
        high = self._dimension_of(self.beta_slow, dim)
        if self.truncate:
            low = math.floor(low)
            high = math.ceil(high)
        return max(low, 0), min(high, dim - 1)

    def _dimension_of(self, periods: float, dim: int) -> float:
        """Return the (fractional) feature that has so many periods within `L`."""
        wavelength_ratio = self.original_max_position_embeddings / (periods * 2 * math.pi)
        return dim * math.log(wavelength_ratio) / (2 * math.log(self.rope_theta))

    def compute_attention_factor(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._scaled(self.mscale) / self._scaled(self.mscale_all_dim)
        return self._scaled(1.0)

    def _scaled(self, mscale: float) -> float:
        return 0.1 * mscale * math.log(self.factor) + 1.0

    def to_vllm(self, parameters: dict[str, Any]) -> dict[str, Any]:
        if parameters["rope_type"] != self.name:
            return parameters
        if not self.is_stock_formula:
            raise RopeConfigError("ramp is not supported by vLLM's yarn; use resonance_yarn")
        # The code of gpt-oss reads these keys without a default.
        own = {key: getattr(self, key) for key in ("beta_fast", "beta_slow", "truncate")}
        return {**own, **parameters}


class Llama3(ScaledMethod):
    """The scaling of Llama 3.1 (Meta, 2024; its published code is the definition).

    With `r_j = L / lambda_j` periods within `L`, features with `r_j <= low_freq_factor` get
    `theta_j / s`, those with `r_j >= high_freq_factor` keep `theta_j`. Between the two frequencies
    are mixed with the weight `(r_j - low) / (high - low)` of the kept one. Attention is not scaled.
    """

    name = "llama3"
    stock = True

    original_max_position_embeddings: OriginalLength
    low_freq_factor: Positive = Field(
        examples=[1.0],
        description="Wavelengths above L/low_freq_factor are scaled by the full factor.",
    )
    high_freq_factor: Positive = Field(
        examples=[4.0], description="Wavelengths below L/high_freq_factor are kept."
    )

    @model_validator(mode="after")
    def _check_frequency_factors(self) -> Self:
        """Refuse a band of wavelengths whose ends are in the wrong order."""
        low = self.low_freq_factor
        high = self.high_freq_factor
        if high < low:
            raise RopeConfigError(f"high_freq_factor: {high} is below low_freq_factor={low}")
        return self

    def compute_inv_freq(self, dim: int, seq_len: int | None = None) -> Tensor:
        low = self.low_freq_factor
        high = self.high_freq_factor
        plain = plain_frequencies(self.rope_theta, dim)
        periods = self.original_max_position_embeddings * plain / (2 * math.pi)
        # Where both factors are equal the division gives infinities, which clamp to a step.
        kept = ((periods - low) / (high - low)).clamp(0, 1)
        return plain / self.factor * (1 - kept) + plain * kept

    def length_limit(self, positions: int) -> int:
        # Llama 3.1 has 8,192 * 8 and was trained to 131,072, as its config states.
        longer = positions > self.original_max_position_embeddings
        return positions if longer else super().length_limit(positions)


class LongRope(Method):
    """LongRoPE: `theta_j = b^(-2j/d) / f_j`, with searched divisors (Ding et al. 2024).

    arXiv 2402.13753. `f` is `short_factor` for sequences of up to `L` tokens and `long_factor`
    beyond; without a length the short list, as transformers does when it builds a model. The
    attention factor is `sqrt(1 + ln(s) / ln(L))` unless it is given.
    """

    name = "longrope"
    stock = True

    factor: Extension | None = Field(None, description="Context extension s. [from the config]")
    original_max_position_embeddings: OriginalLength
    attention_factor: Positive | None = Field(
        None, description="Scale of cos and sin. [sqrt(1 + ln(s)/ln(L))]"
    )
    short_factor: Divisors = Field(description="Divisor of each frequency up to L, one a feature.")
    long_factor: Divisors = Field(description="Divisor of each frequency beyond L.")

    @classmethod
    def example_settings(cls, dim: int) -> dict[str, Any]:
        ones = [1.0] * (dim // 2)
        return {**super().example_settings(dim), "short_factor": ones, "long_factor": ones}

    @classmethod
    def fill_from_config(cls, given: dict[str, Any], positions: int) -> None:
        original = given["original_max_position_embeddings"]
        if isinstance(original, int | float) and original > 0:
            given.setdefault("factor", max(positions / original, 1.0))

    @property
    def switch_length(self) -> int | None:
        same = self.short_factor == self.long_factor
        return None if same else self.original_max_position_embeddings

    def compute_inv_freq(self, dim: int, seq_len: int | None = None) -> Tensor:
        import torch

        divisors = self._divisors(seq_len or 0)
        if len(divisors) != dim // 2:
            raise RopeConfigError(
                f"short_factor, long_factor: {len(divisors)} numbers given; allowed: {dim // 2}"
            )
        plain = plain_frequencies(self.rope_theta, dim)
        return plain / torch.tensor(divisors, dtype=torch.float64, device="cpu")

    def at_length(self, length: int) -> "LongRope":
        """Return the method with the divisors of one length, in tokens, for all lengths."""
        divisors = self._divisors(length)
        return self.model_copy(update={"short_factor": divisors, "long_factor": divisors})

    def _divisors(self, length: int) -> tuple[float, ...]:
        beyond = length > self.original_max_position_embeddings
        return self.long_factor if beyond else self.short_factor

    def compute_attention_factor(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.factor is None:
            raise RopeConfigError("factor: missing; longrope needs it or attention_factor")
        return math.sqrt(
            1 + math.log(self.factor) / math.log(self.original_max_position_embeddings)
        )

    def to_vllm(self, parameters: dict[str, Any]) -> dict[str, Any]:
        # Without them vLLM derives both from the lengths in the config.
        return parameters | dict.fromkeys(
            ("short_mscale", "long_mscale"), self.compute_attention_factor()
        )


class Proportional(Method):
    """Proportional RoPE of Gemma 4: `dim` is the whole head, of which the fast features rotate.

    `theta_j = b^(-2j/d)` for `j < partial_rotary_factor * d/2`, and 0 for the rest. The exponents
    are those of the whole head, unlike those of a head of which a part is cut off.
    """

    name = "proportional"
    stock = True

    def compute_inv_freq(self, dim: int, seq_len: int | None = None) -> Tensor:
        result = plain_frequencies(self.rope_theta, dim)
        result[int(self.partial_rotary_factor * dim // 2) :] = 0
        return result
