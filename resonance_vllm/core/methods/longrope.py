"""LongRoPE (Ding et al. 2024)."""

import math
from typing import Any

from pydantic import Field

from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.core.method import (
    Divisors,
    Method,
    Positive,
    Tensor,
    Tokens,
    missing,
    plain_frequencies,
)


class LongRope(Method):
    """One divisor a feature, another set beyond `L` tokens.

    Without a length the short factors are used, as transformers does when it builds a model.
    """

    name = "longrope"
    stock = True
    formula = "divided by `short_factor[j]`, beyond `L` tokens by `long_factor[j]`"
    vllm_multiplies = False

    factor: float | None = Field(
        default=None, ge=1, description="Context extension s. [that of the model's config]"
    )
    original_max_position_embeddings: Tokens = Field(
        examples=[4096], description="Trained length L in tokens."
    )
    attention_factor: Positive | None = Field(
        default=None, description="What cos and sin are multiplied by. [sqrt(1 + ln(s)/ln(L))]"
    )
    short_factor: Divisors = Field(description="Divisor of each frequency up to L, one a feature.")
    long_factor: Divisors = Field(description="Divisor of each frequency beyond L.")
    short_mscale: Positive | None = Field(
        default=None, description="vLLM's name of the attention factor up to L."
    )
    long_mscale: Positive | None = Field(
        default=None, description="vLLM's name of the attention factor beyond L."
    )

    @classmethod
    def example(cls, dim: int) -> dict[str, Any]:
        """Lists of ones."""
        ones = [1.0] * (dim // 2)
        return {**super().example(dim), "short_factor": ones, "long_factor": ones}

    @classmethod
    def fill(cls, given: dict[str, Any], original: int, positions: int) -> None:
        """A model's config tells the extension by its two lengths."""
        super().fill(given, original, positions)
        ratio = positions / given["original_max_position_embeddings"]
        given.setdefault("factor", max(ratio, 1.0))

    @property
    def extension(self) -> float | None:
        """`s`, None if not given."""
        return self.factor

    @property
    def trained_length(self) -> int | None:
        """`L` in tokens."""
        return self.original_max_position_embeddings

    @property
    def switch_length(self) -> int | None:
        """`L`, unless both sets are the same."""
        same = self.short_factor == self.long_factor
        return None if same else self.original_max_position_embeddings

    def frequencies(self, dim: int, seq_len: int | None = None) -> Tensor:
        """Plain frequencies over the divisors for the current length."""
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

    def scale(self) -> float:
        """`attention_factor`, else `long_mscale`, else `sqrt(1 + ln(s)/ln(L))`.

        Raises:
            RopeConfigError: neither a factor nor an explicit attention factor is given.
        """
        explicit = self.attention_factor or self.long_mscale
        if explicit is not None:
            return explicit
        if self.factor is None:
            raise missing(
                "factor",
                "longrope needs factor, attention_factor or long_mscale to know what cos and sin "
                "are multiplied by",
            )
        if self.factor <= 1:
            return 1.0
        return math.sqrt(
            1 + math.log(self.factor) / math.log(self.original_max_position_embeddings)
        )

    def length_limit(self, positions: int) -> int:
        """`L * s`, without a factor what the config says."""
        if self.factor is None:
            return positions
        return int(self.original_max_position_embeddings * self.factor)

    def for_transformers(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """`attention_factor` instead of vLLM's names of it."""
        for key in ("short_mscale", "long_mscale"):
            parameters.pop(key, None)
        if self.long_mscale is not None:
            parameters.setdefault("attention_factor", self.long_mscale)
        return parameters

    def for_vllm(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """`short_mscale` and `long_mscale`, which vLLM would derive otherwise."""
        scale = self.scale()
        mscale = {"short_mscale": self.short_mscale or scale}
        return {**parameters, **mscale, "long_mscale": self.long_mscale or scale}
