"""Position remapping in transformers: an attention function of ours, which knows the map of a layer.

Model code rotates queries and keys to where the map keeps keys, and caches them. The attention
function turns them on, by the family's own rotation, for the parts that stand elsewhere.

For a block of queries, each part of the keys is a slice of the cache of which all queries see the
middle and some see the ends: only the ends need a mask. The parts of one softmax are joined as in
online softmax (Milakov and Gimelshein 2018).
"""

import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask

from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.core import phase
from resonance_vllm.core.remapping import Part, Positions, RemappedMethod
from resonance_vllm.hf.rotary import RopeHook, Turning, given_to

NAME = "resonance_position_map"
ATTRIBUTE = "position_map"
"""Attribute of attention modules: the `Moved` of the layer."""

SUPPORTED = (
    "ernie4_5", "gemma", "gemma3_text", "glm", "glm4", "granite", "llama", "mistral", "mixtral",
    "olmo2", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "starcoder2",
)  # fmt: skip
"""Model types of the text model whose answers equal the definition (tests/rope/test_maps.py)."""
_BEFORE = "_attention_before_map"
"""Attribute of a model: the attention function that it had before a map."""
_QUERIES = 512  # of a block
_UNMASKED = 128  # keys from which on the middle of a slice gets a call without a mask
_SCORES_AT_ONCE = 1 << 26

CosSin = tuple[Tensor, Tensor]
Partial = tuple[Tensor, Tensor]
"""Output `[batch, heads, n, dim]`, and `log(sum(exp(scores)))` `[batch, heads, n]`, float32."""


def join(first: Partial, second: Partial) -> Partial:
    """Attention over two disjoint sets of keys, from the attention over each; in float32."""
    (out, norm), (other, other_norm) = first, second
    weight = torch.sigmoid(other_norm - norm).unsqueeze(-1)
    joined = torch.lerp(out.to(norm.dtype), other.to(norm.dtype), weight)
    return joined, torch.logaddexp(norm, other_norm)


def partial_attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None, causal: bool
) -> Partial:
    """Softmax attention and the logarithm of its normaliser, by the fastest exact kernel.

    Args:
        query: `[batch, heads, n, head_dim]`.
        key: `[batch, heads, m, head_dim]`.
        value: Like `key`; its head dimension may be another.
        scale: Factor of the scores.
        mask: Additive, broadcast to `[batch, heads, n, m]`; no row may be masked completely.
        causal: Query `i` sees keys up to `i`; needs `n == m` and no mask.
    """
    kind = query.device.type
    width = value.shape[-1]
    if width != query.shape[-1]:  # the kernels need equal sizes; zeros change no score
        size = max(width, query.shape[-1])
        query, key, value = (pad(each, (0, size - each.shape[-1])) for each in (query, key, value))
        out, norm = partial_attention(query, key, value, scale, mask, causal)
        return out[..., :width], norm
    if kind == "cpu":
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, attn_mask=mask, scale=scale
        )
    if kind == "cuda" and mask is None and query.dtype in (torch.float16, torch.bfloat16):
        return torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, 0.0, causal, scale=scale
        )[:2]
    return plain_attention(query, key, value, scale, mask, causal)


