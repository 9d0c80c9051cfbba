"""LongRoPE (Ding et al. 2024)."""

import math
from typing import Any

from pydantic import Field

from resonance_vllm.core.method import (
    Divisors,
    Extension,
    Method,
    Positive,
    Tensor,
    TrainedLength,
    plain_frequencies,
)
from resonance_vllm.errors import RopeConfigError


class LongRope(Method):
    """One divisor a feature, another set beyond `L` tokens.

    Without a length the short factors are used, as transformers does when it builds a model.
    """

    name = "longrope"
    stock = True
    formula = "divided by `short_factor[j]`, beyond `L` tokens by `long_factor[j]`"
    vllm_multiplies = False
    derived = dict.fromkeys(
        ("attention_factor", "short_mscale", "long_mscale"),
        ("factor", "original_max_position_embeddings"),
    )

    factor: Extension | None = Field(
        default=None, description="Context extension s. [that of the model's config]"
    )
    original_max_position_embeddings: TrainedLength
    attention_factor: Positive | None = Field(
        default=None, description="What cos and sin are multiplied by. [sqrt(1 + ln(s)/ln(L))]"
    )
    short_factor: Divisors = Field(description="Divisor of each frequency up to L, one a feature.")
    long_factor: Divisors = Field(description="Divisor of each frequency beyond L.")
    short_mscale: Positive | None = Field(None, description="The attention factor in vLLM up to L.")
    long_mscale: Positive | None = Field(None, description="The attention factor in vLLM beyond L.")

    @classmethod
    def example(cls, dim: int) -> dict[str, Any]:
        ones = [1.0] * (dim // 2)
        return {**super().example(dim), "short_factor": ones, "long_factor": ones}

    @classmethod
    def fill(cls, given: dict[str, Any], positions: int) -> None:
        original = given["original_max_position_embeddings"]
        if isinstance(original, int | float) and original > 0:
            given.setdefault("factor", max(positions / original, 1.0))

    @property
    def switch_length(self) -> int | None:
        same = self.short_factor == self.long_factor
        return None if same else self.original_max_position_embeddings

    def frequencies(self, dim: int, seq_len: int | None = None) -> Tensor:
        import torch

        beyond = seq_len is not None and seq_len > self.original_max_position_embeddings
        name = "long_factor" if beyond else "short_factor"
        divisors = self.long_factor if beyond else self.short_factor
        if len(divisors) != dim // 2:
            raise RopeConfigError(
                f"{name}: {len(divisors)} numbers given; allowed: {dim // 2}, one for each feature "
                f"of {dim} rotated dimensions"
            )
        plain = plain_frequencies(self.rope_theta, dim)
        return plain / torch.tensor(divisors, dtype=torch.float64, device="cpu")

    def at_length(self, length: int) -> "LongRope":
        """The divisors of one length, for all lengths."""
        beyond = length > self.original_max_position_embeddings
        divisors = self.long_factor if beyond else self.short_factor
        same: dict[str, Any] = {"short_factor": divisors, "long_factor": divisors}
        if not beyond and self.short_mscale is not None:
            same |= {"attention_factor": self.short_mscale, "long_mscale": self.short_mscale}
        return self.model_copy(update=same)

    def scale(self) -> float:
        explicit = self.attention_factor or self.long_mscale
        if explicit is not None:
            return explicit
        if self.factor is None:
            raise RopeConfigError(
                "factor: missing; longrope needs factor, attention_factor or long_mscale to know "
                "what cos and sin are multiplied by"
            )
        if self.factor <= 1:
            return 1.0
        return math.sqrt(
            1 + math.log(self.factor) / math.log(self.original_max_position_embeddings)
        )

    def for_transformers(self, parameters: dict[str, Any]) -> dict[str, Any]:
        parameters.pop("short_mscale", None)
        mscale = parameters.pop("long_mscale", None)
        if mscale is not None:
            parameters.setdefault("attention_factor", mscale)
        return parameters

    def for_vllm(self, parameters: dict[str, Any]) -> dict[str, Any]:
        scale = self.scale()  # vLLM would derive both otherwise
        parameters["short_mscale"] = self.short_mscale or scale
        parameters["long_mscale"] = self.long_mscale or scale
        return parameters
