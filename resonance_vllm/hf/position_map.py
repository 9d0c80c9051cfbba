"""Position maps in transformers: an attention function of ours, which knows the map of a layer.

Model code rotates queries and keys to where the map keeps keys (`hf.rotary`) and caches them.
The attention function turns them on, by the family's own rotation, for the parts of the keys that
stand elsewhere.
"""

import sys
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask

from resonance_vllm.core import phase
from resonance_vllm.core.maps import MappedMethod, Part, Positions
from resonance_vllm.errors import RopeConfigError
from resonance_vllm.hf.partial_attention import Partial
from resonance_vllm.hf.parts import CosSin, Pass, Segment, attend
from resonance_vllm.hf.rotation import ModuleRotation

NAME = "resonance_position_map"
IMPLEMENTATIONS = {NAME}
"""Attention functions that know position maps; a backend may add one of its own."""
ATTRIBUTE = "position_map"
"""Attribute of attention modules: the `MappedRotation` of the layer."""
ROTATE = "apply_rotary_pos_emb"

SUPPORTED = (
    "ernie4_5", "gemma", "gemma3_text", "glm", "glm4", "granite", "llama", "mistral", "mixtral",
    "olmo2", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "starcoder2",
)  # fmt: skip
"""Model types of the text model whose answers equal the definition (tests/rope/test_maps.py)."""
# Options of other attention functions that change the result.
_UNSUPPORTED = ("softcap", "position_bias", "head_mask", "sinks", "s_aux")
_PLAIN = (Part(),)


class MappedRotation:
    """The map of one rotary module and layer type, and where the current queries stand."""

    def __init__(self, requested: ModuleRotation, source: str) -> None:
        """`source` is the name of the module with the family's rotation."""
        assert isinstance(requested.spec.method, MappedMethod)
        self.method = requested.spec.method
        self.requested, self.source = requested, source
        self.now: Pass | None = None

    def begin(self, rotary: Any, position_ids: Tensor) -> Tensor:
        """Note the positions of a forward pass; returns where its keys are kept.

        Raises:
            RopeConfigError: the model runs with an attention function that knows no maps.
        """
        used = rotary.config._attn_implementation
        if used not in IMPLEMENTATIONS:
            raise RopeConfigError(
                f"attn_implementation: {used!r} would meet keys at their own positions; rope_type "
                f"{self.requested.spec.rope_type!r} needs {NAME!r}"
            )
        self.now = Pass(position_ids)
        return self.method.kept_at(position_ids)

    def attend(
        self, query: Tensor, segments: list[Segment], scale: float, lowest: Positions | None
    ) -> Partial:
        """`parts.attend` at the positions of the current forward pass."""
        parts = self.method.parts()
        return attend(self._pass, query, segments, parts, self, scale=scale, lowest=lowest)

    def first(self, length: int, rows: int) -> tuple[int, ...]:
        """Position of each row's first key, where `length` keys end with those of the queries."""
        last = self._pass.at[:, -1].expand(rows)
        return tuple((last - (length - 1)).tolist())

    @property
    def _pass(self) -> Pass:
        if self.now is None:
            raise RopeConfigError("position map: attention ran before the rotary module")
        return self.now

    def kept_at(self, positions: Tensor) -> Tensor:
        """As the method has it."""
        return self.method.kept_at(positions)

    def cos_sin(self, by: Tensor, like: Tensor) -> CosSin:
        """In the family's layout, float32 or wider, without the attention factor."""
        angles = phase.angles(by, self.requested.rotation)
        cos, sin = self.requested.layout.arrange(angles, 1.0, angles)
        wide = torch.promote_types(like.dtype, torch.float32)
        return cos.to(like.device, wide), sin.to(like.device, wide)

    def turn(self, states: Tensor, cos_sin: CosSin) -> Tensor:
        """By the family's own rotation, in the precision of cos and sin."""
        cos, sin = cos_sin
        wide = states.to(cos.dtype)
        rotate = getattr(sys.modules[self.source], ROTATE)
        turned: Tensor = rotate(wide, wide[:, :0], cos, sin)[0]
        return turned.to(states.dtype)


