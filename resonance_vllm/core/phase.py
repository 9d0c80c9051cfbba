"""cos and sin of the rotation angles, with the exact phase where a feature has a period.

A float32 `position * inv_freq` is wrong by 1e-2 at 131 thousand positions. With a wavelength of P
tokens the angle depends only on `position mod P`, so two positions one period apart get the very
same numbers: Theorem 1 of arXiv 2403.00071 holds bit for bit.
"""

import math

import torch
from torch import Tensor

from resonance_vllm.core.frequencies import Rotation

# Positions built together.
_BLOCK = 4096


def rotation_angles(
    position_ids: Tensor, rotation: Rotation, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Angles of non-negative positions `[...]`, `[..., features]` radians; exact in [0, 2*pi).

    The rotation is on the same device; `dtype` is that of the computation and the result.
    """
    at = position_ids.to(torch.int64).unsqueeze(-1)
    periods = rotation.periods.clamp(min=1)
    exact = (at % periods).to(dtype) * (2 * math.pi / periods.to(dtype))
    return torch.where(rotation.periods > 0, exact, at.to(dtype) * rotation.inv_freq.to(dtype))


def cos_sin_table(
    rotation: Rotation,
    scale: float,
    rows: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Tensor:
    """The table that serving engines index by position, `[rows, 2 * features]`: cos, then sin.

    With an exact phase all features turn in float64. A rotation without any takes the float32 angle
    `position * inv_freq`, as transformers and vLLM do, so that the two agree to the bit. `scale` is
    the attention factor.
    """
    rotation = rotation.to(device)
    half = len(rotation.periods)
    angle_dtype = rotation.inv_freq.dtype if rotation.exact else torch.float32
    table = torch.empty(rows, 2 * half, dtype=dtype, device=device)
    for start in range(0, rows, _BLOCK):
        block = table[start : start + _BLOCK]
        positions = torch.arange(start, start + len(block), device=device)
        turned = rotation_angles(positions, rotation, angle_dtype)
        block[:, :half] = turned.cos() * scale
        block[:, half:] = turned.sin() * scale
    return table
