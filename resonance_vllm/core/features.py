"""What settings do to every feature: what commands print and pictures draw.

Feature gap: how far the rotated features of test positions lie from those seen in training,
`gap_j = max over n in [L, s*L) of min over m in [0, L) of |e^(i*n*theta_j) - e^(i*m*theta_j)|`:
for every test position the nearest training position, then the worst of them. (Equation 8 of
arXiv 2403.00071 as printed takes the minimum over both; its theorem and text mean this.)
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.core.frequencies import Rotation, closed_form_rotation, critical_dimension
from resonance_vllm.core.phase import rotation_angles
from resonance_vllm.core.spec import RopeSpec

FEATURE, WINDOW = 6, 64
"""Figure 1 of the paper shows 64 training and 64 test positions of feature 6."""


def rope_features(
    spec: RopeSpec, dim: int, original: int, factor: float, seq_len: int | None = None
) -> dict[str, Any]:
    """Frequencies and what follows from them; arguments as for `feature_gap`."""
    gaps = feature_gap(spec, dim, original, factor, seq_len)
    rotation = closed_form_rotation(spec, dim, seq_len)
    return {
        "inv_freq": rotation.inv_freq.tolist(),
        "wavelengths": rotation.wavelengths.tolist(),
        "attention_factor": spec.method.compute_attention_factor(),
        "critical_dimension": critical_dimension(rotation.wavelengths, original),
        "feature_gap": gaps.tolist(),
    }


def angles_near_native_length(
    specs: Sequence[RopeSpec], dim: int, original: int, seq_len: int | None = None
) -> tuple[int, list[int], list[list[float]]]:
    """Angles of one feature on both sides of the training length, as in Figure 1 of the paper.

    Returns:
        The feature, as many positions below `L` as from it on, and the angles of each settings.
    """
    feature, window = min(FEATURE, dim // 2 - 1), min(WINDOW, original)
    positions = torch.arange(original - window, original + window)
    rotations = [closed_form_rotation(spec, dim, seq_len) for spec in specs]
    shown = [_angles(each, feature, positions).tolist() for each in rotations]
    return feature, positions.tolist(), shown


def feature_gap(
    spec: RopeSpec, dim: int, original: int, factor: float, seq_len: int | None = None
) -> Tensor:
    """Gap of every feature between training positions `[0, L)` and test positions `[L, s*L)`.

    `original` is `L` in tokens, `factor` is `s`; with `s = 1` every gap is 0.

    Returns:
        Distances of unit vectors without attention factor, float64 `[dim/2]`, from 0 to 2.

    Raises:
        RopeConfigError: `original` or `factor` is below 1.
    """
    if not (original >= 1 and 1 <= factor < math.inf):
        raise RopeConfigError(f"original, factor: {original}, {factor} are not at least 1 each")
    rotation = closed_form_rotation(spec, dim, seq_len)
    trained, tested = torch.arange(original), torch.arange(original, int(original * factor))
    gaps = [
        angular_gap(*(_angles(rotation, feature, at) for at in (trained, tested)))
        for feature in range(dim // 2)
    ]
    return torch.stack(gaps)


def _angles(rotation: Rotation, feature: int, positions: Tensor) -> Tensor:
    """Angles of one feature within [0, 2*pi), float64 `[positions]`: what Figure 1 draws."""
    own = slice(feature, feature + 1)
    one = Rotation(rotation.inv_freq[own], rotation.periods[own])
    return rotation_angles(positions, one)[:, 0].remainder(2 * math.pi)


def angular_gap(trained: Tensor, tested: Tensor) -> Tensor:
    """Largest distance of a tested angle to its nearest trained one, on the unit circle.

    Both are angles in [0, 2*pi), float64 `[m]` and `[n]`, at least one trained; no tested one gives
    a gap of 0.
    """
    if len(tested) == 0:
        return trained.new_zeros(())
    around = trained.sort().values
    around = torch.cat([around[-1:] - 2 * math.pi, around, around[:1] + 2 * math.pi])
    after = torch.searchsorted(around, tested).clamp(1, len(around) - 1)
    apart = torch.minimum((tested - around[after - 1]).abs(), (around[after] - tested).abs())
    return 2 * (apart.max() / 2).sin()
