"""Frequencies and wavelengths of settings in float64, Resonance included.

Resonance rounds wavelengths to integers (Algorithm 1 of arXiv 2403.00071). Everywhere `dim` is the
number of rotated dimensions of a head, and `seq_len` the current length in tokens, for `dynamic`
and `longrope`; None is up to `L`.
"""

import math

import torch
from torch import Tensor

from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.core.spec import RopeSpec

# Integers up to here are exact in float64, and no position comes near.
LONGEST = 2.0**53


def inv_freq(spec: RopeSpec, dim: int, seq_len: int | None = None) -> Tensor:
    """Inverse frequencies: radians a token, float64 `[dim/2]` on the CPU.

    Raises:
        RopeConfigError: `dim` is odd or does not fit, or the method lacks a setting.
    """
    if spec.resonance:
        return 2 * math.pi / wavelengths(spec, dim, seq_len)
    if dim < 2 or dim % 2:
        raise RopeConfigError(f"dim: {dim} is not allowed; allowed: an even number of at least 2")
    return spec.method.frequencies(dim, seq_len)


def wavelengths(spec: RopeSpec, dim: int, seq_len: int | None = None) -> Tensor:
    """Tokens a full turn takes, float64 `[dim/2]`; integers with Resonance."""
    if spec.resonance:
        return integer_wavelengths(spec, dim, seq_len).double()
    return 2 * math.pi / inv_freq(spec, dim, seq_len)


def integer_wavelengths(spec: RopeSpec, dim: int, seq_len: int | None = None) -> Tensor:
    """The method's wavelengths as Resonance rounds them, int64 `[dim/2]`."""
    return round_wavelengths(inv_freq(RopeSpec(spec.method), dim, seq_len))


def round_wavelengths(frequencies: Tensor) -> Tensor:
    """Nearest integer wavelength of each feature, int64 `[dim/2]`, from 1 to 2**53 tokens.

    Raises:
        TypeError: the frequencies are not float64; at long wavelengths float32 rounds to a
            neighbouring integer.
    """
    if frequencies.dtype != torch.float64:
        raise TypeError(f"inv_freq: {frequencies.dtype} given; rounding needs float64")
    return (2 * math.pi / frequencies).round().clamp(1, LONGEST).to(torch.int64)


def critical_dimension(lengths: Tensor, original: int) -> int:
    """Index of the first feature whose wavelength is at least `L`, or the number of features.

    Features before it are the paper's pre-critical ones: training has seen them turn once.
    """
    reached = (lengths >= original).nonzero()
    return int(reached[0]) if len(reached) else len(lengths)
