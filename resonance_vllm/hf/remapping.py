"""Position remapping in transformers: an attention function that knows the remapping of a layer.

Model code rotates queries and keys to the positions at which the remapping caches keys. The
attention function rotates them further, by the family's own rotation, for the parts in which they
have another position. The softmax over all parts is joined from the parts.
"""

import sys
from collections.abc import Callable, Hashable, Sequence
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask

from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.core import phase
from resonance_vllm.core.remapping import Part, Positions, RemappedMethod
from resonance_vllm.hf.hooks import AngleHook, RopeHook, forward_arguments
from resonance_vllm.hf.key_slices import Keys, key_slices
from resonance_vllm.hf.partial_attention import Partial, grouped_attention, join

NAME = "resonance_position_remapping"
"""Name of the attention function in transformers."""
ATTRIBUTE = "position_remapping"
"""Attribute of attention modules: the `RemappedPositions` of the layer."""

SUPPORTED = (
    "ernie4_5", "gemma", "gemma3_text", "glm", "glm4", "granite", "llama", "mistral", "mixtral",
    "olmo2", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "starcoder2",
)  # fmt: skip
"""Types of language models whose logits equal the definition (tests/rope/test_remapping.py)."""
_BEFORE = "_attention_before_remapping"
"""Attribute of a model: the attention function that it had before a remapping."""

CosSin = tuple[Tensor, Tensor]


