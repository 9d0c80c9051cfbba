"""Hooks of this package on the rotary modules of a transformers model."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from resonance_vllm.core import phase
from resonance_vllm.core.frequencies import Rotation
from resonance_vllm.core.method import Method
from resonance_vllm.hf.registry import RequestedRotation


class RopeHook:
    """Mark a hook as this package's, before or after a rotary module's `forward`."""


def remove_hooks(module: nn.Module) -> None:
    """Remove every hook of this package from a module."""
    for hooks in (module._forward_hooks, module._forward_pre_hooks):
        own = [handle for handle, hook in hooks.items() if isinstance(hook, RopeHook)]
        for handle in own:
            del hooks[handle]


def forward_arguments(args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the arguments of a rotary module's `forward` by name."""
    names = ("x", "position_ids", "layer_type")
    return dict(zip(names, args, strict=False)) | kwargs


@dataclass(frozen=True)
class FeatureLayout:
    """Where a family keeps the features of a head in the cos and sin that it returns.

    Attributes:
        feature_at: The feature at each component of the result, int64 `[components]`.
        axis_of: The axis of positions that each feature follows, int64 `[features]`. Text models
            have one axis; models for images and video have several.
    """

    feature_at: Tensor
    axis_of: Tensor

    def to(self, device: torch.device) -> "FeatureLayout":
        """Return the same layout on a device."""
        return FeatureLayout(self.feature_at.to(device), self.axis_of.to(device))


@dataclass(eq=False)
class AngleHook(RopeHook):
    """Replace the angles in a rotary module's result, keeping the family's layout.

    Each row of positions gets the inverse frequencies that belong to its own length: those of
    `rotation` up to `switch_length` tokens, beyond it those of `long_rotation` or, where they
    follow the length, of `rotation_at(length)`.

    Attributes:
        layer_type: The layer type whose result is replaced; None where a module has one rotation.
        method: The RoPE method.
        rotation: Inverse frequencies, and periods where the phase is exact.
        attention_factor: What cos and sin are multiplied by.
        layout: Where the family keeps the features.
        switch_length: Tokens beyond which other frequencies apply; None where none do.
        long_rotation: The rotation of longer rows.
        rotation_at: Returns the rotation at a length in tokens.
    """

    layer_type: str | None
    method: Method
    rotation: Rotation
    attention_factor: float
    layout: FeatureLayout
    switch_length: int | None = None
    long_rotation: Rotation | None = None
    rotation_at: Callable[[int], RequestedRotation] | None = None
    exact: bool = field(init=False)

    def __post_init__(self) -> None:
        self.exact = self.rotation.exact

    def __call__(self, module: Any, args: Any, kwargs: Any, result: Any) -> Any:
        """Return what a rotary module's `forward` is to return, for torch's forward hooks.

        Args:
            module: The rotary module.
            args: Positional arguments of its `forward`.
            kwargs: Its other arguments. Together they have `position_ids`, `[rows, n]` or
                `[axes, rows, n]`, and in some families `layer_type`.
            result: What `forward` returned: cos and sin, or a tensor of complex numbers.

        Returns:
            The same kind of result with this hook's angles and attention factor; `result` itself
            if it is for another layer type.
        """
        arguments = forward_arguments(args, kwargs)
        if arguments.get("layer_type") != self.layer_type:
            return result
        positions = arguments["position_ids"]
        if self.layout.feature_at.device != positions.device:
            self.to(positions.device)
        angles = self._angles(positions)
        if positions.ndim == 3:
            # [axes, rows, n, features] -> [rows, n, features]: each feature follows one axis
            axis = self.layout.axis_of.expand(1, *angles.shape[1:])
            angles = angles.gather(0, axis)[0]
        angles = angles[..., self.layout.feature_at]  # the family's order of components
        if isinstance(result, Tensor):  # complex numbers (Llama 4)
            amplitudes = torch.full_like(angles, self.attention_factor)
            return torch.polar(amplitudes, angles).to(result.dtype)
        dtype = result[0].dtype
        cos = (angles.cos() * self.attention_factor).to(dtype)
        sin = (angles.sin() * self.attention_factor).to(dtype)
        return cos, sin

    def to(self, device: torch.device) -> None:
        """Move the tensors that angles are computed from."""
        self.layout = self.layout.to(device)
        self.rotation = self.rotation.to(device)
        if self.long_rotation is not None:
            self.long_rotation = self.long_rotation.to(device)

    def _angles(self, positions: Tensor) -> Tensor:
        """Return the angles of positions, `[..., n, features]` radians."""
        # Without an exact phase: the float32 product that transformers computes, bitwise.
        dtype = self.rotation.inv_freq.dtype if self.exact else torch.float32
        angles = phase.rotation_angles(positions, self.rotation, dtype)
        if self.switch_length is None:
            return angles
        last_position = positions.amax(-1)
        if positions.ndim == 3:
            last_position = last_position.amax(0)
        if self.long_rotation is not None:
            long_angles = phase.rotation_angles(positions, self.long_rotation, dtype)
            is_long = last_position >= self.switch_length
            return torch.where(is_long[:, None, None], long_angles, angles)
        assert self.rotation_at is not None
        rows = list(angles.unbind(-3))
        for row, length in enumerate((last_position + 1).tolist()):
            if length > self.switch_length:
                rotation = self.rotation_at(length).rotation.to(positions.device)
                rows[row] = phase.rotation_angles(positions[..., row, :], rotation, dtype)
        return torch.stack(rows, -3)


class Float32InputHook(RopeHook):
    """Make a rotary module return float32: families cast cos and sin to the dtype of `x`."""

    def __call__(self, module: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return the arguments with an empty float32 `x`; only its device and dtype are read."""
        arguments = forward_arguments(args, kwargs)
        arguments["x"] = arguments["x"].new_empty(0, dtype=torch.float32)
        return (), arguments
