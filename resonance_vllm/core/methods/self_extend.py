"""SelfExtend (Jin et al. 2024, arXiv 2401.01325): far keys stand at the positions of groups."""

from itertools import count
from typing import Self

from pydantic import Field, model_validator

from resonance_vllm.core.method import Tensor, Tokens
from resonance_vllm.core.methods.position_map import Part, WindowedMethod
from resonance_vllm.errors import RopeConfigError


class SelfExtend(WindowedMethod):
    """Keys nearer than a window stand at their positions, farther ones at those of groups.

    The distance to a far key is `i//G - j//G + W - W//G`, which continues that of the near ones.
    """

    name = "self_extend"
    formula = "`b^(-2j/d)`; keys from distance `W` on at `i//G - j//G + W - W//G`"

    group_size: Tokens | None = Field(
        default=None, description="Tokens G of a group. [the fewest that cover L*s]"
    )

    @property
    def group(self) -> int:
        """`G` in tokens."""
        return self.group_size or self._smallest_group()

    @property
    def _longest(self) -> int:
        return self.length_limit(self.original_max_position_embeddings)

    def _distance(self, group: int) -> int:
        """The longest distance with groups of a size."""
        return (self._longest - 1) // group + self.window - self.window // group

    def _smallest_group(self) -> int:
        # With fewer tokens the distance is too long; one group of all tokens leaves W.
        fewest = max(1, (self._longest - 1 - self.window) // (self.reach - self.window))
        return next(group for group in count(fewest) if self._distance(group) < self.reach)

    @model_validator(mode="after")
    def _covers(self) -> Self:
        longest = self._distance(self.group)
        if longest >= self.reach:
            raise RopeConfigError(
                f"group_size: {self.group} leaves distances of up to {longest} tokens at factor "
                f"{self.factor:g}; allowed: {self._smallest_group()}, which keeps them below "
                f"{self.reach}, and larger ones"
            )
        return self

    def kept_at(self, positions: Tensor) -> Tensor:
        return positions // self.group

    def parts(self) -> tuple[Part, ...]:
        window, group = self.window, self.group
        return (
            Part(first=lambda at: at - window + 1),
            Part(
                query=lambda at: at // group + window - window // group,
                key=self.kept_at,
                end=lambda at: at - window + 1,
            ),
        )
