"""Whether a model's prefix cache may be reused, decided by its config and then by trying it.

A key/value cache of a prefix is right for every continuation only if nothing about the prefix
depends on what follows. Dynamic RoPE types rotate all positions by a base that depends on the
whole length; layers with a sliding window or a recurrent state do not keep the prefix.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

import torch
from transformers import AttentionInterface, DynamicCache
from transformers.cache_utils import DynamicLayer

from leval_backends import attention
from leval_backends.cache import PrefixCache
from resonance_vllm.core.methods.longrope import LongRope
from resonance_vllm.core.spec import BASE_TYPES, PREFIX

logger = logging.getLogger(__name__)

_PROBE_LENGTH = 24
_PROBE_SPLIT = 10
# Log-probabilities of two right computations differ by rounding only; a wrong position, mask or
# missing prefix differs by about 1 (mean over the vocabulary).
_PROBE_TOLERANCE = {torch.float32: 2e-3, torch.float64: 2e-3}
_PROBE_TOLERANCE_HALF = 0.3


@dataclass(frozen=True)
class Reuse:
    """How prefixes are shared on one model.

    Attributes:
        mode: `split` (one copy for all rows), `copied` (the model's own attention, one copy of
            the prefix a row) or `none`.
        reason: Why it is not the mode before in that list; empty for `split`.
        max_length: Longest sequence for which reuse is right, None for any.
        bytes_per_position: Of the key/value cache, a row and position, all layers.
    """

    mode: str
    reason: str = ""
    max_length: int | None = None
    bytes_per_position: int = 0

    def refusal(self, length: int) -> str:
        """Why a sequence of this length cannot use a shared prefix; empty if it can."""
        if self.mode == "none":
            return self.reason
        if self.max_length is not None and length > self.max_length:
            return f"longer than {self.max_length} tokens, where the RoPE base changes"
        return ""


def rope_limit(config: Any) -> tuple[int | None, str]:
    """Longest sequence up to which cached keys do not depend on the final length, and why.

    (None, "") if they never do.
    """
    text = config.get_text_config(decoder=True)
    parameters = getattr(text, "rope_parameters", None) or {}
    # Models with several kinds of layers have one dictionary a kind.
    nested = [value for value in parameters.values() if isinstance(value, Mapping)]
    limits: list[tuple[int, str]] = []
    for rope in nested or [parameters]:
        kind = str(rope.get("rope_type", "default"))
        original = rope.get("original_max_position_embeddings")
        method, _ = BASE_TYPES.get(kind.removeprefix(PREFIX), (None, None))
        if method.follows_length if method else "dynamic" in kind:
            known = [text.max_position_embeddings, original]
            limits.append((min(int(value) for value in known if value), kind))
        elif method is LongRope and rope.get("short_factor") != rope.get("long_factor"):
            limits.append((int(original or text.max_position_embeddings), kind))
    if not limits:
        return None, ""
    limit, kind = min(limits)
    return limit, f"rope type {kind!r} rotates anew beyond {limit} tokens"


def obstacle(model: Any) -> str:
    """Why the model's cache cannot be cut at a prefix, from its config; empty if it can."""
    config = model.config
    if getattr(config, "is_encoder_decoder", False):
        return "encoder-decoder model"
    peft = getattr(model, "peft_config", None) or {}
    if isinstance(peft, Mapping) and any(
        getattr(entry, "is_prompt_learning", False) for entry in peft.values()
    ):
        return "prompt-learning adapter adds virtual tokens"
    layers = DynamicCache(config=config).layers
    other = sorted({type(layer).__name__ for layer in layers if type(layer) is not DynamicLayer})
    if other:
        return f"cache layers of type {', '.join(other)} do not keep the prefix"
    return ""