class ForwardPass:
    """One forward pass: the positions of its queries, and what its layers share.

    Attributes:
        positions: Of the queries, int64 `[rows, n]` on the CPU, negative in front of the text.
    """

    def __init__(self, position_ids: Tensor) -> None:
        """Read the positions from a model's `position_ids`.

        Args:
            position_ids: `[rows, n]`, or `[axes, rows, n]` with equal axes. Only the last one of
                a row counts, because padding may have any.
        """
        n = position_ids.shape[-1]
        last = position_ids.reshape(-1, *position_ids.shape[-2:])[0, :, -1:].cpu()
        self.positions = last - (n - 1) + torch.arange(n, device="cpu")
        self._shared: dict[Hashable, Any] = {}

    def shared(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return what the first layer made for a key."""
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]


class RemappedPositions(RopeHook):
    """Rotate keys to where a remapping caches them: a hook before a rotary module's `forward`.

    Attributes:
        method: The remapping.
        hook: The hook after the same module's `forward`, which has its frequencies.
        source: Name of the Python module with the family's `apply_rotary_pos_emb`.
        config: The config of the language model.
        forward_pass: The forward pass that is running; set by this hook.
    """

    def __init__(self, hook: AngleHook, source: str, config: Any) -> None:
        assert isinstance(hook.method, RemappedMethod)
        self.method = hook.method
        self.hook = hook
        self.source = source
        self.config = config
        self.forward_pass: ForwardPass | None = None

    def __call__(self, module: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Note the positions of a forward pass, and return the arguments with remapped ones."""
        arguments = forward_arguments(args, kwargs)
        if arguments.get("layer_type") != self.hook.layer_type:
            return args, kwargs
        used = self.config._attn_implementation
        if used != NAME:
            raise RopeConfigError(
                f"attn_implementation: {used!r} given; {self.method.name!r} needs {NAME!r}"
            )
        position_ids = arguments["position_ids"]
        self.forward_pass = ForwardPass(position_ids)
        arguments["position_ids"] = self.method.cached_position(position_ids)
        return (), arguments

    def rotated(
        self, states: Tensor, positions: Tensor, target: Positions, case: Hashable
    ) -> Tensor:
        """Return states rotated from where they are cached to where a part needs them.

        Args:
            states: Queries or keys, `[rows, heads, n, head_dim]`.
            positions: Theirs in the text, int64 `[rows, n]`.
            target: Maps them to the positions that the part gives them.
            case: Key by which layers share the angles.
        """
        assert self.forward_pass is not None
        make = partial(self._cos_sin, states, positions, target)
        cos_sin = self.forward_pass.shared((case, states.device), make)
        if cos_sin is None:
            return states
        wide = states.to(cos_sin[0].dtype)
        no_keys = wide[:, :0]
        rotate = sys.modules[self.source].apply_rotary_pos_emb
        result: Tensor = rotate(wide, no_keys, *cos_sin)[0]
        return result.to(states.dtype)

    def _cos_sin(self, states: Tensor, positions: Tensor, target: Positions) -> CosSin | None:
        """Return cos and sin in the family's layout; None where nothing has to be rotated.

        The attention factor is in the cached states already.
        """
        distance = target(positions) - self.method.cached_position(positions)
        if not distance.any():
            return None
        angles = phase.rotation_angles(distance, self.hook.rotation.to("cpu"))
        angles = angles[..., self.hook.layout.feature_at.to("cpu")]
        dtype = torch.promote_types(states.dtype, torch.float32)
        return angles.cos().to(states.device, dtype), angles.sin().to(states.device, dtype)


def install(model: Any, rotary: Any, hook: AngleHook) -> None:
    """Let a rotary module, and the attention layers that use it, follow a position remapping.

    Args:
        model: The model of transformers.
        rotary: Its rotary module.
        hook: The hook of that module, whose method is the remapping.

    Raises:
        RopeConfigError: The remapping was not compared with its definition on this family.
    """
    config = rotary.config
    if config.model_type not in SUPPORTED or not hasattr(model, "set_attn_implementation"):
        raise RopeConfigError(
            f"rope_type: {hook.method.name!r} was not compared with its definition on model_type "
            f"{config.model_type!r}; allowed: {', '.join(SUPPORTED)}"
        )
    layers = _attention_layers(model, config, hook.layer_type)
    remapped = RemappedPositions(hook, type(layers[0]).__module__, config)
    for layer in layers:
        setattr(layer, ATTRIBUTE, remapped)
    rotary.register_forward_pre_hook(remapped, with_kwargs=True)
    AttentionInterface.register(NAME, remapped_attention)
    AttentionMaskInterface.register(NAME, flash_attention_mask)
    vars(model).setdefault(_BEFORE, config._attn_implementation)
    model.set_attn_implementation(NAME)


def _attention_layers(model: Any, config: Any, layer_type: str | None) -> list[Any]:
    """Return the attention modules of a model that use the rotation of a layer type."""
    layers = []
    for module in model.modules():
        index = getattr(module, "layer_idx", None)
        if index is None or not hasattr(module, "is_causal"):
            continue
        if layer_type is None or config.layer_types[index] == layer_type:
            layers.append(module)
    return layers


def remove(model: Any) -> None:
    """Give a model's layers the attention function that they had before a remapping."""
    for module in model.modules():
        vars(module).pop(ATTRIBUTE, None)
    before = vars(model).pop(_BEFORE, None)
    if before is not None:
        model.set_attn_implementation(before)


def remapped_attention(
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
    """Compute attention through transformers' interface, for inference.

    Args:
        module: The attention layer.
        query: `[rows, heads, n, head_dim]`, rotated as cached keys are.
        key: `[rows, kv_heads, m, head_dim]`; the last `n` are those of the queries.
        value: `[rows, kv_heads, m, value_dim]`.
        attention_mask: Bool `[rows, m]`, False at padding; None without padding.
        scaling: Factor of the scores; None is `head_dim ** -0.5`.
        sliding_window: Most keys that a query attends to; None is all.
        kwargs: What other attention functions read.

    Returns:
        `[rows, n, heads, value_dim]`, and None in place of attention weights.

    Raises:
        RopeConfigError: Gradients are needed, or the cache is not one that grows from position 0.
    """
    if torch.is_grad_enabled() and query.requires_grad:
        raise RopeConfigError("position remapping: no gradients; allowed: under torch.no_grad()")
    pads = _padding(attention_mask, rows=len(query), keys=key.shape[2])
    if scaling is None:
        scaling = query.shape[-1] ** -0.5
    remapped: RemappedPositions | None = getattr(module, ATTRIBUTE, None)
    count = key.shape[2]
    if remapped is None:  # a layer with its own rotation, in which only distances count
        forward_pass = ForwardPass(torch.arange(count - query.shape[2], count, device="cpu")[None])
        first = (0,) * len(query)
    else:
        assert remapped.forward_pass is not None
        forward_pass = remapped.forward_pass
        last_positions = forward_pass.positions[:, -1].expand(len(query))
        first = tuple((last_positions - (count - 1)).tolist())
        if sliding_window is None and first != tuple(-pad for pad in pads):
            raise RopeConfigError("position remapping: it needs a growing cache from position 0 on")
    keys = Keys(key, value, first, pads)
    output = _attend(forward_pass, query, keys, remapped, scale=scaling, window=sliding_window)
    return output.to(query.dtype).transpose(1, 2).contiguous(), None


def _padding(attention_mask: Tensor | None, rows: int, keys: int) -> tuple[int, ...]:
    """Return how many keys at the beginning of each row are padding."""
    if attention_mask is None:
        return (0,) * rows
    if attention_mask.shape != (rows, keys):
        raise RopeConfigError("position remapping: it needs a growing cache and a mask of padding")
    is_before_text = attention_mask.long().cumsum(-1) == 0
    return tuple(is_before_text.sum(-1).tolist())


def _attend(
    forward_pass: ForwardPass,
    query: Tensor,
    keys: Keys,
    remapped: RemappedPositions | None,
    *,
    scale: float,
    window: int | None,
) -> Tensor:
    """Return attention over all parts of the keys, float32 `[rows, heads, n, value_dim]`."""
    positions = forward_pass.positions.clamp(min=0).expand(query.shape[0], -1)
    parts: Sequence[Part] = (Part(),) if remapped is None else remapped.method.parts()
    outputs_of: dict[int, list[Partial]] = {}  # by the first query of a block
    for number, part in enumerate(parts):
        case = (number, keys.case, window)
        plan = partial(key_slices, positions, keys, part, window)
        slices = forward_pass.shared(case, plan)
        if not slices:
            continue
        start = min(piece.start for piece in slices)
        end = max(piece.end for piece in slices)
        part_query = query
        part_key = keys.key[:, :, start:end]
        if remapped is not None:
            key_positions = keys.positions(start, end)
            part_query = remapped.rotated(query, positions, part.query, ("query", number))
            part_key = remapped.rotated(part_key, key_positions, part.key, ("key", *case))
        for piece in slices:
            output = grouped_attention(
                part_query[:, :, piece.first_query : piece.last_query],
                part_key[:, :, piece.start - start : piece.end - start],
                keys.value[:, :, piece.start : piece.end],
                scale,
                piece.mask,
            )
            outputs_of.setdefault(piece.first_query, []).append(output)
    joined = [reduce(join, outputs_of[first])[0] for first in sorted(outputs_of)]
    return torch.cat(joined, 2)
