"""How a family lays out features in cos and sin.

Families put features in halves or in pairs, once, as complex numbers, and take them from several
axes of positions. No config states that: the module's own `forward` is run once, on frequencies
that show which feature stands where.
"""

import copy
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.verifier import Turns

# transformers has at most one angle for each of three axes today.
_MOST_AXES = 4

ARRANGED: dict[str, Callable[[Tensor], Tensor]] = {
    "halves": lambda values: torch.cat((values, values), dim=-1),
    "pairs": lambda values: values.repeat_interleave(2, dim=-1),
    "once": lambda values: values,
}
"""Features `[..., n]` as they stand in cos and in sin."""


def prefix(layer_type: str | None) -> str:
    """How the attributes of a layer type begin in a rotary module."""
    return "" if layer_type is None else f"{layer_type}_"


def keywords(layer_type: str | None) -> dict[str, str]:
    """How the layer type is given to a rotary module's `forward` or a rope function."""
    return {} if layer_type is None else {"layer_type": layer_type}


@dataclass(frozen=True)
class Layout:
    """The form of a module's answer.

    Attributes:
        features: a key of `ARRANGED`, or the feature at each place.
        count: number of features.
        is_complex: one complex tensor in place of cos and sin.
        casts: whether the answer has the dtype of the activations; else it is float32.
        axes: the axis of each feature where positions may have several axes `[axes, b, n]`.
        scale: attention factor, as the module multiplies by it.
    """

    features: str | tuple[int, ...]
    count: int
    is_complex: bool
    casts: bool
    axes: tuple[int, ...] | None
    scale: float

    def arrange(self, angles: Tensor, scale: float, like: Tensor) -> Any:
        """The module's answer for angles `[batch, length, features]`."""
        if self.is_complex:
            turned = torch.polar(torch.full_like(angles, scale), angles)
            return self._put(turned).to(torch.complex64)
        dtype = like.dtype if self.casts else torch.float32
        cos, sin = self._put(angles.cos() * scale), self._put(angles.sin() * scale)
        return cos.to(dtype), sin.to(dtype)

    def turns(self, answer: Any) -> Turns:
        """Frequencies, and the attention factor, in a module's answer for position 1."""
        angles, amplitudes = polar(answer)
        places = self._put(torch.arange(self.count, device="cpu")).tolist()
        first = [places.index(feature) for feature in range(self.count)]
        return Turns(angles[first], float(amplitudes.max()))

    def _put(self, values: Tensor) -> Tensor:
        if isinstance(self.features, str):
            return ARRANGED[self.features](values)
        return values[..., torch.tensor(self.features, device=values.device)]


def polar(answer: Any) -> tuple[Tensor, Tensor]:
    """Angles and amplitudes `[values]` in a module's answer for one token.

    Raises:
        ValueError: the answer has more axes than batch, length and features.
    """
    is_complex = isinstance(answer, Tensor)
    cos, sin = (answer.real, answer.imag) if is_complex else answer
    if cos.ndim != 3:
        raise ValueError("more than batch, length and features")
    return torch.atan2(sin, cos).flatten(), torch.hypot(sin, cos).flatten()


def find(module: nn.Module, layer_type: str | None, count: int) -> Layout:
    """The layout of a stock module with buffers that are not on the meta device.

    Args:
        module: a rotary module; it is not changed.
        layer_type: of the rotation, None where the module has one.
        count: its number of features.

    Raises:
        RopeConfigError: its answer is not one angle a token and feature.
    """
    known = torch.arange(1, count + 1, dtype=torch.float32, device="cpu") * (3.0 / (count + 1))
    try:
        with torch.device("cpu"), torch.no_grad():
            probe = _Probe(module, layer_type, known)
            answer = probe.ask(torch.ones(1, 1, dtype=torch.int64))
            angles, amplitudes = polar(answer)
            features = _features(angles, known)
            is_complex = isinstance(answer, Tensor)
            casts = is_complex or probe.dtype(torch.bfloat16) == torch.bfloat16
            axes = _axes(probe, known, features)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise _unknown(module) from error
    if features is None or float(amplitudes.max() - amplitudes.min()) > 1e-5:
        raise _unknown(module)
    scale = probe.scale(float(amplitudes[0]))
    return Layout(features, count, is_complex, casts, axes, scale)


class _Probe:
    """A module with frequencies of our choice."""

    def __init__(self, module: nn.Module, layer_type: str | None, frequencies: Tensor) -> None:
        start = prefix(layer_type)
        self.module: Any = copy.copy(module)
        self.module._buffers = dict(module._buffers)
        for name in (f"{start}inv_freq", f"{start}original_inv_freq"):
            self.module._buffers[name] = frequencies
        self.keywords = keywords(layer_type)
        self.stated = getattr(module, f"{start}attention_scaling", None)

    def ask(self, positions: Tensor, dtype: torch.dtype = torch.float32) -> Any:
        return self.module.forward(torch.zeros(1, dtype=dtype), positions, **self.keywords)

    def dtype(self, dtype: torch.dtype) -> torch.dtype:
        cos: Tensor = self.ask(torch.ones(1, 1, dtype=torch.int64), dtype)[0]
        return cos.dtype

    def scale(self, measured: float) -> float:
        """The factor that the module states, where it is the one that it multiplies by."""
        stated = self.stated
        if stated is not None and math.isclose(float(stated), measured, rel_tol=1e-5):
            return float(stated)
        return measured


def _features(angles: Tensor, known: Tensor) -> str | tuple[int, ...] | None:
    for name, arranged in ARRANGED.items():
        wanted = arranged(known)
        if wanted.shape == angles.shape and torch.allclose(wanted, angles, atol=1e-4):
            return name
    nearest = (angles[:, None] - known).abs().min(dim=-1)
    places = tuple(nearest.indices.tolist())
    complete = set(places) == set(range(len(known)))
    return places if complete and float(nearest.values.max()) < 1e-4 else None


def _axes(
    probe: _Probe, known: Tensor, features: str | tuple[int, ...] | None
) -> tuple[int, ...] | None:
    """Axis of each feature, for a module that takes positions `[axes, batch, length]`."""
    order = torch.arange(len(known))
    if isinstance(features, str):
        order = ARRANGED[features](order)
    elif features is not None:
        order = torch.tensor(features)
    for count in range(2, _MOST_AXES + 1):
        found: list[int | None] = [None] * len(known)
        for axis in range(count):
            positions = torch.zeros(count, 1, 1, dtype=torch.int64)
            positions[axis] = 1
            try:
                angles, _ = polar(probe.ask(positions))
            except (IndexError, RuntimeError, ValueError):
                break
            for j in order[angles != 0].tolist():
                found[j] = axis
        else:
            if None not in found:
                return tuple(axis for axis in found if axis is not None)
    return None


def _unknown(module: nn.Module) -> RopeConfigError:
    """The reason why no layout was found."""
    if "rope_init_fn(" in inspect.getsource(type(module).forward):
        return RopeConfigError(
            f"rope_type: {type(module).__name__} computes its frequencies anew at each call and "
            "would not follow those that it is given; allowed: families whose module keeps them"
        )
    return RopeConfigError(
        f"rope_type: {type(module).__name__} turns by something else than one angle a token and "
        "feature; allowed: families whose rotary module returns cos and sin of such angles"
    )
