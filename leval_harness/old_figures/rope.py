"""Wavelengths and feature gaps of the methods of a model, and of two RoPE methods their angles."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leval_harness.old_figures.style import DOTTED, ON_LEVEL, Looks, Picture, literal
from leval_harness.old_results.rope_features import RopeFeatures

TRAINED, TESTED = "#4477aa", "#ee6677"
PAIR_MARKS = (("#666666", "o"), ("#228833", "x"))

# A value a feature, and keywords of matplotlib's `plot`.
Curve = tuple[Sequence[float], Mapping[str, Any]]


@dataclass(frozen=True)
class DrawnMethod:
    """A method's wavelengths (tokens) and gaps by feature, and one feature's angles by position.

    `alike` is the mean cosine of the fast features by the distance of two positions in tokens.
    """

    name: str
    wavelengths: Sequence[float]
    gaps: Sequence[float]
    angles: Sequence[float]
    alike: Mapping[int, float]


def _shown_multiple(features: Mapping[str, RopeFeatures]) -> int | None:
    """Test range of the picture, `s` times the trained length: what was run, if all have it."""
    common = set.intersection(*(set(each.gaps) for each in features.values()))
    wanted = max((each.context_length or 0) / each.original for each in features.values())
    return next((s for s in sorted(common) if s >= wanted), max(common, default=None))


def rope_figure(
    features: Mapping[str, RopeFeatures], model: str, command: str, looks: Looks
) -> Any:
    """Two panels over the features: wavelengths, and gaps to what was seen in training.

    All methods have the same trained length and number of features; `command` made one of the runs.
    """
    picture = Picture(10.5, 4.2, columns=2)
    left, right = picture.grid
    original = next(iter(features.values())).original
    multiple = _shown_multiple(features)
    # methods often agree: each marks every so many features, so that all of them are seen
    styles = {
        method: {**looks[method], "markersize": 4, "linewidth": 0.8, "markevery": (at % 4, 4)}
        for at, method in enumerate(sorted(features))
    }
    _wavelength_panel(left, [(features[m].wavelengths, styles[m]) for m in styles], original)
    if multiple is None:
        right.set_axis_off()
    else:
        gaps = [(features[method].gaps[multiple], styles[method]) for method in styles]
        _gap_panel(right, gaps, original, original * multiple)
    picture.legend([left], "lower center", columns=4)
    lengths = sorted({each.context_length for each in features.values() if each.context_length})
    at_length = f" · at {lengths[-1]:,} tokens" if lengths else ""
    picture.sign(f"{model}{at_length}", [command])
    return picture.figure


def _wavelength_panel(axes: Any, lengths: Sequence[Curve], original: int) -> None:
    """Wavelength in tokens over the feature, one line a method, and the trained length."""
    for values, style in lengths:
        axes.plot(values, **style)
    axes.set_yscale("log")
    axes.axhline(original, color="black", **DOTTED)
    axes.annotate(f"trained length {original:,}", (0.02, original), ha="left", **ON_LEVEL)
    axes.set(xlabel="Feature (pair of dimensions)", ylabel="Wavelength, tokens")
    axes.set_title("Wavelengths", loc="left")


def _gap_panel(axes: Any, gaps: Sequence[Curve], original: int, longest: int) -> None:
    """Feature gap between the positions below `original` and those up to `longest`."""
    for values, style in gaps:
        axes.plot(values, **style)
    axes.set_yscale("symlog", linthresh=1e-5)
    axes.set_ylim(-2e-6, 3)
    axes.set(xlabel="Feature (pair of dimensions)", ylabel="Feature gap (0 to 2)")
    axes.set_title(f"Gap to positions below {original:,}, up to {longest:,}", loc="left")


def pair_figure(
    methods: Sequence[DrawnMethod],
    feature: int,
    positions: Sequence[int],
    original: int,
    longest: int,
) -> Any:
    """Two methods: rotation angles (the paper's Figure 1), wavelengths, gaps and collisions.

    The angles are those of one `feature` (an index) at `positions`, half of them below the trained
    length `original`; `longest` is the test length. All in tokens.
    """
    picture = Picture(10, 11, columns=2, rows=3)
    grid = picture.grid
    lengths, gaps = [], []
    for axes, method, (colour, marker) in zip(grid, methods, PAIR_MARKS, strict=False):
        _angle_panel(axes, method, feature, positions, original)
        style = {"color": colour, "marker": marker, "markersize": 4, "linestyle": "none"}
        style["label"] = literal(method.name)
        lengths.append((method.wavelengths, style))
        gaps.append((method.gaps, style))
    for axes, method, (colour, _) in zip(grid[4:], methods, PAIR_MARKS, strict=True):
        _collision_panel(axes, method, colour)
    _wavelength_panel(grid[2], lengths, original)
    _gap_panel(grid[3], gaps, original, longest)
    grid[2].legend()
    return picture.figure


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
    axes.grid(visible=False)
    axes.legend(loc="upper right", ncols=2)


def _collision_panel(axes: Any, method: DrawnMethod, colour: str) -> None:
    """Mean cosine of the fast features over the distance, its largest value marked."""
    if not method.alike:
        axes.set_axis_off()
        return
    axes.plot(list(method.alike), list(method.alike.values()), color=colour, lw=0.6)
    worst = max(method.alike, key=lambda distance: method.alike[distance])
    axes.plot([worst], [method.alike[worst]], "o", color=TESTED)
    axes.set_title(
        f"{method.name}: collision {method.alike[worst]:.2f} at {worst:,} tokens", loc="left"
    )
    axes.set(xlabel="distance of two positions, tokens", ylabel="mean cosine, fast features")
    axes.set_ylim(-0.8, 1.05)
