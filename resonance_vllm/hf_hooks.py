"""Hooks on rotary modules of transformers: angles of ours in the form of a family's own answer.

Families put features in halves or in pairs, once, as complex numbers, and take them from several
axes of positions. No config states that: a module's own `forward` is asked once, with frequencies
that show which feature stands where.
"""

import contextlib
import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from resonance_vllm.core import phase
from resonance_vllm.core.frequencies import Rotation
from resonance_vllm.core.method import Method
from resonance_vllm.errors import RopeConfigError

_MOST_AXES = 4
"""Of positions; transformers has three for images and films."""


class RopeHook:
    """A hook of ours, before or behind a rotary module's `forward`."""


def remove_hooks(module: nn.Module) -> None:
    """Take every hook of ours from a module."""
    for hooks, given in (
        (module._forward_hooks, module._forward_hooks_with_kwargs),
        (module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs),
    ):
        for number, hook in list(hooks.items()):
            if isinstance(hook, RopeHook):
                del hooks[number]
                given.pop(number, None)


@dataclass(eq=False)
class Turning(RopeHook):
    """Behind a rotary module's `forward`: the family's answer, with angles of ours.

    A row of positions gets the frequencies of its own length, whatever the other rows hold and
    whatever was read before.

    Attributes:
        kind: the layer type that it is for.
        method: what was asked for.
        rotation: up to the length from which on others apply.
        scale: attention factor.
        places: the feature at each place of cos.
        axes: the axis of each feature, where positions have several.
        switch: length in tokens beyond which `beyond` applies; None where there is none.
        at_length: the rotation of a length beyond `switch`, where each has its own.
    """

    kind: str | None
    method: Method
    rotation: Rotation
    scale: float
    places: Tensor
    axes: Tensor
    switch: int | None = None
    beyond: Rotation | None = None
    at_length: Callable[[int], Rotation] | None = None
    exact: bool = field(init=False)

    def __post_init__(self) -> None:
        self.exact = self.rotation.exact

    def __call__(self, module: Any, args: Any, kwargs: Any, found: Any) -> Any:
        """In place of what the module answered for positions `[rows, n]` or `[axes, rows, n]`."""
        given = dict(zip(("x", "position_ids", "layer_type"), args, strict=False)) | kwargs
        if given.get("layer_type") != self.kind:
            return found
        positions = given["position_ids"]
        if self.places.device != positions.device:
            self.to(positions.device)
        angles = self._angles(positions)
        if positions.ndim == 3:
            angles = angles.gather(0, self.axes.expand(1, *angles.shape[1:]))[0]
        angles = angles[..., self.places]
        if isinstance(found, Tensor):
            return torch.polar(torch.full_like(angles, self.scale), angles).to(found.dtype)
        return tuple(
            (each * self.scale).to(found[0].dtype) for each in (angles.cos(), angles.sin())
        )

    def to(self, device: torch.device) -> None:
        """Move what angles are made of."""
        self.places, self.axes = self.places.to(device), self.axes.to(device)
        self.rotation = self.rotation.to(device)
        self.beyond = None if self.beyond is None else self.beyond.to(device)

    def _angles(self, positions: Tensor) -> Tensor:
        # Without an exact phase the float32 product that transformers makes, to the bit.
        dtype = self.rotation.inv_freq.dtype if self.exact else torch.float32
        angles = phase.angles(positions, self.rotation, dtype)
        if self.switch is None:
            return angles
        last = positions.amax(-1)
        last = last if positions.ndim == 2 else last.amax(0)
        if self.beyond is not None:
            far = phase.angles(positions, self.beyond, dtype)
            return torch.where((last >= self.switch)[:, None, None], far, angles)
        assert self.at_length is not None
        rows = list(angles.unbind(-3))
        for row, length in enumerate((last + 1).tolist()):
            if length > self.switch:
                rotation = self.at_length(length).to(positions.device)
                rows[row] = phase.angles(positions[..., row, :], rotation, dtype)
        return torch.stack(rows, -3)


class InFloat32(RopeHook):
    """Before a rotary module's `forward`: a family casts cos and sin to the dtype of `x`."""

    def __call__(self, module: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments with a float32 `x`, of which only device and dtype count."""
        if args:
            return (args[0].new_empty(0, dtype=torch.float32), *args[1:]), kwargs
        return args, kwargs | {"x": kwargs["x"].new_empty(0, dtype=torch.float32)}


def ask(module: Any, kind: str | None, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Angles and amplitudes `[places]` that a module on the CPU answers for one token.

    Raises:
        ValueError: the answer has more axes than batch, length and features.
    """
    given = {} if kind is None else {"layer_type": kind}
    with torch.no_grad(), torch.device("cpu"):
        answer = module(torch.zeros(1), positions, **given)
    cos, sin = (answer.real, answer.imag) if isinstance(answer, Tensor) else answer
    if cos.ndim != 3:
        raise ValueError("more than batch, length and features")
    return torch.atan2(sin, cos).flatten(), torch.hypot(sin, cos).flatten()


def places_of(module: Any, kind: str | None, count: int) -> tuple[Tensor, Tensor]:
    """The feature at each place of a family's answer, and the axis of each feature.

    Args:
        module: a rotary module on the CPU; it is not changed.
        kind: layer type.
        count: number of features.

    Raises:
        RopeConfigError: the answer is not one angle a token and feature.
    """
    known, probe = torch.arange(1, count + 1) * (3.0 / (count + 1)), copy.copy(module)
    start = "" if kind is None else f"{kind}_"
    held = {f"{start}{name}": known for name in ("inv_freq", "original_inv_freq")}
    probe._buffers = module._buffers | held
    axes = torch.zeros(count, dtype=torch.int64)
    try:
        angles, amplitudes = ask(probe, kind, torch.ones(1, 1, dtype=torch.int64))
        near = (angles[:, None] - known).abs().min(dim=-1)
        for axis in range(1, _MOST_AXES):
            at = torch.zeros(_MOST_AXES - 1, 1, 1, dtype=torch.int64)
            at[axis : axis + 1] = 1
            with contextlib.suppress(IndexError, RuntimeError, ValueError):
                turned, _ = ask(probe, kind, at)
                if turned.shape == angles.shape:
                    axes[near.indices[turned != 0]] = axis
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise _unknown(module) from error
    wrong = float(near.values.max()) > 1e-4 or set(near.indices.tolist()) != set(range(count))
    if wrong or float(amplitudes.max() - amplitudes.min()) > 1e-5:
        raise _unknown(module)
    return near.indices, axes


def _unknown(module: nn.Module) -> RopeConfigError:
    return RopeConfigError(
        f"rope_type: {type(module).__name__} does not turn by the frequencies that it keeps, or by "
        "something else than one angle a token and feature; allowed: families whose rotary module "
        "returns cos and sin of position * inv_freq"
    )
