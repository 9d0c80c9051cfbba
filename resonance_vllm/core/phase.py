"""cos and sin of the rotation angles, with the exact phase where wavelengths are integers.

A float32 `position * inv_freq` is wrong by 1e-2 at 131 thousand positions. With an integer
wavelength the angle depends only on `position mod wavelength`, so two positions one wavelength
apart get the very same numbers: Theorem 1 of arXiv 2403.00071 holds bit for bit.
"""

import math

import torch
from torch import Tensor

from resonance_vllm.core.frequencies import attention_factor, integer_wavelengths, inv_freq
from resonance_vllm.core.spec import RopeSpec

# Features built together: their scratch rows are 8/128 of a cache of head size 128.
_GROUP = 4


def exact_angles(
    positions: Tensor, wavelengths: Tensor, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Angles in [0, 2*pi) of integer wavelengths.

    Args:
        positions: non-negative integers `[...]`.
        wavelengths: int64 `[features]` on the same device.
        dtype: of the result; float32 for devices without float64.

    Returns:
        `[..., features]` radians.
    """
    residues = positions.to(torch.int64).unsqueeze(-1) % wavelengths
    return residues.to(dtype) * (2 * math.pi / wavelengths.to(dtype))


def naive_angles(positions: Tensor, frequencies: Tensor) -> Tensor:
    """`position * inv_freq` in the dtype of `frequencies`, `[..., features]` radians."""
    return positions.to(frequencies.dtype).unsqueeze(-1) * frequencies


def cos_sin(
    spec: RopeSpec,
    dim: int,
    positions: Tensor,
    dtype: torch.dtype = torch.float64,
    seq_len: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Values of cos and sin for any positions, attention factor included.

    Args:
        spec: the settings; with Resonance the phase is exact.
        dim: rotated dimensions of a head.
        positions: non-negative integers `[...]`.
        dtype: of the result. The angle is computed in float64, whatever it is.
        seq_len: current length, for `dynamic` and `longrope`.

    Returns:
        Two tensors `[..., dim/2]` on the device of `positions`.
    """
    if spec.resonance:
        lengths = integer_wavelengths(spec, dim, seq_len).to(positions.device)
        angles = exact_angles(positions, lengths)
    else:
        angles = naive_angles(positions, inv_freq(spec, dim, seq_len).to(positions.device))
    scale = attention_factor(spec)
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

    Args:
        spec: the settings.
        dim: rotated dimensions of a head.
        rows: positions `0..rows-1`.
        dtype: of the table.
        device: where it is built.
        seq_len: current length, for `dynamic` and `longrope`.

    Returns:
        `[rows, dim]`: cos of every feature, then sin. Peak memory is the table and 1/16 of it.
    """
    cache = torch.empty(rows, dim, dtype=dtype, device=device)
    half = dim // 2
    scale = attention_factor(spec)
    lengths = integer_wavelengths(spec, dim, seq_len).tolist() if spec.resonance else None
    frequencies = inv_freq(spec, dim, seq_len).tolist()
    scratch = torch.empty(2 * _GROUP, rows, dtype=dtype, device=device)
    for start in range(0, half, _GROUP):
        stop = min(start + _GROUP, half)
        for row, feature in enumerate(range(start, stop)):
            period = rows if lengths is None else min(lengths[feature], rows)
            steps = torch.arange(
                period,
                dtype=torch.float32 if lengths is None else torch.float64,
                device=device,
            )
            angles = steps * frequencies[feature]
            _repeat_into(scratch[row], (angles.cos() * scale).to(dtype))
            _repeat_into(scratch[_GROUP + row], (angles.sin() * scale).to(dtype))
        count = stop - start
        cache[:, start:stop] = scratch[:count].t()
        cache[:, half + start : half + stop] = scratch[_GROUP : _GROUP + count].t()
    return cache


def _repeat_into(target: Tensor, period: Tensor) -> None:
    """Fill `target` with literal copies of `period`, doubling what is already there."""
    filled = len(period)
    target[:filled] = period
    while filled < len(target):
        count = min(filled, len(target) - filled)
        target[filled : filled + count] = target[:count]
        filled += count
