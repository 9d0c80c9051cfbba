"""Inverse frequencies in float64: a method's formula, and Resonance on top of it.

Symbols, as in every module of this package: `b` is `rope_theta`, `d` (`dim`) the number of rotated
dimensions of a head, `j = 0 … d/2 - 1` a feature (a pair of dimensions), `theta_j` its inverse
frequency in radians per token, `lambda_j = 2 pi / theta_j` its wavelength in tokens, `s` the factor
and `L` the original context length. `seq_len` is the current length in tokens, which `dynamic` and
`longrope` depend on; None means any length up to `L`.

Everything is computed in float64 on the CPU and cast once, by the adapter of a library.
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
    """The rotation of every feature of a rotary module.

    At position `n` a feature with a period `P` has the angle `2 pi (n mod P) / P` (the exact
    phase), one without has `n * theta_j`.

    Attributes:
        inv_freq: inverse frequencies `theta_j` in radians per token, float64 `[features]`; 0 where
            a feature is not rotated.
        periods: periods `P` in tokens, int64 `[features]`; 0 where a feature has none.
    """

    inv_freq: Tensor
    periods: Tensor

    @property
    def exact(self) -> bool:
        """Return whether some features have the exact phase."""
        return bool((self.periods > 0).any())

    @property
    def wavelengths(self) -> Tensor:
        """Return wavelengths in tokens, float64 `[features]`; infinite where nothing rotates."""
        return torch.where(self.periods > 0, self.periods.double(), 2 * math.pi / self.inv_freq)

    def to(self, device: torch.device | str) -> "Rotation":
        """Return the rotation on a device; its frequencies are float32 where that has no float64."""
        dtype = torch.float32 if torch.device(device).type == "mps" else torch.float64
        return Rotation(self.inv_freq.to(dtype).to(device), self.periods.to(device))


def base_inv_freq(method: Method, plain: Tensor, seq_len: int | None = None) -> Tensor:
    """Compute a method's inverse frequencies for a module of a model.

    Args:
        method: complete settings, without Resonance.
        plain: inverse frequencies that the module's library computes for plain RoPE, `[features]`.
            They say how many features there are and, by 0, which are not rotated.
        seq_len: current length in tokens; None is up to `L`.

    Returns:
        Float64 `[features]` on the CPU.
    """
    is_rotated = plain.detach().to("cpu") > 0
    return method.compute_inv_freq(2 * len(is_rotated), seq_len) * is_rotated


def rotation_from_base(spec: RopeSpec, base: Tensor) -> Rotation:
    """Return the rotation of a module whose method, without Resonance, has the frequencies `base`.

    Without Resonance these are the frequencies. With it every wavelength is rounded to the nearest
    integer, `theta'_j = 2 pi / round(2 pi / theta_j)`, at least 1: Algorithm 1 of Resonance RoPE
    (arXiv 2403.00071). A feature then repeats after a whole number of tokens, so each position
    beyond `L` gives a feature with `lambda'_j <= L` a value that training has seen (Theorem 1).
    Halves round to even, as in torch and Python.

    Args:
        spec: complete settings; only `spec.resonance` is read.
        base: inverse frequencies in radians per token, float64 `[features]`; 0 stays 0.

    Raises:
        TypeError: `base` is not float64, in which float32 would have rounded long wavelengths to a
            neighbouring integer already.
    """
    if base.dtype != torch.float64:
        raise TypeError(f"inv_freq: {base.dtype} given; rounding needs float64")
    no_periods = torch.zeros(len(base), dtype=torch.int64, device="cpu")
    if not spec.resonance:
        return Rotation(base, no_periods)
    is_rotated = base > 0
    # MAX_TOKENS keeps infinite wavelengths of unrotated features within int64 until they are
    # masked.
    nearest = (2 * math.pi / base).clamp(1, MAX_TOKENS).round().to(torch.int64)
    periods = torch.where(is_rotated, nearest, no_periods)
    inv_freq = torch.where(is_rotated, 2 * math.pi / periods.double(), base)
    return Rotation(inv_freq, periods)


def closed_form_rotation(spec: RopeSpec, dim: int, seq_len: int | None = None) -> Rotation:
    """Compute the rotation of settings in closed form, for no particular model.

    Args:
        spec: complete settings.
        dim: rotated dimensions of a head, even.
        seq_len: current length in tokens; None is up to `L`.

    Raises:
        RopeConfigError: `dim` or `seq_len` does not fit, or the method lacks a setting.
    """
    if dim % 2 or dim < 2:
        raise RopeConfigError(invalid_value_message("dim", dim, "an even number from 2 on"))
    if seq_len is not None and seq_len < 1:
        raise RopeConfigError(invalid_value_message("seq_len", seq_len, "at least 1"))
    return rotation_from_base(spec, spec.method.compute_inv_freq(dim, seq_len))


def closed_form_inv_freq(spec: RopeSpec, dim: int, seq_len: int | None = None) -> Tensor:
    """Compute inverse frequencies in closed form, Resonance included.

    Args:
        spec: complete settings.
        dim: rotated dimensions of a head, even.
        seq_len: current length in tokens; None is up to `L`.

    Returns:
        Radians per token, float64 `[dim/2]` on the CPU.

    Raises:
        RopeConfigError: as for `closed_form_rotation`.
    """
    return closed_form_rotation(spec, dim, seq_len).inv_freq


def critical_dimension(wavelengths: Tensor, original: int) -> int:
    """Return the index of the first feature whose wavelength is at least `L`.

    Features before it are the paper's pre-critical ones: training has seen a full period of each.

    Args:
        wavelengths: in tokens, `[features]`, not decreasing.
        original: original context length `L` in tokens.

    Returns:
        The index; the number of features if every wavelength is below `L`.
    """
    post_critical = (wavelengths >= original).nonzero()
    return int(post_critical[0]) if len(post_critical) else len(wavelengths)
