"""Documents read into a cache, and rows that continue them.

What a document has in common with the one before it is not read again. How that is possible depends
on the layers of a model's cache, and on whether its code keeps all of its state there; which `mode`
suits a loaded model is found out in `reuse`.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer

from leval_harness.backends.attention import SharedLayer, shared_attention
from leval_harness.backends.documents import batches, common_prefix
from leval_harness.backends.forward import ForwardPass, Head, cache_argument, input_device
from leval_harness.backends.scoring import Passage

SHARED = "shared"
"""A document is in one buffer per layer, which is cut back at any token. All rows continue it."""

WINDOWED = "windowed"
"""As `copied`, but layers of full attention keep their keys in a buffer, and layers with a sliding
window attend in blocks: for models that have both, and nothing else."""

COPIED = "copied"
"""A document is in the model's own cache, whatever its layers are. It returns to places that were
kept, and each row continues a fork of it, alone."""

UseOfStates = Callable[[int, Tensor], None]
"""Takes the position of the first state, and the states `[positions, ...]`."""


class Reader:
    """Reads documents one after the other; what begins like the last one is not read again.

    Args:
        head: of the model.
        mode: `shared`, `windowed` or `copied`.
        chunk: most tokens of a forward pass.

    Attributes:
        tokens: the document that was read last, which is in `cache`.
        least: tokens by which a prefix is longer than the one that it continues. A pass of a single
            token is decoding, which some recurrent models compute otherwise.

    Raises:
        ValueError: the mode does not suit the layers of the model's cache.
    """

    def __init__(self, head: Head, mode: str, chunk: int) -> None:
        self.head = head
        self.mode = mode
        self.chunk = chunk
        self.can_be_cut = mode == SHARED
        self.has_own_attention = mode != COPIED
        self.least = 2
        if self.can_be_cut:
            self.least = 1
        self.tokens: list[int] = []
        self.cache = empty_cache(head.model, mode)
        self._kept = [(self.tokens, self.cache)]
        if not self.can_be_cut:
            self.cache = fork(self.cache)

    def back_to(self, document: list[int], most: int) -> None:
        """Keep what begins a document, which will be read next, but at most `most` tokens."""
        if self.can_be_cut:
            kept = min(common_prefix(self.tokens, document), most)
            self.tokens = self.tokens[:kept]
            for layer in self.cache.layers:
                layer.length = kept
        else:
            self._back_to_kept(document[:most])
        for layer in self.cache.layers:
            if isinstance(layer, SharedLayer):
                layer.expected = len(document)

    def _back_to_kept(self, wanted: list[int]) -> None:
        """Return to the longest state that begins `wanted`: the present one, or one that was kept."""
        while self._kept[-1][0] != wanted[: len(self._kept[-1][0])]:
            self._kept.pop()
        if self.tokens != wanted[: len(self.tokens)]:
            tokens, cache = self._kept[-1]
            self.tokens = tokens
            self.cache = fork(cache)

    def keep(self) -> None:
        """Keep the present state: several documents will continue from here."""
        if not self.can_be_cut and len(self.tokens) > len(self._kept[-1][0]):
            self._kept.append((self.tokens, fork(self.cache)))

    def cache_for_rows(self, extra: int) -> Any:
        """Return a cache for rows after the document, with room for `extra` tokens of each."""
        rows = fork(self.cache)
        for index, layer in enumerate(self.cache.layers):
            if isinstance(layer, SharedLayer):
                document: Any = ()
                if self.tokens:
                    document = layer.first(layer.length)
                rows.layers[index] = SharedLayer(document, extra)
        return rows

    def read(
        self, document: list[int], first: int | None = None, use: UseOfStates | None = None
    ) -> None:
        """Bring the cache to a document, chunk by chunk.

        Args:
            document: token ids.
            first: position from which on states are wanted; none are by default.
            use: gets the wanted states of each chunk.
        """
        if first is None:
            first = len(document)
        self.back_to(document, first)
        while len(self.tokens) < len(document):
            start = len(self.tokens)
            end = start + self.chunk
            if len(document) == end + 1 and self.chunk > 2:
                end -= 1  # else a pass of a single token would be left, see `least`
            chunk = document[start:end]
            unused = min(max(first - start, 0), len(chunk))
            with shared_attention(self.head.model, active=self.has_own_attention):
                states = self.head.states(chunk, unused, self.cache)
            self.tokens = self.tokens + chunk
            if use is not None and unused < len(chunk):
                use(start + unused, states)

    def generate(self, rows: Sequence[list[int]], pad: int, new: int, **options: Any) -> Any:
        """Generate for rows that begin with the document.

        Padding is between the document and a row's own tokens: `generate` finds the positions from
        the mask, which leaves the padding out.

        Args:
            rows: token ids of each prompt.
            pad: id of the padding token.
            new: most tokens to generate per row.
            options: of `generate`.

        Returns:
            What the model's `generate` returns.
        """
        model = self.head.model
        shared = len(self.tokens)
        width = max(map(len, rows))
        ids = []
        mask = []
        for row in rows:
            padding = width - len(row)
            ids.append(row[:shared] + [pad] * padding + row[shared:])
            mask.append([1] * shared + [0] * padding + [1] * (len(row) - shared))
        own_tokens = sum(len(row) - shared for row in rows)
        device = input_device(model)
        description = f"generating {len(rows)} answers after {shared:,} shared tokens"
        self.head.last_pass = ForwardPass(description, "question_batch_size", len(rows))
        with (
            self.head.counts.generating(len(rows), own_tokens),
            shared_attention(model, active=self.has_own_attention),
        ):
            return model.generate(
                input_ids=torch.tensor(ids, device=device),
                attention_mask=torch.tensor(mask, device=device),
                max_length=width + new,
                pad_token_id=pad,
                use_cache=True,
                **{cache_argument(model): self.cache_for_rows(width - shared + new)},
                **options,
            )


def empty_cache(model: Any, mode: str) -> Any:
    """Return an empty cache of a model.

    Raises:
        ValueError: the mode does not suit the kinds of its layers.
    """
    cache: Any = DynamicCache(config=model.config)
    if mode == COPIED:
        return cache
    allowed = {DynamicLayer}
    if mode == WINDOWED:
        allowed.add(DynamicSlidingWindowLayer)
    kinds = {type(layer) for layer in cache.layers}
    if not kinds or not kinds <= allowed:
        names = sorted(kind.__name__ for kind in kinds - allowed)
        raise ValueError(f"cache of {', '.join(names) or 'no layers'}")
    layers = []
    for layer in cache.layers:
        if type(layer) is DynamicLayer:
            layers.append(SharedLayer())
        else:
            layers.append(layer)
    return Cache(layers=layers)


def fork(cache: Any) -> Any:
    """Return a cache that grows without changing the first.

    Layers of plain keys and values make new tensors when they grow, and a `SharedLayer` does not
    change its first tokens, so that both can refer to the same tensors. What other layers do with
    theirs is not known: they are copied.
    """
    copied_by_reference = (DynamicLayer, DynamicSlidingWindowLayer, SharedLayer)
    forked = copy.copy(cache)
    forked.layers = []
    for layer in cache.layers:
        if type(layer) in copied_by_reference:
            forked.layers.append(copy.copy(layer))
        else:
            forked.layers.append(copy.deepcopy(layer))
    return forked


def score_passages(
    head: Head, reader: Reader, passages: Sequence[Passage], one_pass: int | None
) -> Iterator[Passage]:
    """Score passages in the order that reads least, what they share once.

    Args:
        head: of the model.
        reader: of the same model.
        passages: what to score.
        one_pass: longest passage that is read in one forward pass where it shares nothing; None if
            every one is.

    Yields:
        Each passage, as soon as it is scored.
    """
    inputs = [passage.inputs for passage in passages]
    # States before the first scored position are not wanted, so that they may come from a cache.
    longest_prefix = [max(0, passage.first + 1 - reader.least) for passage in passages]
    for prefix, rows in batches(inputs, longest_prefix, reader.least):
        reader.read(prefix)
        reader.keep()
        for row in rows:
            passage = passages[row]
            is_short = one_pass is None or len(passage.inputs) <= one_pass
            if is_short and not prefix:
                passage.score_alone(head)
            else:
                reader.read(passage.inputs, passage.first, partial(passage.score, head))
            yield passage