def plain_attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None, causal: bool
) -> Partial:
    """`partial_attention` in plain float32 tensor operations, a block of queries at a time."""
    n, m = query.shape[2], key.shape[2]
    block = max(1, _SCORES_AT_ONCE // (query.shape[0] * query.shape[1] * m))
    outs, norms = [], []
    for first in range(0, n, block):
        part = query[:, :, first : first + block].float()
        scores = part @ key.float().transpose(-1, -2) * scale
        if mask is not None:
            scores = scores + (mask if mask.shape[2] == 1 else mask[:, :, first : first + block])
        if causal:
            rows = torch.arange(first, first + part.shape[2], device=query.device)
            future = torch.arange(m, device=query.device) > rows[:, None]
            scores = scores.masked_fill(future, float("-inf"))
        norms.append(scores.logsumexp(-1))
        outs.append((scores - norms[-1].unsqueeze(-1)).exp() @ value.float())
    return torch.cat(outs, 2).to(query.dtype), torch.cat(norms, 2)


@dataclass(frozen=True)
class Keys:
    """The keys of a cache `[rows, kv_heads, m, head_dim]`, which end with those of the queries.

    `first` is the position of each row's first key, negative where padding comes first; `pads` says
    how many keys at its beginning are padding.
    """

    key: Tensor
    value: Tensor
    first: tuple[int, ...]
    pads: tuple[int, ...]

    @property
    def case(self) -> Hashable:
        """What the plan of a forward pass depends on."""
        return self.first, self.pads, self.key.shape[2], self.key.dtype, self.key.device

    def positions(self, low: int, high: int) -> Tensor:
        """Positions of the keys `[low, high)`, `[rows, high - low]`; 0 for padding before all."""
        places = torch.arange(low, high, device="cpu")
        return (torch.tensor(self.first, device="cpu")[:, None] + places).clamp(min=0)


class Pass:
    """One forward pass: where its queries stand, and what its layers have in common.

    Of `position_ids`, `[rows, n]` or `[axes, rows, n]` with equal axes, a row's last one counts:
    padding may have any.
    """

    def __init__(self, position_ids: Tensor) -> None:
        n = position_ids.shape[-1]
        last = position_ids.reshape(-1, *position_ids.shape[-2:])[0, :, -1:].cpu()
        self.at = last - (n - 1) + torch.arange(n, device="cpu")
        self._made: dict[Hashable, Any] = {}

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What the first layer with this key made."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]


class Slice(NamedTuple):
    """Keys `[start, end)` for the queries `[first, last)` of a block; a mask where some differ."""

    first: int
    last: int
    start: int
    end: int
    mask: Tensor | None


def attend(
    now: Pass,
    query: Tensor,
    keys: Keys,
    parts: Sequence[Part],
    moved: "Moved | None",
    *,
    scale: float,
    window: int | None,
) -> Tensor:
    """Attention of queries `[rows, heads, n, head_dim]` over all parts of the keys, float32.

    Queries are rotated as the cached keys are; `moved` turns both on, where a part needs it. With a
    `window` a query sees so many keys.
    """
    at = now.at.clamp(min=0).expand(query.shape[0], -1)
    blocks: dict[int, list[Partial]] = {}
    for number, part in enumerate(parts):
        case = (number, keys.case, window)
        plan = now.once(case, partial(_plan, at, keys, part, window))
        if not plan:
            continue
        low, high = min(each.start for each in plan), max(each.end for each in plan)
        turned, key = query, keys.key[:, :, low:high]
        if moved is not None:
            where = keys.positions(low, high)
            turned = moved.turned(query, at, part.query, ("query", number))
            key = moved.turned(key, where, part.key, ("key", *case))
        for each in plan:
            own = turned[:, :, each.first : each.last]
            seen = key[:, :, each.start - low : each.end - low]
            values = keys.value[:, :, each.start : each.end]
            done = _grouped(own, seen, values, scale, each.mask)
            blocks.setdefault(each.first, []).append(done)
    return torch.cat([reduce(join, blocks[first])[0] for first in sorted(blocks)], 2)


def _plan(at: Tensor, keys: Keys, part: Part, window: int | None) -> list[Slice]:
    """The slices of the keys that queries at `[rows, n]` see of a part."""
    m = keys.key.shape[2]
    first, pads = (torch.tensor(each)[:, None] for each in (keys.first, keys.pads))
    low, high = part.first(at), torch.minimum(part.end(at), at + 1)
    if window is not None:
        low = torch.maximum(low, at - window + 1)
    low = torch.maximum((low - first).clamp(0, m), pads)
    high = torch.maximum((high - first).clamp(0, m), low)
    slices = []
    for begin in range(0, low.shape[1], _QUERIES):
        lows, highs = (each[:, begin : begin + _QUERIES] for each in (low, high))
        seeing = lows < highs
        if not seeing.any():
            continue
        start, end = int(lows[seeing].min()), int(highs[seeing].max())
        inner, outer = int(lows.max()), int(highs.min())
        cuts = [start, end]
        if outer - inner >= _UNMASKED or (inner, outer) == (start, end):
            cuts = [start, inner, outer, end]
        for left, right in pairwise(cuts):
            if left < right:
                mask = None
                if not (inner <= left and right <= outer):
                    mask = _mask(lows, highs, left, right, keys.key)
                slices.append(Slice(begin, begin + lows.shape[1], left, right, mask))
    return slices


def _mask(lows: Tensor, highs: Tensor, left: int, right: int, like: Tensor) -> Tensor:
    """An additive mask `[rows, 1, queries, right - left]` in the dtype of the keys.

    It hides by a number so low that nothing is left beside a key that is seen; with minus infinity
    a query that sees none of these keys would get no number.
    """
    places = torch.arange(left, right, device="cpu")
    hidden = (places < lows[..., None]) | (places >= highs[..., None])
    mask = torch.zeros(hidden.shape, dtype=like.dtype)
    return mask.masked_fill_(hidden, torch.finfo(like.dtype).min)[:, None].to(like.device)


def _grouped(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None
) -> Partial:
    """Attention where several query heads have one key head: their queries side by side."""
    rows, heads, n, dim = query.shape
    groups = heads // key.shape[1]
    folded = query.reshape(rows, key.shape[1], groups * n, dim)
    if mask is not None:
        mask = mask.repeat(1, 1, groups, 1)
    out, norm = partial_attention(folded, key, value, scale, mask, causal=False)
    return out.reshape(rows, heads, n, -1), norm.reshape(rows, heads, n)


class Moved(RopeHook):
    """Before a rotary module with a map: it turns keys to where the map keeps them.

    `hook` stands behind the same module, `source` is the Python module of the family's rotation.
    """

    def __init__(self, hook: Turning, source: str, config: Any) -> None:
        assert isinstance(hook.method, RemappedMethod)
        self.method, self.hook, self.source, self.config = hook.method, hook, source, config
        self.now: Pass | None = None

    def __call__(self, module: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments with other positions; those of the forward pass are noted."""
        given = given_to(args, kwargs)
        if given.get("layer_type") != self.hook.kind:
            return args, kwargs
        used = self.config._attn_implementation
        if used != NAME:
            name = self.method.name
            raise RopeConfigError(f"attn_implementation: {used!r} given; {name!r} needs {NAME!r}")
        self.now = Pass(given["position_ids"])
        return (), given | {"position_ids": self.method.cached_position(given["position_ids"])}

    def turned(self, states: Tensor, at: Tensor, wanted: Positions, case: Hashable) -> Tensor:
        """States of positions `at`, turned on to where a part wants them by the family's code."""

        def make() -> CosSin | None:
            """In the family's layout, without the attention factor."""
            by = wanted(at) - self.method.cached_position(at)
            if not by.any():
                return None
            angles = phase.rotation_angles(by, self.hook.rotation.to("cpu"))[
                ..., self.hook.places.to("cpu")
            ]
            wide = torch.promote_types(states.dtype, torch.float32)
            return angles.cos().to(states.device, wide), angles.sin().to(states.device, wide)

        assert self.now is not None
        cos_sin = self.now.once((case, states.device), make)
        if cos_sin is None:
            return states
        wide = states.to(cos_sin[0].dtype)
        rotate = sys.modules[self.source].apply_rotary_pos_emb
        result: Tensor = rotate(wide, wide[:, :0], *cos_sin)[0]
        return result.to(states.dtype)


def install(model: Any, rotary: Any, hook: Turning) -> None:
    """Let a rotary module, and the attention layers that it is for, follow a position remapping."""
    config = rotary.config
    if config.model_type not in SUPPORTED or not hasattr(model, "set_attn_implementation"):
        raise RopeConfigError(
            f"rope_type: {hook.method.name!r} was not compared with its definition on model_type "
            f"{config.model_type!r}; allowed: {', '.join(SUPPORTED)}"
        )
    kinds: Any = getattr(config, "layer_types", None)
    layers = [
        module
        for module in model.modules()
        if hasattr(module, "is_causal") and getattr(module, "layer_idx", None) is not None
        if hook.kind is None or kinds[module.layer_idx] == hook.kind
    ]
    moved = Moved(hook, type(layers[0]).__module__, config)
    for layer in layers:
        setattr(layer, ATTRIBUTE, moved)
    rotary.register_forward_pre_hook(moved, with_kwargs=True)
    AttentionInterface.register(NAME, position_map_attention)
    AttentionMaskInterface.register(NAME, flash_attention_mask)
    vars(model).setdefault(_BEFORE, config._attn_implementation)
    model.set_attn_implementation(NAME)


def remove(model: Any) -> None:
    """Give a model's layers the attention function that they had before a map."""
    for module in model.modules():
        vars(module).pop(ATTRIBUTE, None)
    before = vars(model).pop(_BEFORE, None)
    if before is not None:
        model.set_attn_implementation(before)


def position_map_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    *,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention function in transformers' interface, for inference: `[rows, n, heads, head_dim]`.

    `query` is `[rows, heads, n, head_dim]`, `key` and `value` `[rows, kv_heads, m, head_dim]`, the
    last `n` of them new; `attention_mask` `[rows, m]` is True where there is no padding. A
    RopeConfigError says that model or cache need what parts of a softmax cannot express.
    """
    if torch.is_grad_enabled() and query.requires_grad:
        raise RopeConfigError("position remapping: no gradients; allowed: under torch.no_grad()")
    rows, m = len(query), key.shape[2]
    pads = (0,) * rows
    if attention_mask is not None:
        if attention_mask.shape != (rows, m):
            raise RopeConfigError(
                "position remapping: it needs a growing cache and a mask of padding"
            )
        pads = tuple((attention_mask.long().cumsum(-1) == 0).sum(-1).tolist())
    moved: Moved | None = getattr(module, ATTRIBUTE, None)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    parts = (Part(),) if moved is None else moved.method.parts()
    if moved is None:  # a layer with a rotation of its own, where distances alone count
        at = torch.arange(m - query.shape[2], m, device="cpu")[None]
        now, first = Pass(at), (0,) * rows
    else:
        assert moved.now is not None
        now = moved.now
        first = tuple((now.at[:, -1].expand(rows) - (m - 1)).tolist())
        if sliding_window is None and first != tuple(-pad for pad in pads):
            raise RopeConfigError("position remapping: it needs a growing cache from position 0 on")
    keys = Keys(key, value, first, pads)
    out = attend(now, query, keys, parts, moved, scale=scale, window=sliding_window)
    return out.to(query.dtype).transpose(1, 2).contiguous(), None
