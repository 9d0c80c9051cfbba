"""A trial of shared prefixes on a loaded model: how far its answers are from its own way."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

from leval_harness.backends.cache import PrefixCache
from leval_harness.backends.forward import (
    forward,
    input_device,
    keeps_logits,
    rows_after,
    shared_attention,
)

_OWN = 14  # tokens of the longer row after the shared prefix
_BEYOND = 10  # tokens of that prefix, beyond the widest window
_WIDEST = 8192  # windows above are not outgrown by the trial
# Mean difference of log-probabilities over their mean spread. Two right computations differ by
# rounding: on twelve layouts of random weights at three scales, and on SmolLM2-135M, by up to 1e-5,
# in float16 4e-3, in bfloat16 4e-2 (30 layers; 2e-2 with two); single steps of Nemotron-H by 2e-3
# from the same tokens together, on `hf` as well. A lost key, a position off by the padding or a
# state that was not brought back differ by 0.1 to 1 at most of these, however flat the distribution
# is. Four times the rounding leaves room for models of more layers.
_TOLERANCE = {torch.float32: 5e-3, torch.float64: 5e-3, torch.float16: 2e-2}
_TOLERANCE_OF_OTHERS = 0.15


def tolerance(dtype: torch.dtype) -> float:
    """The largest difference that rounding explains in a dtype."""
    return _TOLERANCE.get(dtype, _TOLERANCE_OF_OTHERS)


@torch.no_grad()
def difference_on_trial(model: Any, *, split: bool) -> tuple[float, PrefixCache]:
    """Relative difference to the model's own way with a short text, and the path that was read.

    Two rows of unequal length after a shared prefix that is longer than the windows, then one
    decoding step: all that comes later.
    """
    shared = _prefix_length(model, split=split)
    tokens = _text(model.config.get_text_config(decoder=True).vocab_size, shared + _OWN)
    rows = [tokens[:shared] + tokens[shared + 3 :], tokens]
    options = {"logits_to_keep": 1} if keeps_logits(model) else {}
    plain = [_as_on_hf(model, row, **options) for row in rows]
    with shared_attention(model, split=split):
        path, got = _after_a_prefix(model, rows, shared, split=split, **options)
    return max(_difference(*both) for both in zip(plain, got, strict=True)), path


def _prefix_length(model: Any, *, split: bool) -> int:
    path = PrefixCache.path(model.config, 1 << 30, split=split)
    windows = [layer.window.size for layer in path.attention_layers if layer.window]
    return max((size for size in windows if size <= _WIDEST), default=0) + _BEYOND


def _text(vocabulary: int, length: int) -> list[int]:
    """Token ids of no meaning, spread over a vocabulary."""
    step = max(1, int(vocabulary * 0.618) - 1)
    return [(4 + step * i) % vocabulary for i in range(1, length + 1)]


def _as_on_hf(model: Any, row: list[int], **options: Any) -> torch.Tensor:
    """Logits `[2, vocabulary]` after all but the last token, and after one step with the last."""
    tokens = torch.tensor([row], device=input_device(model))
    places = torch.arange(len(row), device=tokens.device)[None]
    past, logits = DynamicCache(config=model.config), []
    for part in (slice(0, -1), slice(-1, None)):
        output = model(
            input_ids=tokens[:, part],
            position_ids=places[:, part],
            past_key_values=past,
            use_cache=True,
            **options,
        )
        logits.append(output.logits[0, -1].float())
    return torch.stack(logits)


def _after_a_prefix(
    model: Any, rows: Sequence[list[int]], shared: int, *, split: bool, **options: Any
) -> tuple[PrefixCache, torch.Tensor]:
    """The path with the rows' first `shared` tokens, and logits `[rows, 2, vocabulary]`.

    They are those of `_as_on_hf`. On its way the path has gone back to a mark.
    """

    def read(parts: list[list[int]], past: PrefixCache) -> Any:
        return forward(model, parts, past, **options)

    tokens, half = rows[-1], shared - _BEYOND // 2
    path = PrefixCache.path(model.config, shared, split=split)
    read([tokens[:half]], path)
    mark = path.mark()
    read([tokens[3 : 3 + shared - half]], path)
    path.restore(mark)
    read([tokens[half:shared]], path)
    parts = [row[shared:-1] for row in rows]
    past = rows_after(path, parts, 1, read)
    left = parts if path.takes_padding else [part[-1:] for part in parts]
    steps = [read(each, past).logits[:, -1].float() for each in (left, [row[-1:] for row in rows])]
    return path, torch.stack(steps, dim=1)


def _difference(plain: torch.Tensor, got: torch.Tensor) -> float:
    """Mean difference of log-probabilities over their mean spread, of logits `[2, vocabulary]`."""
    expected, given = (logits.double().log_softmax(-1) for logits in (plain, got))
    spread = (expected - expected.mean(-1, keepdim=True)).abs().mean()
    gap = ((given - expected).abs().mean() / spread).item()
    return gap if gap == gap else float("inf")