def install(model: Any, rotary: Any, layer_type: str | None) -> None:
    """Let the attention layers of a rotary module follow its position map.

    Raises:
        RopeConfigError: the family is not supported.
    """
    requested: ModuleRotation = rotary._requested[layer_type]
    config = rotary.config
    if config.model_type not in SUPPORTED or not hasattr(model, "set_attn_implementation"):
        raise RopeConfigError(
            f"rope_type: {requested.spec.rope_type!r} moves the positions of keys, which was not "
            f"compared with its definition on model_type {config.model_type!r}; allowed: "
            f"{', '.join(SUPPORTED)}"
        )
    kinds: Any = getattr(config, "layer_types", None)
    mapped: MappedRotation | None = None
    for module in model.modules():
        index = getattr(module, "layer_idx", None)
        if index is None or not hasattr(module, "is_causal"):
            continue
        if layer_type is None or kinds[index] == layer_type:
            mapped = mapped or MappedRotation(requested, type(module).__module__)
            setattr(module, ATTRIBUTE, mapped)
    requested.mapped = mapped
    AttentionInterface.register(NAME, position_map_attention)
    AttentionMaskInterface.register(NAME, flash_attention_mask)
    model.set_attn_implementation(NAME)


def position_map_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention function in transformers' interface, for inference.

    `query` is `[rows, heads, n, head_dim]`, `key` and `value` `[rows, kv_heads, m, head_dim]`, the
    last `n` of them new; `attention_mask` `[rows, m]` is True where there is no padding.

    Returns:
        `[rows, n, heads, head_dim]` in the query's dtype, and None for the weights.

    Raises:
        RopeConfigError: the model or its cache needs what parts of a softmax cannot express.
    """
    refuse_options(module, query, dropout, kwargs)
    rows, m = len(query), key.shape[2]
    pads = (0,) * rows
    if attention_mask is not None:
        if attention_mask.shape != (rows, m):
            raise RopeConfigError(
                f"position map: a mask {list(attention_mask.shape)} for {m} keys of {rows} rows; "
                "allowed: a growing cache, and a mask of padding"
            )
        pads = tuple((attention_mask.long().cumsum(-1) == 0).sum(-1).tolist())
    mapped: MappedRotation | None = getattr(module, ATTRIBUTE, None)
    lowest = None if sliding_window is None else lambda at: at - sliding_window + 1
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if mapped is None:  # a layer with a rotation of its own, where distances alone count
        at = torch.arange(m - query.shape[2], m, device="cpu")[None]
        keys = [Segment(key, value, (0,) * rows, pads)]
        out, _ = attend(Pass(at), query, keys, _PLAIN, None, scale=scale, lowest=lowest)
    else:
        first = mapped.first(m, rows)
        if sliding_window is None and first != tuple(-pad for pad in pads):
            raise RopeConfigError(
                f"position map: {m} keys, the first at {list(first)}, with padding {list(pads)}; "
                "allowed: a growing cache of sequences that start at position 0"
            )
        out, _ = mapped.attend(query, [Segment(key, value, first, pads)], scale, lowest)
    return out.to(query.dtype).transpose(1, 2).contiguous(), None


def refuse_options(module: nn.Module, query: Tensor, dropout: float, options: Any) -> None:
    """Raise RopeConfigError for what changes attention in a way that the parts do not know."""
    foreign = [name for name in _UNSUPPORTED if options.get(name) is not None]
    if foreign or dropout:
        raise RopeConfigError(
            f"position map: {type(module).__name__} needs {', '.join(foreign) or 'dropout'}; "
            "allowed: plain softmax attention"
        )
    if torch.is_grad_enabled() and query.requires_grad:
        raise RopeConfigError(
            "position map: no gradients; allowed: inference under torch.no_grad()"
        )
