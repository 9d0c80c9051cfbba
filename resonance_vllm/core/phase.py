"""cos and sin of rotation angles, with the exact phase where a feature has a period.

In float32 the product `position * inv_freq` is wrong by 1e-2 radians at 131 thousand positions. A
feature with an integer wavelength of `P` tokens needs no such product: its angle depends on
`position mod P` alone, an exact integer. Two positions one period apart then have bitwise identical
cos and sin, and Theorem 1 of Resonance RoPE (arXiv 2403.00071) holds in floating point, not only on
paper.
"""

import math

import torch
from torch import Tensor

from resonance_vllm.core.frequencies import Rotation

_BLOCK_ROWS = 4096
"""Rows of a table that are computed together: bounds the memory of float64 intermediates."""


def rotation_angles(
    position_ids: Tensor, rotation: Rotation, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Compute the angle of every feature at every position.

    Args:
        position_ids: non-negative positions in tokens, integers `[...]`.
        rotation: on the same device.
        dtype: of the computation and of the result.

    Returns:
        Radians, `[..., features]`; in [0, 2 pi) where a feature has a period.
    """
    positions = position_ids.to(torch.int64).unsqueeze(-1)
    # 1 stands in for "no period", so that the division is defined; `where` discards the result.
    periods = rotation.periods.clamp(min=1)
    exact = (positions % periods).to(dtype) * (2 * math.pi / periods.to(dtype))
    product = positions.to(dtype) * rotation.inv_freq.to(dtype)
    return torch.where(rotation.periods > 0, exact, product)


def cos_sin_table(
    rotation: Rotation,
    attention_factor: float,
    rows: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Build the table that serving engines index by position.

    With an exact phase the angles of all features are float64. A rotation without any takes the
    float32 product `position * inv_freq`, as transformers and vLLM do, so that tables of stock
    methods are bitwise identical to those of these libraries.

    Args:
        rotation: of every feature.
        attention_factor: what cos and sin are multiplied by, before the cast to `dtype`.
        rows: number of positions, from 0.
        dtype: of the table.
        device: of the table.

    Returns:
        `[rows, 2 * features]`: cos of every feature, then sin.
    """
    rotation = rotation.to(device)
    features = len(rotation.periods)
    angle_dtype = rotation.inv_freq.dtype if rotation.exact else torch.float32
    table = torch.empty(rows, 2 * features, dtype=dtype, device=device)
    for start in range(0, rows, _BLOCK_ROWS):
        block = table[start : start + _BLOCK_ROWS]
        positions = torch.arange(start, start + len(block), device=device)
        angles = rotation_angles(positions, rotation, angle_dtype)
        block[:, :features] = angles.cos() * attention_factor
        block[:, features:] = angles.sin() * attention_factor
    return table
