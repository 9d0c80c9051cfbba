"""What settings do to every feature, as plain numbers: what commands print and pictures draw."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from resonance_vllm.core import frequencies
from resonance_vllm.core.feature_gap import feature_gap, rotation_angles
from resonance_vllm.core.resonance import round_wavelengths
from resonance_vllm.core.spec import RopeSpec

# Figure 1 of the paper shows 64 training and 64 test positions of feature 6.
SHOWN_PERIODS = 3


def describe(
    spec: RopeSpec, dim: int, original: int, factor: float, seq_len: int | None = None
) -> dict[str, Any]:
    """Frequencies and what follows from them.

    Args:
        spec: the settings.
        dim: rotated dimensions of a head.
        original: training length `L` in tokens.
        factor: gaps are looked for up to `factor * L`.
        seq_len: length at which `dynamic` and `longrope` are looked at; None is up to `L`.
    """
    lengths = frequencies.wavelengths(spec, dim, seq_len)
    return {
        "inv_freq": frequencies.inv_freq(spec, dim, seq_len).tolist(),
        "wavelengths": lengths.tolist(),
        "attention_factor": spec.method.scale(),
        "critical_dimension": frequencies.critical_dimension(lengths, original),
        "feature_gap": feature_gap(spec, dim, original, factor, seq_len).tolist(),
    }


def angles_around(
    specs: Sequence[RopeSpec], dim: int, original: int, seq_len: int | None = None
) -> tuple[int, list[int], list[list[float]]]:
    """Angles of one telling feature on both sides of the training length.

    Args:
        specs: the settings; the feature is chosen by the first.
        dim: rotated dimensions of a head.
        original: training length `L` in tokens.
        seq_len: see `describe`.

    Returns:
        The feature, as many positions below `L` as from it on, and the angles of each settings.
    """
    lengths = frequencies.wavelengths(specs[0], dim, seq_len)
    rounded = round_wavelengths(2 * math.pi / lengths).tolist()
    feature = telling_feature(lengths.tolist(), rounded, original)
    # Whole lengths would be a solid block of dots.
    window = min(original, max(64, int(SHOWN_PERIODS * rounded[feature])))
    positions = torch.arange(original - window, original + window)
    angles = [rotation_angles(spec, dim, positions, seq_len)[feature].tolist() for spec in specs]
    return feature, positions.tolist(), angles


def telling_feature(wavelengths: Sequence[float], rounded: Sequence[float], original: int) -> int:
    """The pre-critical feature whose drift over a training length is easiest to see.

    It is the feature with three or more periods within `L` that rounding moves most.
    """
    moved = [
        abs(after - before) / before if after * SHOWN_PERIODS <= original else -1.0
        for before, after in zip(wavelengths, rounded, strict=True)
    ]
    # The two fastest features turn so quickly that single dots no longer make a line.
    return max(range(len(moved)), key=lambda j: moved[j] if j > 1 else -2.0)
