"""Documents read into a cache, rows that continue them, and which way of sharing a model allows.

A cache of a text is right for every continuation only if nothing about the text depends on what
follows, and if the model's code keeps all of its state in the cache. Each model is asked once: a
short text is read in both ways, continued, and compared with the model's own forward pass.
"""

import copy
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer

from leval_harness.backends.attention import SharedLayer, shared_attention
from leval_harness.backends.documents import batches, common_prefix
from leval_harness.backends.forward import Head, Passage, cache_argument, input_device
from resonance_vllm.common.errors import error_message

logger = logging.getLogger(__name__)

CHUNK = 2048
"""Tokens of a shared text in one forward pass."""

_SHARED, _OWN = 40, 14  # tokens of the text of the self-check, and of the longer row after it
# Mean difference of log-probabilities over their mean spread. Rounding is up to 1e-5, in float16
# 4e-3, in bfloat16 4e-2 (twelve layouts of random weights, and SmolLM2-135M); a lost key, a wrong
# position or a state that was not restored 0.1 to 1. Four times the rounding, for more layers.
_TOLERANCE = {torch.float32: 5e-3, torch.float64: 5e-3, torch.float16: 2e-2}
_TOLERANCE_OF_OTHERS = 0.15


class Reader:
    """Reads documents one after the other; what a text has in common with the last is not read again.

    `shared` holds a text in one buffer a layer, which is cut back at any token; all rows go on from
    it. `copied` holds it in the model's own cache, whatever its layers are, which goes back to
    places that were kept; each row goes on from a fork, alone.

    Attributes:
        tokens: the text that was read last, which is in `cache`.
        least: tokens by which a text that others go on from is longer than the one before it. A
            pass of a single token is decoding, which some recurrent models compute otherwise.

    Raises:
        ValueError: `shared`, and a layer's cache is not one of plain keys and values.
    """

    def __init__(self, head: Head, mode: str, chunk: int) -> None:
        self.head = head
        self.chunk = chunk
        self.copied, self.tokens = mode == "copied", list[int]()
        self.least = 2 if self.copied else 1
        empty: Any = DynamicCache(config=head.model.config)
        others = {type(each).__name__ for each in empty.layers if type(each) is not DynamicLayer}
        if self.copied:
            self.cache, self._kept = fork(empty), [(list[int](), empty)]
        elif others or not empty.layers:
            raise ValueError(f"cache of {', '.join(sorted(others)) or 'no layers'}")
        else:
            self.cache = Cache(layers=[SharedLayer() for _ in empty.layers])

    def back_to(self, text: list[int], most: int) -> None:
        """Keep what begins `text`, which will be read next, but at most `most` tokens."""
        if not self.copied:
            del self.tokens[min(common_prefix(self.tokens, text), most) :]
            for layer in self.cache.layers:
                layer.length, layer.expected = len(self.tokens), len(text)
            return
        wanted = text[:most]
        while self._kept[-1][0] != wanted[: len(self._kept[-1][0])]:
            self._kept.pop()
        if self.tokens != wanted[: len(self.tokens)]:
            known, cache = self._kept[-1]
            self.tokens, self.cache = list(known), fork(cache)

    def keep(self) -> None:
        """Keep the present state: several prompts will continue from here."""
        if self.copied and len(self.tokens) > len(self._kept[-1][0]):
            self._kept.append((list(self.tokens), fork(self.cache)))

    def rows(self, extra: int) -> Any:
        """Return a cache for rows after the text, with room for `extra` tokens of each."""
        if self.copied:
            return fork(self.cache)
        layers = self.cache.layers
        documents = [each.first(each.length) if self.tokens else () for each in layers]
        return Cache(layers=[SharedLayer(text, extra) for text in documents])

    def read(
        self,
        text: list[int],
        first: int | None = None,
        use: Callable[[int, Tensor], None] | None = None,
    ) -> None:
        """Bring the cache to a text.

        States are wanted from position `first` on, none by default; `use` gets the position of the
        first of a chunk, and those of the chunk.
        """
        first = len(text) if first is None else first
        self.back_to(text, first)
        while (start := len(self.tokens)) < len(text):
            end = start + self.chunk
            # A pass of a single token is decoding, which some recurrent models compute otherwise.
            chunk = text[start : end - (len(text) == end + 1 and self.chunk > 2)]
            unused = min(max(first - start, 0), len(chunk))
            with shared_attention(self.head.model, active=not self.copied):
                states = self.head.states(chunk, unused, self.cache)
            self.tokens += chunk
            if use is not None and unused < len(chunk):
                use(start + unused, states)

    def generate(self, rows: Sequence[list[int]], pad: int, new: int, **options: Any) -> Any:
        """Generate for rows that begin with the text, and return what the model's `generate` returns.

        Padding stands between the text and a row's own tokens: `generate` finds the positions from
        the mask. At most `new` tokens are made; `options` are those of `generate`.
        """
        model = self.head.model
        shared = len(self.tokens)
        width = max(map(len, rows))
        device = input_device(model)
        holes = [(row, width - len(row)) for row in rows]
        ids = [row[:shared] + [pad] * hole + row[shared:] for row, hole in holes]
        mask = [[1] * shared + [0] * hole + [1] * (len(row) - shared) for row, hole in holes]
        self.head.tokens_read += sum(len(row) - shared for row in rows)
        with shared_attention(model, active=not self.copied):
            return model.generate(
                input_ids=torch.tensor(ids, device=device),
                attention_mask=torch.tensor(mask, device=device),
                max_length=width + new,
                pad_token_id=pad,
                use_cache=True,
                **{cache_argument(model): self.rows(width - shared + new)},
                **options,
            )


