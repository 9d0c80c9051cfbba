"""Frequencies and wavelengths of settings, Resonance included, in float64."""

import math

from torch import Tensor

from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.core.resonance import round_wavelengths
from resonance_vllm.core.spec import RopeSpec


def inv_freq(spec: RopeSpec, dim: int, seq_len: int | None = None) -> Tensor:
    """Inverse frequencies of a spec, Resonance included.

    Args:
        spec: the settings.
        dim: rotated dimensions of a head (`head_dim * partial_rotary_factor`), even.
        seq_len: current length in tokens, for `dynamic` and `longrope`; None is up to `L`.

    Returns:
        Radians a token, float64 `[dim/2]` on the CPU, non-increasing for every method but longrope.

    Raises:
        RopeConfigError: `dim` does not fit, or the method lacks a setting.
    """
    if dim < 2 or dim % 2:
        raise RopeConfigError(f"dim: {dim} is not allowed; allowed: an even number of at least 2")
    frequencies = spec.method.frequencies(dim, seq_len)
    if not spec.resonance:
        return frequencies
    return 2 * math.pi / round_wavelengths(frequencies).to(frequencies.dtype)


def wavelengths(spec: RopeSpec, dim: int, seq_len: int | None = None) -> Tensor:
    """Tokens a full turn takes, float64 `[dim/2]`; integers with Resonance."""
    if spec.resonance:
        return integer_wavelengths(spec, dim, seq_len).double()
    return 2 * math.pi / inv_freq(spec, dim, seq_len)


def integer_wavelengths(spec: RopeSpec, dim: int, seq_len: int | None = None) -> Tensor:
    """Resonance wavelengths, int64 `[dim/2]`.

    Raises:
        RopeConfigError: the spec has no Resonance, so its wavelengths are no integers.
    """
    if not spec.resonance:
        raise RopeConfigError(f"rope_type: {spec.rope_type!r} has no integer wavelengths")
    if dim < 2 or dim % 2:
        raise RopeConfigError(f"dim: {dim} is not allowed; allowed: an even number of at least 2")
    return round_wavelengths(spec.method.frequencies(dim, seq_len))


def critical_dimension(lengths: Tensor, original: int) -> int:
    """Index of the first feature whose wavelength is at least `L`.

    Args:
        lengths: wavelengths `[dim/2]` in tokens.
        original: trained length `L` in tokens.

    Returns:
        The index, or the number of features if every wavelength is shorter than `L`. Features
        before it are the paper's pre-critical ones: training has seen them turn once.
    """
    reached = (lengths >= original).nonzero()
    return int(reached[0]) if len(reached) else len(lengths)
