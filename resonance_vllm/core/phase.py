"""cos and sin of the rotation angles, with the exact phase where wavelengths are integers.

A float32 `position * inv_freq` is wrong by 1e-2 at 131 thousand positions. With an integer
wavelength the angle depends only on `position mod wavelength`, so two positions one wavelength
apart get the very same numbers: Theorem 1 of arXiv 2403.00071 holds bit for bit.
"""

import math

import torch
from torch import Tensor

from resonance_vllm.core import frequencies
from resonance_vllm.core.spec import RopeSpec

# Positions built together.
_BLOCK = 4096


def exact_angles(
    positions: Tensor, wavelengths: Tensor, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Angles in [0, 2*pi) of integer wavelengths, `[..., features]` radians.

    Args:
        positions: non-negative integers `[...]`.
        wavelengths: int64 `[features]` on the same device.
        dtype: of the result; float32 for devices without float64.
    """
    residues = positions.to(torch.int64).unsqueeze(-1) % wavelengths
    return residues.to(dtype) * (2 * math.pi / wavelengths.to(dtype))


def naive_angles(positions: Tensor, inv_freq: Tensor) -> Tensor:
    """`position * inv_freq` in the dtype of `inv_freq`, `[..., features]` radians."""
    return positions.to(inv_freq.dtype).unsqueeze(-1) * inv_freq


def rotation_angles(
    spec: RopeSpec, dim: int, positions: Tensor, seq_len: int | None = None
) -> Tensor:
    """Angles in float64, exact with Resonance, `[..., features]` radians."""
    if spec.resonance:
        lengths = frequencies.integer_wavelengths(spec, dim, seq_len)
        return exact_angles(positions, lengths.to(positions.device))
    return naive_angles(positions, frequencies.inv_freq(spec, dim, seq_len).to(positions.device))


def cos_sin(
    spec: RopeSpec,
    dim: int,
    positions: Tensor,
    dtype: torch.dtype = torch.float64,
    seq_len: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Values of cos and sin for any positions `[...]`, attention factor included.

    Two tensors `[..., dim/2]` on the device of `positions`. The angle is computed in float64,
    whatever the `dtype` of the result.
    """
    angles = rotation_angles(spec, dim, positions, seq_len)
    scale = spec.method.scale()
    return (angles.cos() * scale).to(dtype), (angles.sin() * scale).to(dtype)


def cos_sin_cache(
    spec: RopeSpec,
    dim: int,
    rows: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    seq_len: int | None = None,
) -> Tensor:
    """The table that serving engines index by position, attention factor included.

    With Resonance the first period of each feature is computed once and repeated literally. Other
    methods take the float32 angle `position * inv_freq`, as transformers and vLLM do, so that the
    two agree to the bit.

    Returns:
        `[rows, dim]`: cos of every feature, then sin, for positions `0..rows-1`. Memory beyond the
        table: a few MiB, and the first periods (about an eighth of a table of 131,072 rows).
    """
    scale, half = spec.method.scale(), dim // 2
    # Wavelengths grow geometrically, so the first periods are a small part of the table.
    lengths = frequencies.wavelengths(spec, dim, seq_len).tolist() if spec.resonance else []
    periods = {
        feature: (int(length), *_first_period(int(length), scale, dtype, device))
        for feature, length in enumerate(lengths)
        if length < rows
    }
    slow = [j for j in range(half) if j not in periods]
    rest = torch.tensor(slow, dtype=torch.int64, device=device)
    angle_dtype = torch.float64 if spec.resonance else torch.float32
    inv_freq = frequencies.inv_freq(spec, dim, seq_len).to(device)
    rest_inv_freq = inv_freq[rest].to(angle_dtype).unsqueeze(1)
    cache = torch.empty(rows, dim, dtype=dtype, device=device)
    # Features are contiguous here and positions in the table: blocks keep the transposition local.
    for start in range(0, rows, _BLOCK):
        count = min(_BLOCK, rows - start)
        block = torch.empty(dim, count, dtype=dtype, device=device)
        steps = torch.arange(start, start + count, dtype=angle_dtype, device=device)
        angles = rest_inv_freq * steps
        block[rest] = (angles.cos() * scale).to(dtype)
        block[half + rest] = (angles.sin() * scale).to(dtype)
        for feature, (length, cos, sin) in periods.items():
            offset = start % length
            block[feature] = cos[offset : offset + count]
            block[half + feature] = sin[offset : offset + count]
        cache[start : start + count] = block.t()
    return cache


def _first_period(
    length: int, scale: float, dtype: torch.dtype, device: torch.device | str
) -> tuple[Tensor, Tensor]:
    """Cos and sin of an integer wavelength, literally repeated until one block beyond it."""
    angles = torch.arange(length, dtype=torch.float64, device=device) * (2 * math.pi / length)
    repeated = torch.arange(length + _BLOCK, device=device) % length
    cos, sin = (angles.cos() * scale).to(dtype), (angles.sin() * scale).to(dtype)
    return cos[repeated], sin[repeated]
