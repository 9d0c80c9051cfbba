"""ReRoPE (Su 2023, github.com/bojone/rerope): one distance for all far keys."""

from typing import Self

from pydantic import Field, model_validator

from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.core.method import Tensor, Tokens
from resonance_vllm.core.methods.position_map import MappedMethod, Part


class Rerope(MappedMethod):
    """Keys nearer than a window stand at their positions, all others at its distance."""

    name = "rerope"
    formula = "`b^(-2j/d)`; keys from distance `W` on at `W`"

    window_size: Tokens | None = Field(
        default=None, description="Distance W from which keys stand elsewhere. [L/4]"
    )

    @property
    def window(self) -> int:
        """`W` in tokens."""
        return self.window_size or max(1, self.original_max_position_embeddings // 4)

    @model_validator(mode="after")
    def _trained(self) -> Self:
        if self.window >= self.reach:
            raise RopeConfigError(
                f"window_size: {self.window} is not allowed; allowed: below {self.reach}, the "
                "length that the frequencies are meant for"
            )
        return self

    def kept_at(self, positions: Tensor) -> Tensor:
        return positions * 0

    def parts(self) -> tuple[Part, ...]:
        window = self.window
        return (
            Part(first=lambda at: at - window + 1),
            Part(
                query=lambda at: at * 0 + window, key=self.kept_at, end=lambda at: at - window + 1
            ),
        )