def fork(cache: Any) -> Any:
    """Return a cache that grows without changing the first.

    Layers of plain keys and values make new tensors when they grow, so both can refer to the same
    ones until then. What other layers do with their tensors is not known: they are copied.
    """
    made = copy.copy(cache)
    plain = (DynamicLayer, DynamicSlidingWindowLayer)
    made.layers = [
        copy.copy(layer) if type(layer) in plain else copy.deepcopy(layer) for layer in cache.layers
    ]
    return made


def scored(
    head: Head, reader: Reader, passages: Sequence[Passage], chunk: int | None
) -> Iterator[Passage]:
    """Score passages, what they share once, in the order that reads least; yield what is finished.

    `chunk` is the tokens of a text that shares nothing in one forward pass, None for all.
    """
    most = [max(0, each.first + 1 - reader.least) for each in passages]
    for prefix, rows in batches([each.inputs for each in passages], most, reader.least):
        reader.read(prefix)
        reader.keep()
        for each in (passages[row] for row in rows):
            if not prefix and (chunk is None or len(each.inputs) <= chunk):
                each.score_alone(head)
            else:
                reader.read(each.inputs, each.first, partial(each.score, head))
            yield each


class Reuse(NamedTuple):
    """How a model shares documents, and why not in an earlier mode of this list.

    `shared`: a text stands once for all rows; `copied`: the model's own cache, forked for each row;
    or `none`.
    """

    mode: str
    reason: str = ""


def find_reuse(head: Head) -> Reuse:
    """Return the best way to share documents that gives a loaded model's own answers."""
    failed = list[str]()
    read = head.tokens_read
    tolerance = _TOLERANCE.get(head.model.dtype, _TOLERANCE_OF_OTHERS)
    for mode, instead in (("shared", "forked for each row"), ("copied", "not shared")):
        try:
            difference = selfcheck(head, mode)
            why = f"log-probabilities differ by {difference:.2g} of their spread from `hf`"
        # Any error that someone else's model raises here means that this mode is not for it.
        except Exception as error:  # noqa: BLE001
            difference = math.inf
            why = f"{type(error).__name__}: {error_message(error)}"
        finally:
            head.tokens_read = read
        if difference <= tolerance:
            return Reuse(mode, "; ".join(failed))
        failed.append(f"{mode}: {why}")
        logger.warning("documents are %s (%s)", instead, failed[-1])
    return Reuse("none", "; ".join(failed))


@torch.no_grad()
def selfcheck(head: Head, mode: str) -> float:
    """Return the relative difference from the model's own log-probabilities.

    A text is read in two parts, with another text between them; two rows of unequal length go on
    from it by two new tokens: every operation that is used later.
    """
    model = head.model
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    step = max(1, int(vocabulary * 0.618) - 1)  # ids spread over the vocabulary
    tokens = [(4 + step * i) % vocabulary for i in range(1, _SHARED + _OWN + 1)]
    rows = [tokens[:_SHARED] + tokens[_SHARED + 3 :], tokens]
    reader = Reader(head, mode, CHUNK)
    half = _SHARED // 2
    reader.read(tokens[:half])
    reader.keep()
    reader.read(tokens[:half] + tokens[3:9])
    reader.read(tokens[:_SHARED])
    steps = {"min_new_tokens": 2, "return_dict_in_generate": True, "output_logits": True}
    parts = [[row] for row in rows] if reader.copied else [rows]
    made = [reader.generate(part, 0, 2, do_sample=False, **steps) for part in parts]
    found = torch.cat([torch.stack(each.logits, dim=1) for each in made])
    new = [row[-2] for each in made for row in each.sequences.tolist()]
    expected = [_own_logits(model, [*row, token]) for row, token in zip(rows, new, strict=True)]
    return max(_difference(*both) for both in zip(expected, found, strict=True))


def _own_logits(model: Any, row: list[int]) -> Tensor:
    """Return logits `[2, vocabulary]` after all but the last token of a row, and after the last."""
    ids = torch.tensor([row], device=input_device(model))
    return model(input_ids=ids, use_cache=False).logits[0, -2:]


def _difference(expected: Tensor, found: Tensor) -> float:
    """Mean difference of log-probabilities over their mean spread, of logits `[2, vocabulary]`."""
    expected, found = (logits.double().log_softmax(-1) for logits in (expected, found))
    spread = (expected - expected.mean(-1, keepdim=True)).abs().mean()
    difference = ((found - expected).abs().mean() / spread).item()
    return math.inf if math.isnan(difference) else difference
