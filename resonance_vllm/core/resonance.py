"""Resonance: wavelengths rounded to integers (Algorithm 1 of arXiv 2403.00071)."""

import math

import torch
from torch import Tensor

# Integers up to here are exact in float64, and no position comes near.
LONGEST = 2.0**53


def round_wavelengths(inv_freq: Tensor) -> Tensor:
    """Nearest integer wavelength of each feature.

    Args:
        inv_freq: radians a token, float64 `[dim/2]`. float32 is refused: at long wavelengths it
            rounds to a neighbouring integer.

    Returns:
        int64 `[dim/2]`, from 1 to 2**53 tokens.

    Raises:
        TypeError: `inv_freq` is not float64.
    """
    if inv_freq.dtype != torch.float64:
        raise TypeError(f"inv_freq: {inv_freq.dtype} given; rounding needs float64")
    return (2 * math.pi / inv_freq).round().clamp(1, LONGEST).to(torch.int64)
