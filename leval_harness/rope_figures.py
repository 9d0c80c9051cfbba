"""Pictures of RoPE methods: rotation angles (the paper's Figure 1), wavelengths and gaps."""

import math
from collections.abc import Sequence
from typing import Any

from leval_leaderboard.figures.rope import gap_panel, wavelength_panel
from resonance_vllm.core.spec import RopeSpec

TRAINED, TESTED = "#4477aa", "#ee6677"
METHOD_MARKS = (("#666666", "o"), ("#228833", "x"))
# Figure 1 of the paper shows 64 training and 64 test positions of feature 6.
SHOWN_PERIODS = 3


def figure_feature(wavelengths: Sequence[float], rounded: Sequence[float], original: int) -> int:
    """The pre-critical feature whose drift over a training length is easiest to see.

    It is the feature with three or more periods within `L` that rounding moves most.
    """
    moved = [
        abs(after - before) / before if after * SHOWN_PERIODS <= original else -1.0
        for before, after in zip(wavelengths, rounded, strict=True)
    ]
    # The two fastest features turn so quickly that single dots no longer make a line.
    return max(range(len(moved)), key=lambda j: moved[j] if j > 1 else -2.0)


def draw(
    specs: Sequence[RopeSpec],
    *,
    head_dim: int,
    original: int,
    factor: float,
    seq_len: int | None,
    path: str,
) -> None:
    """Draw two methods side by side.

    Args:
        specs: two specs.
        head_dim: rotated dimensions of a head.
        original: training length `L` in tokens.
        factor: test length is `factor * L`.
        seq_len: length at which `dynamic` and `longrope` are looked at.
        path: output file; its ending chooses the format.
    """
    from matplotlib.figure import Figure

    from resonance_vllm.core.feature_gap import feature_gap
    from resonance_vllm.core.frequencies import wavelengths

    figure = Figure(figsize=(10, 7.5), layout="constrained")
    above = figure.subplots(2, 2)
    _draw_angles(above[0], specs, head_dim, original, seq_len)
    lengths, gaps = [], []
    for spec, (colour, marker) in zip(specs, METHOD_MARKS, strict=True):
        style = {"color": colour, "marker": marker, "markersize": 4, "linestyle": "none"}
        lengths.append((_name(spec), wavelengths(spec, head_dim, seq_len).tolist(), style))
        gaps.append((_name(spec), feature_gap(spec, head_dim, original, factor, seq_len), style))
    wavelength_panel(above[1][0], lengths, original)
    gap_panel(above[1][1], gaps, original, int(original * factor))
    above[1][0].legend()
    figure.savefig(path, dpi=150)


def _name(spec: RopeSpec) -> str:
    return spec.rope_type.replace("_", " ")


def _draw_angles(
    axes: Any, specs: Sequence[RopeSpec], head_dim: int, original: int, seq_len: int | None
) -> None:
    import torch

    from resonance_vllm.core.feature_gap import rotation_angles
    from resonance_vllm.core.frequencies import wavelengths
    from resonance_vllm.core.resonance import round_wavelengths

    lengths = wavelengths(specs[0], head_dim, seq_len)
    rounded = round_wavelengths(2 * math.pi / lengths).tolist()
    feature = figure_feature(lengths.tolist(), rounded, original)
    # A window on both sides of L: whole lengths would be a solid block of dots.
    window = min(original, max(64, int(SHOWN_PERIODS * rounded[feature])))
    positions = torch.arange(original - window, original + window)
    for ax, spec in zip(axes, specs, strict=True):
        angles = rotation_angles(spec, head_dim, positions, seq_len)[feature]
        seen = rotation_angles(spec, head_dim, torch.arange(original), seq_len)[feature]
        ax.hlines(seen[-window:], positions[0], positions[-1], color=TRAINED, lw=0.3, alpha=0.35)
        ax.plot(positions[:window], angles[:window], ".", color=TRAINED, label="training")
        ax.plot(positions[window:], angles[window:], ".", color=TESTED, label="test")
        ax.axvline(original - 0.5, color="black", lw=0.8, ls=":")
        length = wavelengths(spec, head_dim, seq_len)[feature]
        ax.set_title(f"{_name(spec)}, feature {feature}: wavelength {length:g}")
        ax.set(xlabel="position", ylabel="rotation angle", ylim=(-0.2, 2 * math.pi + 1.1))
        ax.set_yticks([0, math.pi, 2 * math.pi], ["0", "π", "2π"])
        ax.legend(loc="upper right", ncols=2)
