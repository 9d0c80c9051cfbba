"""Position remapping: methods that change the distance at which a query sees a key.

The keys up to a query are divided into parts, and each part has positions of its own, so that no
distance `query - key` is longer than those of training. Attention over all parts is one softmax.
Frequencies are those of plain RoPE.
"""

from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple, Self

from pydantic import Field, model_validator

from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.core.method import (
    OriginalLength,
    ScaledMethod,
    Tensor,
    Tokens,
    plain_frequencies,
)

Positions = Callable[[Tensor], Tensor]


class Part(NamedTuple):
    """The keys `first(i) <= j < end(i)`, which a query at position `i` sees at remapped distances.

    Attributes:
        query: remapped position of a query; the distance is `query(i) - key(j)`.
        key: remapped position of a key.
        first: first key of the part; does not decrease from one query to the next.
        end: end of the part, exclusive; does not decrease either.

    All are functions of integer tensors `[...]` of positions in tokens.
    """

    query: Positions = lambda at: at
    key: Positions = lambda at: at
    first: Positions = lambda at: at * 0
    end: Positions = lambda at: at + 1


class RemappedMethod(ScaledMethod):
    """A position remapping on top of plain RoPE, with original context length `L`.

    No distance between a query and a key is longer than `L`. `dual_chunk` changes nothing up to `L`
    tokens; `self_extend` changes distances beyond its window there, too.

    Keys are cached rotated to `cached_position`. For a part that needs them at other positions they
    are rotated further by the difference.
    """

    original_max_position_embeddings: OriginalLength

    def compute_inv_freq(self, dim: int, seq_len: int | None = None) -> Tensor:
        return plain_frequencies(self.rope_theta, dim)

    def unsupported_error(self, why: str) -> RopeConfigError:
        """Return the error for a place that cannot remap positions; `why` is a clause about it."""
        return RopeConfigError(
            f"rope_type: {self.name!r}: {why}; allowed: the backends hf and hf-long"
        )

    def to_vllm(self, parameters: dict[str, Any]) -> dict[str, Any]:
        raise self.unsupported_error("vLLM's attention sees every key at its own position")

    def cached_position(self, positions: Tensor) -> Tensor:
        """Return the positions to which cached keys are rotated, non-negative integers `[...]`."""
        raise NotImplementedError

    def parts(self) -> tuple[Part, ...]:
        """Return the parts; together they hold every key up to the query exactly once."""
        raise NotImplementedError


class SelfExtend(RemappedMethod):
    """SelfExtend: keys beyond a window share positions in groups (Jin et al. 2024).

    arXiv 2401.01325. A query at `i` sees the keys of the last `W` tokens at their distance `i - j`,
    and earlier ones at `i//G - j//G + W - W//G`, with groups of `G` tokens, which continues the
    distances of the window. `W` is `L/4` unless it is given, `G` the smallest group with which no
    distance reaches `L` within `L * s` tokens.
    """

    name = "self_extend"

    window_size: Tokens | None = Field(None, description="Distance W of the first far key. [L/4]")
    group_size: Tokens | None = Field(None, description="Tokens G of a group. [fewest for L*s]")

    @property
    def window(self) -> int:
        """Return `W` in tokens."""
        return self.window_size or max(1, self.original_max_position_embeddings // 4)

    @property
    def group(self) -> int:
        """Return `G` in tokens."""
        return self.group_size or self._smallest_group()

    def _longest_distance(self, group: int) -> int:
        """Return the longest remapped distance within `L * s` tokens, with groups of a size."""
        unmapped = self.length_limit(self.original_max_position_embeddings) - 1
        return unmapped // group + self.window - self.window // group

    def _smallest_group(self) -> int:
        """Return the fewest tokens per group with which every distance is below `L`."""
        original = self.original_max_position_embeddings
        return next(group for group in count(1) if self._longest_distance(group) < original)

    @model_validator(mode="after")
    def _check_distances(self) -> Self:
        """Refuse a window or a group size with which a distance within `L * s` tokens reaches `L`.

        The model was not trained on such distances.
        """
        original = self.original_max_position_embeddings
        if self.window >= original:
            raise RopeConfigError(f"window_size: {self.window} is not below {original}")
        longest = self._longest_distance(self.group)
        if longest >= original:
            raise RopeConfigError(
                f"group_size: {self.group} leaves distances of up to {longest} tokens at factor "
                f"{self.factor:g}; allowed: from {self._smallest_group()} on"
            )
        return self

    def cached_position(self, positions: Tensor) -> Tensor:
        return positions // self.group

    def parts(self) -> tuple[Part, ...]:
        window = self.window
        group = self.group
        return (
            Part(first=lambda at: at - window + 1),
            Part(
                query=lambda at: at // group + window - window // group,
                key=self.cached_position,
                end=lambda at: at - window + 1,
            ),
        )


class DualChunk(RemappedMethod):
    """Dual Chunk Attention: keys have positions within chunks of `C` tokens (An et al. 2024).

    arXiv 2402.17463. A query at `i` sees the keys of its own chunk at their distance `i - j`, those
    of the chunk before at `min(i mod C + C, L - 1) - j mod C`, and all earlier ones at
    `L - 1 - j mod C`. `C` is `3L/4` unless it is given.
    """

    name = "dual_chunk"

    chunk_size: Tokens | None = Field(None, description="Tokens C of a chunk. [3L/4]")

    @property
    def chunk(self) -> int:
        """Return `C` in tokens."""
        return self.chunk_size or max(1, self.original_max_position_embeddings * 3 // 4)

    @model_validator(mode="after")
    def _check_chunk_size(self) -> Self:
        """Refuse a chunk of `L` tokens or more, or of less than half of them."""
        original = self.original_max_position_embeddings
        if not original <= 2 * self.chunk < 2 * original:
            raise RopeConfigError(
                f"chunk_size: {self.chunk} is not below {original} and at least half of it"
            )
        return self

    def cached_position(self, positions: Tensor) -> Tensor:
        return positions % self.chunk

    def parts(self) -> tuple[Part, ...]:
        chunk = self.chunk
        last = self.original_max_position_embeddings - 1
        return (
            Part(self.cached_position, self.cached_position, first=lambda at: at - at % chunk),
            Part(
                query=lambda at: (at % chunk + chunk).clamp(max=last),
                key=self.cached_position,
                first=lambda at: at - at % chunk - chunk,
                end=lambda at: at - at % chunk,
            ),
            Part(
                query=lambda at: at * 0 + last,
                key=self.cached_position,
                end=lambda at: at - at % chunk - chunk,
            ),
        )
