"""Two RoPE methods side by side: rotation angles (the paper's Figure 1), wavelengths and gaps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leval_leaderboard.figures.rope import gap_panel, wavelength_panel

TRAINED, TESTED = "#4477aa", "#ee6677"
METHOD_MARKS = (("#666666", "o"), ("#228833", "x"))


@dataclass(frozen=True)
class DrawnMethod:
    """Numbers of one method.

    Attributes:
        name: its title.
        wavelengths: tokens a turn, of every feature.
        gaps: feature gap of every feature.
        angles: of the feature shown, at every position shown.
    """

    name: str
    wavelengths: Sequence[float]
    gaps: Sequence[float]
    angles: Sequence[float]


def draw_pair(
    methods: Sequence[DrawnMethod],
    *,
    feature: int,
    positions: Sequence[int],
    original: int,
    longest: int,
    path: str | Path,
) -> None:
    """Draw two methods.

    Args:
        methods: both of them.
        feature: index of the feature whose angles are shown.
        positions: where they are shown, half of them below `original`.
        original: training length `L` in tokens.
        longest: test length in tokens.
        path: output file; its ending chooses the format.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7.5), layout="constrained")
    above, below = figure.subplots(2, 2)
    lengths, gaps = [], []
    for axes, method, (colour, marker) in zip(above, methods, METHOD_MARKS, strict=True):
        _angle_panel(axes, method, feature, positions, original)
        style = {"color": colour, "marker": marker, "markersize": 4, "linestyle": "none"}
        lengths.append((method.name, method.wavelengths, style))
        gaps.append((method.name, method.gaps, style))
    wavelength_panel(below[0], lengths, original)
    gap_panel(below[1], gaps, original, longest)
    below[0].legend()
    figure.savefig(path, dpi=150)


def _angle_panel(
    axes: Any, method: DrawnMethod, feature: int, positions: Sequence[int], original: int
) -> None:
    """Dots of the angle over the position; lines where training has seen one."""
    half = len(positions) // 2
    seen = method.angles[:half]
    axes.hlines(seen, positions[0], positions[-1], color=TRAINED, lw=0.3, alpha=0.35)
    axes.plot(positions[:half], seen, ".", color=TRAINED, label="training")
    axes.plot(positions[half:], method.angles[half:], ".", color=TESTED, label="test")
    axes.axvline(original - 0.5, color="black", lw=0.8, ls=":")
    axes.set_title(f"{method.name}, feature {feature}: wavelength {method.wavelengths[feature]:g}")
    axes.set(xlabel="position", ylabel="rotation angle", ylim=(-0.2, 2 * math.pi + 1.1))
    axes.set_yticks([0, math.pi, 2 * math.pi], ["0", "π", "2π"])
    axes.legend(loc="upper right", ncols=2)
