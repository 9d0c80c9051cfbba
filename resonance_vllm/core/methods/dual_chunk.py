"""Dual Chunk Attention (An et al. 2024, arXiv 2402.17463): positions within chunks."""

from typing import Self

from pydantic import Field, model_validator

from resonance_vllm.core.method import Tensor, Tokens
from resonance_vllm.core.methods.position_map import MappedMethod, Part
from resonance_vllm.errors import RopeConfigError


class DualChunk(MappedMethod):
    """Keys stand at their places within chunks of `C` tokens.

    A query is at its own distance from the keys of its chunk, at `min(i mod C + C, D) - j mod C`
    from those of the chunk before, and at `D - j mod C` from all earlier ones. The paper has
    `D = L - 1`; its authors' code `C = 5L/8` and `D = 3L/4`.
    """

    name = "dual_chunk"
    formula = "`b^(-2j/d)`; keys at `j mod C`, queries at most at `D` beyond their chunk"

    chunk_size: Tokens | None = Field(default=None, description="Tokens C of a chunk. [3L/4]")
    farthest: Tokens | None = Field(
        default=None, description="Place D of a query among the keys of earlier chunks. [L-1]"
    )

    @property
    def chunk(self) -> int:
        """`C` in tokens."""
        return self.chunk_size or max(1, self.reach * 3 // 4)

    @property
    def place(self) -> int:
        """`D` in tokens."""
        return self.farthest or self.reach - 1

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.place >= self.reach:
            raise RopeConfigError(
                f"farthest: {self.place} is not allowed; allowed: below {self.reach}, the length "
                "that the frequencies are meant for"
            )
        if not self.chunk <= self.place < 2 * self.chunk:
            raise RopeConfigError(
                f"chunk_size: {self.chunk} is not allowed; allowed: at most farthest={self.place} "
                "and more than half of it"
            )
        return self

    def kept_at(self, positions: Tensor) -> Tensor:
        return positions % self.chunk

    def parts(self) -> tuple[Part, ...]:
        chunk, place = self.chunk, self.place
        return (
            Part(self.kept_at, self.kept_at, first=lambda at: at - at % chunk),
            Part(
                query=lambda at: (at % chunk + chunk).clamp(max=place),
                key=self.kept_at,
                first=lambda at: at - at % chunk - chunk,
                end=lambda at: at - at % chunk,
            ),
            Part(
                query=lambda at: at * 0 + place,
                key=self.kept_at,
                end=lambda at: at - at % chunk - chunk,
            ),
        )
