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
    NativeLength,
    Positive,
    ScaledMethod,
    Tensor,
    plain_frequencies,
)


class Default(Method):
    """Plain RoPE (Su et al. 2021)."""

    name = "default"
    stock = True

    def compute_inv_freq(self, dim: int, seq_len: int | None = None) -> Tensor:
        return plain_frequencies(self.rope_theta, dim)


class Linear(ScaledMethod):
    """Position interpolation (Chen et al. 2023): every frequency divided by the factor."""

    name = "linear"
    stock = True
    config_length_is_scaled = True

    def compute_inv_freq(self, dim: int, seq_len: int | None = None) -> Tensor:
        return plain_frequencies(self.rope_theta, dim) / self.factor


class NtkAware(ScaledMethod):
    """NTK-aware scaling (bloc97): a larger base. New in both libraries.

    The slowest feature is interpolated by exactly the factor, the fastest is left alone.
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
    """bloc97's base `b*s^(d/(d-2))`."""
    if dim < 4:
        raise RopeConfigError(f"dim: {dim} is not allowed with NTK scaling; allowed: at least 4")
    return float(base * factor ** (dim / (dim - 2)))


class Dynamic(ScaledMethod):
    """Dynamic NTK as in transformers: NTK-aware scaling by `s*length/L - (s-1)` beyond `L` tokens.

    The paper's dynamic NTK is `factor: 1.0`.
    """

    name = "dynamic"
    stock = True
    depends_on_length = True

    def compute_inv_freq(self, dim: int, seq_len: int | None = None) -> Tensor:
        factor = self._factor_at(seq_len)
        return plain_frequencies(ntk_base(self.rope_theta, factor, dim), dim)

    def _factor_at(self, length: int | None) -> float:
        """`s*length/L - (s-1)`, 1 up to `L` tokens."""
        original = self.original_max_position_embeddings
        if original is None:
            raise RopeConfigError("original_max_position_embeddings: missing")
        longest = max(original if length is None else length, original)
        return self.factor * longest / original - (self.factor - 1)

    def at_length(self, length: int) -> NtkAware:
        """`ntk_aware` with the very base that `dynamic` has at this length."""
        return NtkAware(**{**dict(self), "factor": self._factor_at(length)})


class Yarn(ScaledMethod):
    """YaRN (Peng et al. 2023): fast features kept, slow ones divided by the factor, a ramp between.

    `ramp: dimension` mixes frequencies, linearly in `j` between two dimensions, as code does.
    `ramp: wavelength` mixes wavelengths by the paper's gamma; libraries run Resonance on it alone.
    """

    name = "yarn"
    stock = True

    original_max_position_embeddings: NativeLength
    ramp: Literal["dimension", "wavelength"] = Field(
        "dimension", description="By dimension index, as in code, or the paper's gamma."
    )
    beta_slow: Positive = Field(1.0, description="Turns within L below which s applies in full.")
    beta_fast: Positive = Field(32.0, description="Turns within L above which s does not apply.")
    truncate: bool = Field(True, description="Round the ramp's two dimensions outward.")
    attention_factor: Positive | None = Field(None, description="Scale of cos, sin. [0.1*ln(s)+1]")
    mscale: Positive | None = Field(None, description="Numerator of the attention factor.")
    mscale_all_dim: Positive | None = Field(None, description="Its denominator.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        slow, fast = self.beta_slow, self.beta_fast
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
        original, base = self.original_max_position_embeddings, self.rope_theta
        low, high = (
            dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))
            for turns in (self.beta_fast, self.beta_slow)
        )
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        return max(low, 0), min(high, dim - 1)

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
            raise RopeConfigError("ramp: vLLM's yarn has none; allowed: resonance_yarn")
        # gpt-oss's code reads them unasked
        own = {key: getattr(self, key) for key in ("beta_fast", "beta_slow", "truncate")}
        return {**own, **parameters}


class Llama3(ScaledMethod):
    """The scaling of Llama 3.1.

    Wavelengths above `L/low_freq_factor` are multiplied by `s`, those below `L/high_freq_factor`
    kept. Between the two the frequencies are mixed, linearly in the turns within `L`.
    """

    name = "llama3"
    stock = True

    original_max_position_embeddings: NativeLength
    low_freq_factor: Positive = Field(examples=[1.0], description="L over it: factor s in full.")
    high_freq_factor: Positive = Field(
        examples=[4.0], description="L over it: no interpolation; at least the low one."
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        low, high = self.low_freq_factor, self.high_freq_factor
        if high < low:
            raise RopeConfigError(f"high_freq_factor: {high} is below low_freq_factor={low}")
        return self

    def compute_inv_freq(self, dim: int, seq_len: int | None = None) -> Tensor:
        low, high = self.low_freq_factor, self.high_freq_factor
        plain = plain_frequencies(self.rope_theta, dim)
        turns = self.original_max_position_embeddings * plain / (2 * math.pi)
        kept = ((turns - low) / (high - low)).clamp(0, 1)  # a step where the two are one
        return plain / self.factor * (1 - kept) + plain * kept

    def length_limit(self, positions: int) -> int:
        # Llama 3.1 has 8,192 * 8 and was trained to 131,072, as its config states.
        longer = positions > self.original_max_position_embeddings
        return positions if longer else super().length_limit(positions)


class LongRope(Method):
    """LongRoPE (Ding et al. 2024): one divisor a feature, another set beyond `L` tokens.

    Without a length the short factors are used, as transformers does when it builds a model.
    """

    name = "longrope"
    stock = True

    factor: Extension | None = Field(None, description="Context extension s. [from the config]")
    original_max_position_embeddings: NativeLength
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
        """The divisors of one length, for all lengths."""
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
        # vLLM would derive both otherwise
        return parameters | dict.fromkeys(
            ("short_mscale", "long_mscale"), self.compute_attention_factor()
        )


class Proportional(Method):
    """Proportional RoPE (Gemma 4): of the whole head, here `dim`, only the fast features turn."""

    name = "proportional"
    stock = True

    def compute_inv_freq(self, dim: int, seq_len: int | None = None) -> Tensor:
        result = plain_frequencies(self.rope_theta, dim)
        result[int(self.partial_rotary_factor * dim // 2) :] = 0
        return result