def examine(model: Any, *, share_attention: bool = True) -> Reuse:
    """Find the best way to share prefixes that gives the answers of a loaded causal model.

    `share_attention=False` keeps the model's own attention function, whatever it costs.
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
            difference, size = _probe(model, split=mode == "split")
        # Whatever a foreign model raises here only means that this mode is not for it.
        except Exception as error:  # noqa: BLE001
            # A compiler's error carries all it printed.
            failed = shorten(f"{mode}: {type(error).__name__}: {error}", 200)
            continue
        tolerance = _PROBE_TOLERANCE.get(model.dtype, _PROBE_TOLERANCE_HALF)
        if difference <= tolerance:
            if failed:
                logger.warning("each row gets its own copy of the shared prefix (%s)", failed)
            return Reuse(mode, failed, limit, size)
        failed = f"{mode}: log-probabilities differ by {difference:.2g} from a plain forward pass"
    logger.warning("no prefix is shared: %s", failed)
    return Reuse("none", failed)


@torch.no_grad()
def _probe(model: Any, *, split: bool) -> tuple[float, int]:
    """Mean difference to a plain forward pass on a short text, and bytes per position.

    Two rows of unequal length after a shared prefix, then one decoding step: all that comes later.
    """
    config = model.config.get_text_config(decoder=True)
    step = max(1, (config.vocab_size - 8) // (_PROBE_LENGTH + 1))
    tokens = [(4 + step * i) % config.vocab_size for i in range(1, _PROBE_LENGTH + 1)]
    rows = [tokens, tokens[:_PROBE_SPLIT] + tokens[_PROBE_SPLIT + 3 :]]
    plain = [forward(model, [row]).logits[0, -2:].float() for row in rows]
    with shared_attention(model, split=split):
        path = PrefixCache(_PROBE_SPLIT, split=split)
        half = _PROBE_SPLIT // 2
        forward(model, [tokens[:half]], path)
        forward(model, [tokens[half:_PROBE_SPLIT]], path)
        batch = path.rows(_PROBE_SPLIT, _PROBE_LENGTH - _PROBE_SPLIT)
        first = forward(model, [row[_PROBE_SPLIT:-1] for row in rows], batch).logits[:, -1].float()
        second = forward(model, [[row[-1]] for row in rows], batch).logits[:, -1].float()
    difference = 0.0
    for expected, *pair in zip(plain, first, second, strict=True):
        gap = (torch.stack(pair).log_softmax(-1) - expected.log_softmax(-1)).abs().mean().item()
        difference = max(difference, gap if gap == gap else float("inf"))
    return difference, path.bytes_per_position


def forward(
    model: Any,
    rows: Sequence[list[int]],
    past: PrefixCache | None = None,
    *,
    run: Any = None,
    **options: Any,
) -> Any:
    """One forward pass of rows, padded at the left to the longest.

    Args:
        model: Of transformers.
        rows: New tokens of each row.
        past: Cache whose positions come before; rows whose first pass was padded keep those holes.
        run: The part of the model to call, the whole of it by default.
        options: Passed to the model.
    """
    device = input_device(model)
    tokens, pads = left_padded(rows, device)
    if past is None:
        return (run or model)(input_ids=tokens, use_cache=False, **options)
    if pads is not None:
        past.pads = pads
    before, width = past.get_seq_length(), tokens.shape[1]
    holes = torch.zeros_like(tokens[:, 0]) if past.pads is None else past.pads
    positions = before + torch.arange(width, device=device)[None] - holes[:, None]
    if past.pads is not None and not past.split:
        own = torch.arange(before + width, device=device)[None] - past.layers[0].shared_length
        options["attention_mask"] = ((own < 0) | (own >= holes[:, None])).long()
    with attention.attending(past):
        return (run or model)(
            input_ids=tokens,
            position_ids=positions.clamp(min=0),
            past_key_values=past,
            use_cache=True,
            **options,
        )


def left_padded(
    rows: Sequence[list[int]], device: torch.device, pad: int = 0
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Token ids `[rows, longest]`, and each row's padding `[rows]`; None where there is none."""
    width = max(map(len, rows))
    pads = [width - len(row) for row in rows]
    tokens = [[pad] * size + row for size, row in zip(pads, rows, strict=True)]
    ids = torch.tensor(tokens, dtype=torch.long, device=device)
    return ids, torch.tensor(pads, device=device) if any(pads) else None


def input_device(model: Any) -> torch.device:
    """Where token ids go: beside the embeddings, or where accelerate brings them from elsewhere."""
    embeddings = model.get_input_embeddings()
    device = getattr(getattr(embeddings, "_hf_hook", None), "execution_device", None)
    return embeddings.weight.device if device is None else torch.device(device)


@contextmanager
def shared_attention(model: Any, *, split: bool) -> Iterator[None]:
    """Run a model with the shared-prefix attention, if it is split, and give back its own."""
    if not split:
        yield
        return
    before = model.config._attn_implementation
    AttentionInterface.register(attention.NAME, attention.shared_prefix_attention)
    model.set_attn_implementation(attention.NAME)
    if model.config._attn_implementation != attention.NAME:
        raise attention.UnsupportedAttentionError(
            f"{type(model).__name__} does not let its attention function be chosen"
        )
    try:
        yield
    finally:
        model.set_attn_implementation(before)
