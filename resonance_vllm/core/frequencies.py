"""Frequencies in float64: a method's formula on the features of a model, and Resonance on top.

Everywhere `dim` is the number of rotated dimensions of a head, and `seq_len` the current length in
tokens, for `dynamic` and `longrope`; None is up to `L`.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from resonance_vllm.common.errors import RopeConfigError, invalid_value_message
from resonance_vllm.core.method import MAX_TOKENS, Method
from resonance_vllm.core.spec import RopeSpec


@dataclass(frozen=True)
class Rotation:
    """What every feature of a module turns by: radians a token, float64 `[features]`.

    A feature with a period (tokens, int64 `[features]`) turns by the exact phase
    `2 pi (position mod period) / period`, one without (0) by `position * inv_freq`.
    """

    inv_freq: Tensor
    periods: Tensor

    @property
    def exact(self) -> bool:
        """Whether some features have the exact phase."""
        return bool((self.periods > 0).any())

    @property
    def wavelengths(self) -> Tensor:
        """Tokens a full turn takes, float64 `[features]`; infinite where a feature stands still."""
        return torch.where(self.periods > 0, self.periods.double(), 2 * math.pi / self.inv_freq)

    def to(self, device: torch.device | str) -> "Rotation":
        """The same on a device; frequencies become float32 where that has no float64."""
        dtype = torch.float32 if torch.device(device).type == "mps" else torch.float64
        return Rotation(self.inv_freq.to(dtype).to(device), self.periods.to(device))


def base_inv_freq(method: Method, plain: Tensor, seq_len: int | None = None) -> Tensor:
    """Frequencies of a method on a module by its formula, float64 `[features]` on the CPU.

    `plain` is what the module's library computes for it, `[features]`: it says how many there are,
    and which stand still, by 0.
    """
    turns = plain.detach().to("cpu") > 0
    return method.compute_inv_freq(2 * len(turns), seq_len) * turns


def rotation_from_base(spec: RopeSpec, base: Tensor) -> Rotation:
    """What a module turns by whose base method has the frequencies `base`.

    Without Resonance that is `base` itself. With it each wavelength is the nearest integer
    (Algorithm 1 of arXiv 2403.00071); a feature that stands still goes on doing so. A `base` that
    is not float64 is a TypeError: float32 rounds long wavelengths to a neighbouring integer.
    """
    if base.dtype != torch.float64:
        raise TypeError(f"inv_freq: {base.dtype} given; rounding needs float64")
    none = torch.zeros(len(base), dtype=torch.int64, device="cpu")
    if not spec.resonance:
        return Rotation(base, none)
    nearest = (2 * math.pi / base).clamp(1, MAX_TOKENS).round().to(torch.int64)
    periods = torch.where(base > 0, nearest, none)
    return Rotation(torch.where(base > 0, 2 * math.pi / periods.double(), base), periods)


def closed_form_rotation(spec: RopeSpec, dim: int, seq_len: int | None = None) -> Rotation:
    """The rotation in closed form, for no particular model.

    A RopeConfigError says that `dim` or `seq_len` does not fit, or the method lacks a setting.
    """
    if dim % 2 or dim < 2:
        raise RopeConfigError(invalid_value_message("dim", dim, "an even number from 2 on"))
    if seq_len is not None and seq_len < 1:
        raise RopeConfigError(invalid_value_message("seq_len", seq_len, "at least 1"))
    return rotation_from_base(spec, spec.method.compute_inv_freq(dim, seq_len))


def closed_form_inv_freq(spec: RopeSpec, dim: int, seq_len: int | None = None) -> Tensor:
    """Radians a token in closed form, Resonance included, float64 `[dim/2]` on the CPU."""
    return closed_form_rotation(spec, dim, seq_len).inv_freq


def critical_dimension(lengths: Tensor, original: int) -> int:
    """Index of the first feature whose wavelength is at least `L`, or the number of features.

    Features before it are the paper's pre-critical ones: training has seen them turn once.
    """
    reached = (lengths >= original).nonzero()
    return int(reached[0]) if len(reached) else len(lengths)
