r"""What RoPE settings do to every feature: what commands print and figures draw.

The feature gap says how far the rotated feature of a test position lies from all those that
training has seen. Feature `j` of position `n` is the unit vector `e^(i n theta_j)`, so

    gap_j = max over n in [L, s*L) of min over m in [0, L) of |e^(i n theta_j) - e^(i m theta_j)|

where `L` is the original context length, `s` the factor, and the distance of two angles `a`, `b` on
the circle is `2 |sin((a - b) / 2)|`. For every test position the nearest training position, then
the worst of them. Equation 8 of the paper (arXiv 2403.00071) as printed takes the minimum over
both; its Theorem 1 and its text mean this.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.core.frequencies import Rotation, closed_form_rotation, critical_dimension
from resonance_vllm.core.phase import rotation_angles
from resonance_vllm.core.spec import RopeSpec

FIGURE_FEATURE = 6
FIGURE_WINDOW = 64
"""Figure 1 of the paper shows 64 training and 64 test positions of feature 6."""


@dataclass(frozen=True)
class RopeFeatures:
    """What settings do to every feature, in closed form and float64.

    Attributes:
        inv_freq: inverse frequencies in radians per token, `[dim/2]`.
        wavelengths: `2 pi / inv_freq` in tokens, `[dim/2]`; infinite where a feature is not
            rotated.
        attention_factor: what cos and sin are multiplied by.
        critical_dimension: index of the first feature whose wavelength is at least `L`.
        feature_gap: distances on the unit circle from 0 to 2, `[dim/2]`; see this module.
    """

    inv_freq: list[float]
    wavelengths: list[float]
    attention_factor: float
    critical_dimension: int
    feature_gap: list[float]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON holds them."""
        return asdict(self)


def rope_features(
    spec: RopeSpec, dim: int, original: int, factor: float, seq_len: int | None = None
) -> RopeFeatures:
    """Compute frequencies and what follows from them.

    Args:
        spec: complete settings.
        dim: rotated dimensions of a head, even.
        original: original context length `L` in tokens.
        factor: `s`; test positions are those from `L` to `s*L`.
        seq_len: current length in tokens, for methods that depend on it; None is up to `L`.

    Raises:
        RopeConfigError: `dim`, `original`, `factor` or `seq_len` is out of range.
    """
    gaps = feature_gap(spec, dim, original, factor, seq_len)
    rotation = closed_form_rotation(spec, dim, seq_len)
    return RopeFeatures(
        inv_freq=rotation.inv_freq.tolist(),
        wavelengths=rotation.wavelengths.tolist(),
        attention_factor=spec.method.compute_attention_factor(),
        critical_dimension=critical_dimension(rotation.wavelengths, original),
        feature_gap=gaps.tolist(),
    )


def angles_near_original_length(
    specs: Sequence[RopeSpec], dim: int, original: int, seq_len: int | None = None
) -> tuple[int, list[int], list[list[float]]]:
    """Compute the angles of one feature on both sides of `L`, as Figure 1 of the paper draws them.

    Args:
        specs: complete settings, one curve each.
        dim: rotated dimensions of a head, even.
        original: original context length `L` in tokens.
        seq_len: as for `rope_features`.

    Returns:
        The index of the feature; positions, as many below `L` as from it on; and for each of
        `specs` the angles in [0, 2 pi) at these positions.
    """
    feature = min(FIGURE_FEATURE, dim // 2 - 1)
    window = min(FIGURE_WINDOW, original)
    positions = torch.arange(original - window, original + window)
    curves = []
    for spec in specs:
        rotation = closed_form_rotation(spec, dim, seq_len)
        curves.append(_feature_angles(rotation, feature, positions).tolist())
    return feature, positions.tolist(), curves


def feature_gap(
    spec: RopeSpec, dim: int, original: int, factor: float, seq_len: int | None = None
) -> Tensor:
    """Compute the gap of every feature between training and test positions; see this module.

    Args:
        spec: complete settings.
        dim: rotated dimensions of a head, even.
        original: `L` in tokens; training positions are `[0, L)`.
        factor: `s`; test positions are `[L, s*L)`, none with `s = 1`, which gives gaps of 0.
        seq_len: as for `rope_features`.

    Returns:
        Distances of unit vectors, without attention factor: float64 `[dim/2]`, from 0 to 2.

    Raises:
        RopeConfigError: `original` or `factor` is below 1.
    """
    if not (original >= 1 and 1 <= factor < math.inf):
        raise RopeConfigError(f"original, factor: {original}, {factor} are not at least 1 each")
    rotation = closed_form_rotation(spec, dim, seq_len)
    training_positions = torch.arange(original)
    test_positions = torch.arange(original, int(original * factor))
    gaps = []
    for feature in range(dim // 2):
        trained = _feature_angles(rotation, feature, training_positions)
        tested = _feature_angles(rotation, feature, test_positions)
        gaps.append(angular_gap(trained, tested))
    return torch.stack(gaps)


def _feature_angles(rotation: Rotation, feature: int, positions: Tensor) -> Tensor:
    """Return the angles of one feature in [0, 2 pi), float64 `[positions]`."""
    one = slice(feature, feature + 1)
    alone = Rotation(rotation.inv_freq[one], rotation.periods[one])
    return rotation_angles(positions, alone)[:, 0].remainder(2 * math.pi)


def angular_gap(trained: Tensor, tested: Tensor) -> Tensor:
    """Compute the largest distance of a tested angle to its nearest trained one.

    Args:
        trained: angles in [0, 2 pi), float64 `[m]`, at least one.
        tested: angles in [0, 2 pi), float64 `[n]`.

    Returns:
        The distance of two points on the unit circle, a scalar from 0 to 2; 0 without a tested
        angle.
    """
    if len(tested) == 0:
        return trained.new_zeros(())
    circle = trained.sort().values
    # The last angle again before the first one, and the first one after the last: neighbours
    # across zero.
    circle = torch.cat([circle[-1:] - 2 * math.pi, circle, circle[:1] + 2 * math.pi])
    above = torch.searchsorted(circle, tested).clamp(1, len(circle) - 1)
    to_lower = (tested - circle[above - 1]).abs()
    to_upper = (circle[above] - tested).abs()
    largest = torch.minimum(to_lower, to_upper).max()
    return 2 * (largest / 2).sin()
