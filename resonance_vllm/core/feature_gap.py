"""Feature gap: how far the rotated features of test positions lie from those seen in training.

`gap_j = max over n in [L, s*L) of min over m in [0, L) of |e^(i*n*theta_j) - e^(i*m*theta_j)|`:
for every test position the nearest training position, then the worst of them. (Equation 8 of
arXiv 2403.00071 as printed takes the minimum over both; its theorem and text mean this.)
"""

import math

import torch
from torch import Tensor

from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.core.frequencies import integer_wavelengths, inv_freq
from resonance_vllm.core.phase import exact_angles, naive_angles
from resonance_vllm.core.spec import RopeSpec


def rotation_angles(
    spec: RopeSpec, dim: int, positions: Tensor, seq_len: int | None = None
) -> Tensor:
    """Angles within [0, 2*pi), float64 `[features, positions]`: what Figure 1 draws."""
    if spec.resonance:
        angles = exact_angles(positions, integer_wavelengths(spec, dim, seq_len))
    else:
        angles = naive_angles(positions, inv_freq(spec, dim, seq_len)).remainder(2 * math.pi)
    return angles.t().contiguous()


def feature_gap(
    spec: RopeSpec, dim: int, original: int, factor: float, seq_len: int | None = None
) -> Tensor:
    """Gap of every feature between training positions `[0, L)` and test positions `[L, s*L)`.

    Args:
        spec: the settings; the attention factor does not count.
        dim: rotated dimensions of a head.
        original: training length `L` in tokens.
        factor: `s`; with `s = 1` there is no test position and every gap is 0.
        seq_len: length at which a `dynamic` or `longrope` spec is looked at.

    Returns:
        Distances of unit vectors, float64 `[dim/2]`, from 0 to 2.

    Raises:
        RopeConfigError: `original` or `factor` is below 1.
    """
    if original < 1 or factor < 1:
        raise RopeConfigError(
            f"original, factor: {original}, {factor} are not allowed; allowed: at least 1 each"
        )
    trained = rotation_angles(spec, dim, torch.arange(original), seq_len)
    tested = rotation_angles(spec, dim, torch.arange(original, int(original * factor)), seq_len)
    return torch.stack([gap_of_angles(a, b) for a, b in zip(trained, tested, strict=True)])


def gap_of_angles(trained: Tensor, tested: Tensor) -> Tensor:
    """Largest distance of a tested angle to its nearest trained one, on the unit circle.

    Args:
        trained: angles in [0, 2*pi), float64 `[m]`, at least one.
        tested: angles in the same range, float64 `[n]`; none gives a gap of 0.

    Returns:
        A scalar from 0 to 2.
    """
    if len(tested) == 0:
        return trained.new_zeros(())
    around = trained.sort().values
    around = torch.cat([around[-1:] - 2 * math.pi, around, around[:1] + 2 * math.pi])
    after = torch.searchsorted(around, tested).clamp(1, len(around) - 1)
    apart = torch.minimum((tested - around[after - 1]).abs(), (around[after] - tested).abs())
    return 2 * (apart.max() / 2).sin()


def cache_gap(cache: Tensor, original: int) -> Tensor:
    """Feature gap as it stands in a cos/sin table, rounding included.

    Args:
        cache: `[rows, dim]`, cos of every feature, then sin, any float dtype.
        original: training length `L`: rows below it are training positions.

    Returns:
        float64 `[dim/2]`: distance of the stored pairs, exactly 0 where every later pair stands
        bit for bit among the trained ones.
    """
    cos, sin = cache.to(torch.float64).chunk(2, dim=-1)
    return torch.stack([_pair_gap(cos[:, j], sin[:, j], original) for j in range(cos.shape[1])])


def _pair_gap(cos: Tensor, sin: Tensor, original: int) -> Tensor:
    pairs = torch.stack([cos, sin], dim=-1)
    trained, tested = pairs[:original].unique(dim=0), pairs[original:].unique(dim=0)
    if len(tested) == 0:
        return cos.new_zeros(())
    order = torch.atan2(trained[:, 1], trained[:, 0]).argsort()
    trained = trained[order]
    angles = torch.atan2(trained[:, 1], trained[:, 0])
    found = torch.searchsorted(angles, torch.atan2(tested[:, 1], tested[:, 0]))
    count = len(trained)
    # Neighbours on both sides; rounding can give two stored pairs the same angle, hence three.
    candidates = trained[torch.stack([found - 1, found, found + 1]) % count]
    distances = (candidates - tested).pow(2).sum(-1).sqrt()
    return distances.min(dim=0).values.max()
