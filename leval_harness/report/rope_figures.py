"""Figures of two RoPE methods: rotation angles by position, wavelengths and feature gaps.

The angles are Figure 1 of the Resonance RoPE paper.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leval_harness.report.drawing import DOTTED, ON_LEVEL, literal_text, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NATIVE = "#4477aa"
TESTED = "#ee6677"
PAIR_MARKS = (("#666666", "o"), ("#228833", "x"))

Curve = tuple[Sequence[float], Mapping[str, Any]]
"""One value per feature, and keywords of matplotlib's `plot`."""


@dataclass(frozen=True)
class DrawnMethod:
    """What is drawn of a method.

    Attributes:
        name: of the method.
        wavelengths: tokens, one per feature.
        gaps: feature gaps from 0 to 2, one per feature.
        angles: radians of one feature, one per position.
    """

    name: str
    wavelengths: Sequence[float]
    gaps: Sequence[float]
    angles: Sequence[float]


def _wavelengths(axes: Any, lengths: Sequence[Curve], original: int) -> None:
    """Draw the wavelengths of each method by feature, and the native context length."""
    for values, style in lengths:
        axes.plot(values, **style)
    axes.set_yscale("log")
    axes.axhline(original, color="black", **DOTTED)
    axes.annotate(f"native context length {original:,}", (0.02, original), ha="left", **ON_LEVEL)
    axes.set(xlabel="Feature (pair of dimensions)", ylabel="Wavelength, tokens")
    axes.set_title("Wavelengths")


def _gaps(axes: Any, gaps: Sequence[Curve], original: int, longest: int) -> None:
    """Draw the feature gap between positions below `original` and those up to `longest`."""
    for values, style in gaps:
        axes.plot(values, **style)
    axes.set_yscale("symlog", linthresh=1e-5)
    axes.set_ylim(-2e-6, 3)
    axes.set(xlabel="Feature (pair of dimensions)", ylabel="Feature gap (0 to 2)")
    axes.set_title(f"Gap to positions below {original:,}, up to {longest:,}")


def pair_figure(
    methods: Sequence[DrawnMethod],
    feature: int,
    positions: Sequence[int],
    original: int,
    longest: int,
) -> "Figure":
    """Draw two methods: rotation angles (the paper's Figure 1), wavelengths and gaps.

    Args:
        methods: the two methods.
        feature: index of the feature (pair of dimensions) whose angles are drawn.
        positions: tokens; half of them are below the native context length.
        original: native context length, tokens.
        longest: test length, tokens.
    """
    figure, grid = new_figure(10, 7.4, columns=2, rows=2)
    lengths = []
    gaps = []
    for axes, method, (colour, marker) in zip(grid, methods, PAIR_MARKS, strict=False):
        _angles(axes, method, feature, positions, original)
        style = {"color": colour, "marker": marker, "markersize": 4, "linestyle": "none"}
        lengths.append((method.wavelengths, {**style, "label": literal_text(method.name)}))
        gaps.append((method.gaps, style))
    _wavelengths(grid[2], lengths, original)
    _gaps(grid[3], gaps, original, longest)
    grid[2].legend()
    return figure


def _angles(
    axes: Any, method: DrawnMethod, feature: int, positions: Sequence[int], original: int
) -> None:
    """Draw the angle at each position as a dot, and a line at each angle seen in training."""
    half = len(positions) // 2
    seen = method.angles[:half]
    axes.hlines(seen, positions[0], positions[-1], color=NATIVE, lw=0.3, alpha=0.35)
    axes.plot(positions[:half], seen, ".", color=NATIVE, label="training")
    axes.plot(positions[half:], method.angles[half:], ".", color=TESTED, label="test")
    axes.axvline(original - 0.5, color="black", lw=0.8, ls=":")
    axes.set_title(
        f"{literal_text(method.name)}, feature {feature}: wavelength {method.wavelengths[feature]:g}"
    )
    axes.set(xlabel="position", ylabel="rotation angle", ylim=(-0.2, 2 * math.pi + 1.1))
    axes.set_yticks([0, math.pi, 2 * math.pi], ["0", "π", "2π"])
    axes.grid(visible=False)
    axes.legend(loc="upper right", ncols=2)
