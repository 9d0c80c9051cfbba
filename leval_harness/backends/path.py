"""The text that was read last, in a cache that goes back to where texts part.

`SharedPath` holds it once, for all rows that continue it. `CopiedPath` holds it in the model's own
cache, whatever its layers are, and each row continues a fork.
"""

import copy
from typing import Any

from transformers import DynamicCache
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer

from leval_harness.backends.attention import SharedLayer
from leval_harness.backends.documents import common_prefix


class SharedPath:
    """A text in one buffer a layer, which is cut back at any token.

    Args:
        config: of a model whose layers all attend to everything.

    Raises:
        ValueError: a layer's cache is of another kind.
    """

    def __init__(self, config: Any) -> None:
        layers = DynamicCache(config=config).layers
        others = {type(each).__name__ for each in layers if type(each) is not DynamicLayer}
        if others or not layers:
            raise ValueError(f"cache of {', '.join(sorted(others)) or 'no layers'}")
        self.cache: Any = Cache(layers=[SharedLayer() for _ in layers])
        self.tokens: list[int] = []

    def back_to(self, text: list[int], most: int) -> None:
        """Keep what begins `text`, which will be read next, but at most `most` tokens."""
        del self.tokens[min(common_prefix(self.tokens, text), most) :]
        for layer in self.cache.layers:
            layer.length, layer.expected = len(self.tokens), len(text)

    def keep(self) -> None:
        """Nothing to do: every token can be gone back to."""

    def rows(self, extra: int) -> Any:
        """A cache for rows after the text, with room for `extra` tokens of each."""
        return Cache(
            layers=[
                SharedLayer(layer.first(layer.length) if self.tokens else (), extra)
                for layer in self.cache.layers
            ]
        )


class CopiedPath:
    """A text in the model's own cache, which goes back to the places that were kept.

    Args:
        config: the model's.
    """

    def __init__(self, config: Any) -> None:
        self._kept: list[tuple[list[int], Any]] = [([], DynamicCache(config=config))]
        self._go_to_last()

    def _go_to_last(self) -> None:
        known, cache = self._kept[-1]
        self.tokens, self.cache = list(known), fork(cache)

    def back_to(self, text: list[int], most: int) -> None:
        """Keep what begins `text`, which will be read next, but at most `most` tokens."""
        while self._kept[-1][0] != text[:most][: len(self._kept[-1][0])]:
            self._kept.pop()
        if self.tokens != text[:most][: len(self.tokens)]:
            self._go_to_last()

    def keep(self) -> None:
        """Keep this place: several texts go on from it."""
        if len(self.tokens) > len(self._kept[-1][0]):
            self._kept.append((list(self.tokens), fork(self.cache)))

    def rows(self, extra: int) -> Any:
        """A cache for one row after the text."""
        return fork(self.cache)


def fork(cache: Any) -> Any:
    """A cache that grows without changing the first.

    Layers of plain keys and values make new tensors when they grow, so both can refer to the same
    ones until then. What other layers do with their tensors is not known: they are copied.
    """
    made = copy.copy(cache)
    made.layers = [
        copy.copy(layer)
        if type(layer) in (DynamicLayer, DynamicSlidingWindowLayer)
        else copy.deepcopy(layer)
        for layer in cache.layers
    ]
    return made


Path = SharedPath | CopiedPath
