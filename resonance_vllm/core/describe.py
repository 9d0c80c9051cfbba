"""What settings do to every feature, as plain numbers: what commands print and pictures draw."""

from collections.abc import Sequence
from typing import Any

import torch

from resonance_vllm.core import frequencies
from resonance_vllm.core.feature_gap import angles_by_feature, feature_gap
from resonance_vllm.core.spec import RopeSpec

# Figure 1 of the paper shows 64 training and 64 test positions of feature 6.
SHOWN_PERIODS = 3


def describe(
    spec: RopeSpec, dim: int, original: int, factor: float, seq_len: int | None = None
) -> dict[str, Any]:
    """Frequencies and what follows from them, for a training length `L` of `original` tokens.

    Feature gaps are looked for up to `factor * L`.
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

    Its drift over a training length is the easiest to see: of the features of the first settings
    with three or more periods within `L`, rounding moves it most.

    Returns:
        The feature, as many positions below `L` as from it on, and the angles of each settings.
    """
    lengths = frequencies.wavelengths(specs[0], dim, seq_len)
    rounded = frequencies.integer_wavelengths(specs[0], dim, seq_len)
    moved = ((rounded - lengths).abs() / lengths).where(rounded * SHOWN_PERIODS <= original, -1.0)
    # The two fastest features turn so quickly that single dots no longer make a line.
    moved[:2] = -2.0
    feature = int(moved.argmax())
    # Whole lengths would be a solid block of dots.
    window = min(original, max(64, SHOWN_PERIODS * int(rounded[feature])))
    positions = torch.arange(original - window, original + window)
    angles = [angles_by_feature(spec, dim, positions, seq_len)[feature].tolist() for spec in specs]
    return feature, positions.tolist(), angles
