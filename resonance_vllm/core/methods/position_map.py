"""Methods that change the position at which a query meets a key, not only the frequencies.

With plain RoPE a query at position `i` meets a key at `j` at the distance `i - j`. A position map
divides the keys before a query into parts and gives each part positions of its own, so that no
distance is longer than those of training. Attention over all parts is one softmax.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

from pydantic import Field, model_validator

from resonance_vllm.core.method import (
    Extension,
    Method,
    ScaledMethod,
    Tensor,
    Tokens,
    TrainedLength,
)
from resonance_vllm.core.methods.yarn import Yarn
from resonance_vllm.errors import RopeConfigError

Positions = Callable[[Tensor], Tensor]


class Part(NamedTuple):
    """The keys at positions `first(i) <= j < end(i)`, which a query at `i` meets in one way.

    Every function takes and returns integers `[...]`; all but `first` and `end` non-negative ones.
    None stands for the position itself as `query` and `key`, for 0 as `first`, for `i + 1` as
    `end`.

    Attributes:
        query: Where the query stands, of its position.
        key: Where a key stands, of its position. The distance is `query(i) - key(j)`.
        first: First key of the part. It does not decrease from one query to the next.
        end: The key after its last one. It does not decrease either.
    """

    query: Positions | None = None
    key: Positions | None = None
    first: Positions | None = None
    end: Positions | None = None


class MappedMethod(ScaledMethod):
    """A position map, on top of plain RoPE or of YaRN. Up to `L` tokens it changes nothing.

    Keys are rotated to `kept_at` before they are cached; a part whose keys stand elsewhere rotates
    them from there.
    """

    formula: ClassVar[str]
    original_max_position_embeddings: TrainedLength
    yarn_factor: Extension = Field(
        default=1.0, description="Factor of the YaRN below the map; 1 is plain RoPE."
    )

    log_n: bool = Field(
        default=False,
        description="Multiply scores of a query at i by max(1, ln(i+1)/ln(L)).",
    )

    @property
    def yarn(self) -> Yarn:
        """The method below the map."""
        common = {key: getattr(self, key) for key in Method.model_fields}
        length = self.original_max_position_embeddings
        return Yarn(factor=self.yarn_factor, original_max_position_embeddings=length, **common)

    @property
    def reach(self) -> int:
        """Tokens that the method below the map is meant for: every distance is to be shorter."""
        return int(self.original_max_position_embeddings * self.yarn_factor)

    def frequencies(self, dim: int, seq_len: int | None = None) -> Tensor:
        return self.yarn.frequencies(dim, seq_len)

    def scale(self) -> float:
        return self.yarn.scale()

    def refusal(self, why: str) -> RopeConfigError:
        """The error of a place where positions cannot be moved, with a sentence about it."""
        return RopeConfigError(
            f"rope_type: {self.name!r} moves the positions of keys: {why}; allowed: the backends "
            "hf and hf-long, or a method that changes frequencies alone"
        )

    def for_vllm(self, parameters: dict[str, Any]) -> dict[str, Any]:
        raise self.refusal("vLLM's attention meets every key at its own position")

    def temperature(self, positions: Tensor) -> Tensor | None:
        """What the scores of queries are multiplied by, float64 `[...]`; None is 1."""
        if not self.log_n:
            return None
        logarithms = (positions.clamp(min=0) + 1).double().log()
        return (logarithms / math.log(max(self.original_max_position_embeddings, 2))).clamp(min=1)

    def kept_at(self, positions: Tensor) -> Tensor:
        """Where cached keys stand, of their positions; non-negative integers `[...]`."""
        raise NotImplementedError

    def parts(self) -> tuple[Part, ...]:
        """The parts, which hold every key up to the query exactly once."""
        raise NotImplementedError


class WindowedMethod(MappedMethod):
    """A position map that leaves the keys within a window where they are."""

    formula: ClassVar[str]
    window_size: Tokens | None = Field(
        default=None, description="Distance W from which keys stand elsewhere. [L/4]"
    )

    @property
    def window(self) -> int:
        """`W` in tokens."""
        return self.window_size or max(1, self.original_max_position_embeddings // 4)

    @model_validator(mode="after")
    def _within_reach(self) -> Self:
        if self.window >= self.reach:
            raise RopeConfigError(
                f"window_size: {self.window} is not allowed; allowed: below {self.reach}, the "
                "length that the frequencies are meant for"
            )
        return self
