"""Forward passes of a transformers model over rows of tokens, after a cache or without one."""

import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface

from leval_harness.backends import attention
from leval_harness.backends.cache import PrefixCache


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
        places = torch.arange(before + width, device=device)[None]
        options["attention_mask"] = (places >= holes[:, None]).long()
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


def rows_after(
    path: PrefixCache,
    parts: Sequence[list[int]],
    extra: int,
    read: Callable[[list[list[int]], PrefixCache], object],
) -> PrefixCache:
    """A cache for rows after a whole path, each with a part of its own, sorted by their lengths.

    Where the path takes padding nothing of the parts has been read. Else all but their last tokens
    have, by `read`, those of one length together. `extra` positions may come after the parts.
    """
    widest = max(map(len, parts))
    if path.takes_padding or widest == 1:
        return path.rows(len(parts), widest + extra)
    groups = []
    for width, group in itertools.groupby(parts, len):
        alike = [part[:-1] for part in group]
        groups.append(path.rows(len(alike), width - 1))
        if width > 1:
            read(alike, groups[-1])
    past = PrefixCache.joined(groups, extra + 1)
    _, past.pads = left_padded(parts, past.attention_layers[0].keys.device)
    return past


def keeps_logits(model: Any) -> bool:
    """Whether a model can be told which positions' logits to compute."""
    return "logits_to_keep" in inspect.signature(model.forward).parameters


def input_device(model: Any) -> torch.device:
    """Where token ids go: beside the embeddings, or where accelerate brings them from elsewhere."""
    embeddings = model.get_input_embeddings()
    device = getattr(getattr(embeddings, "_hf_hook", None), "execution_device", None)
    return embeddings.weight.device if device is None else torch.device(device)


def forget_positions(model: Any) -> None:
    """Drop what vision-language models keep of the batch before: how far text follows its images.

    They add it to the positions of any later batch that starts from a cache.
    """
    for module in model.modules():
        if getattr(module, "rope_deltas", None) is not None:
            module.rope_deltas = None


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
