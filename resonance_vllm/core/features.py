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

from resonance_vllm.core.frequencies import Rotation, critical_dimension, formula
from resonance_vllm.core.phase import angles
from resonance_vllm.core.spec import RopeSpec
from resonance_vllm.errors import RopeConfigError

# Figure 1 of the paper shows 64 training and 64 test positions of feature 6.
SHOWN_PERIODS = 3
MOST_POSITIONS = 2**22
"""Every feature of every position is looked at: beyond it takes minutes."""


def describe(
    spec: RopeSpec, dim: int, original: int, factor: float, seq_len: int | None = None
) -> dict[str, Any]:
    """Frequencies and what follows from them, for a training length `L` of `original` tokens.

    Feature gaps are looked for up to `factor * L`.
    """
    gaps = feature_gap(spec, dim, original, factor, seq_len)
    rotation = formula(spec, dim, seq_len)
    return {
        "inv_freq": rotation.inv_freq.tolist(),
        "wavelengths": rotation.wavelengths.tolist(),
        "attention_factor": spec.method.scale(),
        "critical_dimension": critical_dimension(rotation.wavelengths, original),
        "feature_gap": gaps.tolist(),
    }


def angles_around(
    specs: Sequence[RopeSpec], dim: int, original: int, seq_len: int | None = None
) -> tuple[int, list[int], list[list[float]]]:
    """Angles of one telling feature on both sides of the training length.

    Its drift over a training length is the easiest to see: of the features of the first settings
    with three or more periods within `L`, rounding moves it most.

    Returns:
        The feature, as many positions below `L` as from it on, and the angles of each settings.
    """
    lengths = formula(specs[0], dim, seq_len).wavelengths
    rounded = formula(RopeSpec(specs[0].method, resonance=True), dim, seq_len).wavelengths
    moved = ((rounded - lengths).abs() / lengths).where(rounded * SHOWN_PERIODS <= original, -1.0)
    # The two fastest features turn so quickly that single dots no longer make a line.
    moved[:2] = -2.0
    feature = int(moved.argmax())
    # Whole lengths would be a solid block of dots.
    window = min(original, max(64, SHOWN_PERIODS * int(rounded[feature])))
    positions = torch.arange(original - window, original + window)
    rotations = [formula(spec, dim, seq_len) for spec in specs]
    shown = [_angles(each, feature, positions).tolist() for each in rotations]
    return feature, positions.tolist(), shown


def feature_gap(
    spec: RopeSpec, dim: int, original: int, factor: float, seq_len: int | None = None
) -> Tensor:
    """Gap of every feature between training positions `[0, L)` and test positions `[L, s*L)`.

    Args:
        spec: the settings; the attention factor does not count.
        dim: rotated dimensions of a head.
        original: training length `L` in tokens.
        factor: `s`; with `s = 1` there is no test position and every gap is 0.
        seq_len: length in tokens, for `dynamic` and `longrope`.

    Returns:
        Distances of unit vectors, float64 `[dim/2]`, from 0 to 2.

    Raises:
        RopeConfigError: `original` or `factor` is below 1, or their product above `MOST_POSITIONS`.
    """
    # So written, a factor that is no number is refused as well.
    if not (original >= 1 and factor >= 1 and original * factor <= MOST_POSITIONS):
        raise RopeConfigError(
            f"original, factor: {original}, {factor} are not allowed; allowed: at least 1 each, "
            f"and a product of at most {MOST_POSITIONS:,}"
        )
    rotation = formula(spec, dim, seq_len)
    trained, tested = torch.arange(original), torch.arange(original, int(original * factor))
    gaps = [
        gap_of_angles(*(_angles(rotation, feature, at) for at in (trained, tested)))
        for feature in range(dim // 2)
    ]
    return torch.stack(gaps)


def _angles(rotation: Rotation, feature: int, positions: Tensor) -> Tensor:
    """Angles of one feature within [0, 2*pi), float64 `[positions]`: what Figure 1 draws."""
    own = slice(feature, feature + 1)
    one = Rotation(rotation.inv_freq[own], rotation.periods[own])
    return angles(positions, one)[:, 0].remainder(2 * math.pi)


def gap_of_angles(trained: Tensor, tested: Tensor) -> Tensor:
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
