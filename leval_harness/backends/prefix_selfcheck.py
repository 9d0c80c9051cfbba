"""Whether and how a model's prefix cache can be reused: decided by its config and by a self-check.

A key/value cache of a prefix is right for every continuation only if nothing about the prefix
depends on what follows. Dynamic RoPE types rotate all positions by a base that depends on the whole
length. The self-check reads a short text in both ways, from a shared prefix and as lm-eval's `hf`
does, and compares the log-probabilities.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import shorten
from typing import Any

import torch
from transformers import DynamicCache

from leval_harness.backends.attention import shared_attention
from leval_harness.backends.cache import Footprint, PrefixCache
from leval_harness.backends.forward import forward, input_device, keeps_logits, rows_after
from resonance_vllm.core.spec import METHODS, PREFIX

logger = logging.getLogger(__name__)

_OWN = 14  # tokens of the longer row after the shared prefix
_MARGIN = 10  # tokens of the shared prefix beyond the widest window
_WIDEST = 8192  # wider windows are not outgrown by the self-check
# Mean difference of log-probabilities over their mean spread. Two right computations differ by
# rounding: on twelve layouts of random weights at three scales, and on SmolLM2-135M, by up to 1e-5,
# in float16 4e-3, in bfloat16 4e-2 (30 layers; 2e-2 with two); single steps of Nemotron-H by 2e-3
# from the same tokens together, on `hf` as well. A lost key, a position off by the padding or a
# state that was not restored differ by 0.1 to 1 at most of these, however flat the distribution is.
# Four times the rounding leaves room for models of more layers.
_TOLERANCE = {torch.float32: 5e-3, torch.float64: 5e-3, torch.float16: 2e-2}
_TOLERANCE_OF_OTHERS = 0.15


@dataclass(frozen=True)
class PrefixReuse:
    """How prefixes are shared on one model.

    Attributes:
        mode: `split` (one copy for all rows), `copied` (the model's own attention, one copy of the
            prefix for each row) or `none`.
        reason: Why it is not an earlier mode of that list; empty for `split`.
        max_length: Longest sequence for which reuse is right, None for any.
        footprint: What the cache takes.
        padded: Whether rows of unequal length can be read together, padded at the left. Else they
            are read apart and joined, aligned right.
    """

    mode: str
    reason: str = ""
    max_length: int | None = None
    footprint: Footprint = field(default_factory=Footprint)
    padded: bool = True


def find_prefix_reuse(model: Any, *, share_attention: bool = True) -> PrefixReuse:
    """The best way to share prefixes that gives a loaded causal model's own answers.

    `share_attention=False` keeps the model's own attention function.
    """
    limit, why = rope_limit(model.config)
    modes = ["split", "copied"]
    if failed := obstacle(model):
        modes = []
    elif not share_attention:
        failed, modes = "shared attention is switched off", ["copied"]
    if limit is not None and modes:
        logger.warning("prefixes are shared only among prompts up to %d tokens: %s", limit, why)
    for mode in modes:
        try:
            difference, path = selfcheck(model, split=mode == "split")
        # Any error that someone else's model raises here means that this mode is not for it.
        except Exception as error:  # noqa: BLE001
            # The error of a compiler can contain all of its output.
            failed = shorten(f"{mode}: {type(error).__name__}: {error}", 200)
            continue
        if difference <= _TOLERANCE.get(model.dtype, _TOLERANCE_OF_OTHERS):
            if failed:
                logger.warning("each row gets its own copy of the shared prefix (%s)", failed)
            return PrefixReuse(mode, failed, limit, path.footprint, path.takes_padding)
        failed = f"{mode}: log-probabilities differ by {difference:.2g} of their spread from `hf`"
    logger.warning("no prefix is shared: %s", failed)
    return PrefixReuse("none", failed)


def obstacle(model: Any) -> str:
    """Why the cache of this kind of model cannot be cut at a prefix; empty if it can."""
    if getattr(model.config, "is_encoder_decoder", False):
        return "encoder-decoder model"
    adapters = (getattr(model, "peft_config", None) or {}).values()
    if any(getattr(adapter, "is_prompt_learning", False) for adapter in adapters):
        return "prompt-learning adapter adds virtual tokens"
    return ""


def rope_limit(config: Any) -> tuple[int | None, str]:
    """Longest sequence up to which cached keys do not depend on the final length, and why.

    (None, "") if they never do.
    """
    text = config.get_text_config(decoder=True)
    parameters = getattr(text, "rope_parameters", None) or {}
    # Models with several kinds of layers have one dictionary for each kind.
    by_kind = [value for value in parameters.values() if isinstance(value, Mapping)]
    limits = []
    for rope in by_kind or [parameters]:
        rope_type = str(rope.get("rope_type", "default"))
        if limit := _length_of_change(rope_type, rope, text):
            limits.append((limit, rope_type))
    if not limits:
        return None, ""
    limit, rope_type = min(limits)
    return limit, f"rope type {rope_type!r} rotates anew beyond {limit} tokens"


def _length_of_change(rope_type: str, rope: Mapping[str, Any], text: Any) -> int | None:
    """The length beyond which a type has other frequencies; None if there is no such length."""
    key = "original_max_position_embeddings"
    method = METHODS.get(rope_type.removeprefix(PREFIX))
    if method.follows_length if method else "dynamic" in rope_type:
        return min(int(value) for value in (text.max_position_embeddings, rope.get(key)) if value)
    if method is None:
        return None
    original = getattr(text, key, None) or getattr(text, "max_position_embeddings", None)
    known = {key: original, **rope}
    stated = {key: known[key] for key in method.key_names() if known.get(key) is not None}
    return method.model_construct(**stated).switch_length


@torch.no_grad()
def selfcheck(model: Any, *, split: bool) -> tuple[float, PrefixCache]:
    """Relative difference to the model's own computation, and the path that was read.

    Two rows of unequal length after a shared prefix that is longer than the windows, then one
    decoding step: every operation that is used later.
    """
    shared = _prefix_length(model, split=split)
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    step = max(1, int(vocabulary * 0.618) - 1)  # ids spread over the vocabulary
    tokens = [(4 + step * i) % vocabulary for i in range(1, shared + _OWN + 1)]
    rows = [tokens[:shared] + tokens[shared + 3 :], tokens]
    options = {"logits_to_keep": 1} if keeps_logits(model) else {}
    expected = [_logits_on_hf(model, row, **options) for row in rows]
    with shared_attention(model, split=split):
        path, found = _logits_after_prefix(model, rows, shared, split=split, **options)
    return max(_difference(*both) for both in zip(expected, found, strict=True)), path


def _prefix_length(model: Any, *, split: bool) -> int:
    path = PrefixCache.path(model.config, 1 << 30, split=split)
    windows = [layer.window.size for layer in path.attention_layers if layer.window]
    return max((size for size in windows if size <= _WIDEST), default=0) + _MARGIN


def _logits_on_hf(model: Any, row: list[int], **options: Any) -> torch.Tensor:
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


def _logits_after_prefix(
    model: Any, rows: Sequence[list[int]], shared: int, *, split: bool, **options: Any
) -> tuple[PrefixCache, torch.Tensor]:
    """The path with the rows' first `shared` tokens, and the same logits `[rows, 2, vocabulary]`.

    Half-way the path reads other tokens and returns to a snapshot.
    """

    def read(parts: list[list[int]], past: PrefixCache) -> Any:
        return forward(model, parts, past, **options)

    tokens, half = rows[-1], shared - _MARGIN // 2
    path = PrefixCache.path(model.config, shared, split=split)
    read([tokens[:half]], path)
    snapshot = path.snapshot()
    read([tokens[3 : 3 + shared - half]], path)
    path.restore(snapshot)
    read([tokens[half:shared]], path)
    parts = [row[shared:-1] for row in rows]
    past = rows_after(path, parts, 1, read)
    unread = parts if path.takes_padding else [part[-1:] for part in parts]
    last = [row[-1:] for row in rows]
    steps = [read(each, past).logits[:, -1].float() for each in (unread, last)]
    return path, torch.stack(steps, dim=1)


def _difference(expected: torch.Tensor, found: torch.Tensor) -> float:
    """Mean difference of log-probabilities over their mean spread, of logits `[2, vocabulary]`."""
    expected, found = (logits.double().log_softmax(-1) for logits in (expected, found))
    spread = (expected - expected.mean(-1, keepdim=True)).abs().mean()
    difference = ((found - expected).abs().mean() / spread).item()
    return difference if difference == difference else float("inf")
