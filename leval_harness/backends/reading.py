"""Texts read into a cache, rows that continue them, and which way of sharing a model allows.

A cache of a text is right for every continuation only if nothing about the text depends on what
follows, and if the model's code keeps all of its state in the cache. Each model is asked once: a
short text is read in both ways, continued, and compared with the model's own forward pass.
"""

import copy
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer

from leval_harness.backends.attention import SharedLayer, shared_attention
from leval_harness.backends.documents import common_prefix
from leval_harness.backends.forward import Head, cache_argument, input_device
from resonance_vllm.errors import reason_of

logger = logging.getLogger(__name__)

CHUNK = 2048
"""Tokens of a shared text in one forward pass."""

_SHARED, _OWN = 40, 14  # tokens of the text of the self-check, and of the longer row after it
# Mean difference of log-probabilities over their mean spread. Two right computations differ by
# rounding: on twelve layouts of random weights at three scales, and on SmolLM2-135M, by up to 1e-5,
# in float16 4e-3, in bfloat16 4e-2 (30 layers; 2e-2 with two). A lost key, a position off by the
# padding or a state that was not restored differ by 0.1 to 1 at most of these, however flat the
# distribution is. Four times the rounding leaves room for models of more layers.
_TOLERANCE = {torch.float32: 5e-3, torch.float64: 5e-3, torch.float16: 2e-2}
_TOLERANCE_OF_OTHERS = 0.15


class Reader:
    """Reads texts one after the other; what a text has in common with the last is not read again.

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
        self.head, self.chunk = head, chunk
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
        """Several texts will go on from here."""
        if self.copied and len(self.tokens) > len(self._kept[-1][0]):
            self._kept.append((list(self.tokens), fork(self.cache)))

    def rows(self, extra: int) -> Any:
        """A cache for rows after the text, with room for `extra` tokens of each."""
        if self.copied:
            return fork(self.cache)
        layers = self.cache.layers
        texts = [each.first(each.length) if self.tokens else () for each in layers]
        return Cache(layers=[SharedLayer(text, extra) for text in texts])

    def _attention(self) -> AbstractContextManager[None]:
        return shared_attention(self.head.model, active=not self.copied)

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
            with self._attention():
                states = self.head.states([chunk], unused, self.cache)
            self.tokens += chunk
            if use is not None and unused < len(chunk):
                use(start + unused, states[0])

    def generate(self, rows: Sequence[list[int]], pad: int, new: int, **options: Any) -> Any:
        """What `generate` of the model returns for rows that begin with the text.

        Padding stands between the text and a row's own tokens: `generate` finds the positions from
        the mask. At most `new` tokens are made; `options` are those of `generate`.
        """
        model, shared = self.head.model, len(self.tokens)
        width = max(map(len, rows))
        ids = torch.full((len(rows), width), pad)
        mask = torch.zeros_like(ids)
        for at, row in enumerate(rows):
            hole = width - len(row)
            ids[at, :shared], mask[at, :shared] = torch.tensor(row[:shared]), 1
            ids[at, shared + hole :], mask[at, shared + hole :] = torch.tensor(row[shared:]), 1
        device = input_device(model)
        self.head.tokens_read += sum(len(row) - shared for row in rows)
        with self._attention():
            return model.generate(
                input_ids=ids.to(device),
                attention_mask=mask.to(device),
                max_length=width + new,
                pad_token_id=pad,
                use_cache=True,
                **{cache_argument(model): self.rows(width - shared + new)},
                **options,
            )


def fork(cache: Any) -> Any:
    """A cache that grows without changing the first.

    Layers of plain keys and values make new tensors when they grow, so both can refer to the same
    ones until then. What other layers do with their tensors is not known: they are copied.
    """
    made, plain = copy.copy(cache), (DynamicLayer, DynamicSlidingWindowLayer)
    made.layers = [
        copy.copy(layer) if type(layer) in plain else copy.deepcopy(layer) for layer in cache.layers
    ]
    return made


class Reuse(NamedTuple):
    """How a model shares texts, and why not in an earlier mode of this list.

    `shared`: a text stands once for all rows; `copied`: the model's own cache, forked for each row;
    or `none`.
    """

    mode: str
    reason: str = ""


def find_reuse(head: Head) -> Reuse:
    """The best way to share texts that gives a loaded model's own answers."""
    failed, read = "", head.tokens_read
    tolerance = _TOLERANCE.get(head.model.dtype, _TOLERANCE_OF_OTHERS)
    for mode, instead in (("shared", "forked for each row"), ("copied", "not shared")):
        try:
            difference = selfcheck(head, mode)
            why = f"log-probabilities differ by {difference:.2g} of their spread from `hf`"
        # Any error that someone else's model raises here means that this mode is not for it.
        except Exception as error:  # noqa: BLE001
            difference, why = math.inf, f"{type(error).__name__}: {reason_of(error)}"
        finally:
            head.tokens_read = read
        if difference <= tolerance:
            return Reuse(mode, failed)
        failed = f"{failed}; {mode}: {why}" if failed else f"{mode}: {why}"
        logger.warning("texts are %s (%s: %s)", instead, mode, why)
    return Reuse("none", failed)


@torch.no_grad()
def selfcheck(head: Head, mode: str) -> float:
    """Relative difference to the model's own log-probabilities.

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
    """Logits `[2, vocabulary]` after all but the last token of a row, and after the last."""
    ids = torch.tensor([row], device=input_device(model))
    return model(input_ids=ids, use_cache=False).logits[0, -2:]


def _difference(expected: Tensor, found: Tensor) -> float:
    """Mean difference of log-probabilities over their mean spread, of logits `[2, vocabulary]`."""
    expected, found = (logits.double().log_softmax(-1) for logits in (expected, found))
    spread = (expected - expected.mean(-1, keepdim=True)).abs().mean()
    difference = ((found - expected).abs().mean() / spread).item()
    return math.inf if math.isnan(difference) else difference
