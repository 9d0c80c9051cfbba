"""Methods that change the position at which a query meets a key, not only the frequencies.

A position remapping divides the keys before a query into parts and gives each part positions of its own,
so that no distance is longer than those of training. Attention over all parts is one softmax.
"""

from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple, Self

from pydantic import Field, model_validator

from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.core.method import (
    NativeLength,
    ScaledMethod,
    Tensor,
    Tokens,
    plain_frequencies,
)

Positions = Callable[[Tensor], Tensor]


class Part(NamedTuple):
    """The keys at positions `first(i) <= j < end(i)`, which a query at `i` meets in one way.

    The distance is `query(i) - key(j)`. Functions are of integers `[...]`; `first` and `end` do not
    decrease from one query to the next.
    """

    query: Positions = lambda at: at
    key: Positions = lambda at: at
    first: Positions = lambda at: at * 0
    end: Positions = lambda at: at + 1


class RemappedMethod(ScaledMethod):
    """A position remapping on top of plain RoPE. Up to `L` tokens it changes nothing.

    Keys are cached rotated to `kept_at`; a part whose keys stand elsewhere turns them on.
    """

    original_max_position_embeddings: NativeLength

    def compute_inv_freq(self, dim: int, seq_len: int | None = None) -> Tensor:
        return plain_frequencies(self.rope_theta, dim)

    def unsupported_error(self, why: str) -> RopeConfigError:
        """The error of a place where positions cannot be moved, with a sentence about it."""
        return RopeConfigError(
            f"rope_type: {self.name!r}: {why}; allowed: the backends hf and hf-long"
        )

    def to_vllm(self, parameters: dict[str, Any]) -> dict[str, Any]:
        raise self.unsupported_error("vLLM's attention meets every key at its own position")

    def cached_position(self, positions: Tensor) -> Tensor:
        """Where cached keys stand, of their positions; non-negative integers `[...]`."""
        raise NotImplementedError

    def parts(self) -> tuple[Part, ...]:
        """The parts, which hold every key up to the query exactly once."""
        raise NotImplementedError


class SelfExtend(RemappedMethod):
    """SelfExtend (Jin et al. 2024, arXiv 2401.01325): far keys stand at the positions of groups.

    The distance to a key beyond a window `W` is `i//G - j//G + W - W//G`, which continues `i - j`.
    """

    name = "self_extend"

    window_size: Tokens | None = Field(None, description="Distance W of the first far key. [L/4]")
    group_size: Tokens | None = Field(None, description="Tokens G of a group. [fewest for L*s]")

    @property
    def window(self) -> int:
        """`W` in tokens."""
        return self.window_size or max(1, self.original_max_position_embeddings // 4)

    @property
    def group(self) -> int:
        """`G` in tokens."""
        return self.group_size or self._smallest_group()

    def _distance(self, group: int) -> int:
        """The longest distance with groups of a size."""
        longest = self.length_limit(self.original_max_position_embeddings) - 1
        return longest // group + self.window - self.window // group

    def _smallest_group(self) -> int:
        original = self.original_max_position_embeddings
        return next(group for group in count(1) if self._distance(group) < original)

    @model_validator(mode="after")
    def _covers(self) -> Self:
        original = self.original_max_position_embeddings
        if self.window >= original:
            raise RopeConfigError(f"window_size: {self.window} is not below {original}")
        longest = self._distance(self.group)
        if longest >= original:
            raise RopeConfigError(
                f"group_size: {self.group} leaves distances of up to {longest} tokens at factor "
                f"{self.factor:g}; allowed: from {self._smallest_group()} on"
            )
        return self

    def cached_position(self, positions: Tensor) -> Tensor:
        return positions // self.group

    def parts(self) -> tuple[Part, ...]:
        window, group = self.window, self.group
        return (
            Part(first=lambda at: at - window + 1),
            Part(
                query=lambda at: at // group + window - window // group,
                key=self.cached_position,
                end=lambda at: at - window + 1,
            ),
        )


class DualChunk(RemappedMethod):
    """Dual Chunk Attention (An et al. 2024, arXiv 2402.17463): keys stand within chunks of `C`.

    A query is at its own distance from the keys of its chunk, at `min(i mod C + C, L-1) - j mod C`
    from those of the chunk before, and at `L - 1 - j mod C` from all earlier ones.
    """

    name = "dual_chunk"

    chunk_size: Tokens | None = Field(None, description="Tokens C of a chunk. [3L/4]")

    @property
    def chunk(self) -> int:
        """`C` in tokens."""
        return self.chunk_size or max(1, self.original_max_position_embeddings * 3 // 4)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        original = self.original_max_position_embeddings
        if not original <= 2 * self.chunk < 2 * original:
            raise RopeConfigError(
                f"chunk_size: {self.chunk} is not below {original} and at least half of it"
            )
        return self

    def cached_position(self, positions: Tensor) -> Tensor:
        return positions % self.chunk

    def parts(self) -> tuple[Part, ...]:
        chunk, place = self.chunk, self.original_max_position_embeddings - 1
        return (
            Part(self.cached_position, self.cached_position, first=lambda at: at - at % chunk),
            Part(
                query=lambda at: (at % chunk + chunk).clamp(max=place),
                key=self.cached_position,
                first=lambda at: at - at % chunk - chunk,
                end=lambda at: at - at % chunk,
            ),
            Part(
                query=lambda at: at * 0 + place,
                key=self.cached_position,
                end=lambda at: at - at % chunk - chunk,
            ),
        )
