"""Wavelengths and feature gaps of the methods of one model."""

from collections.abc import Mapping, Sequence
from typing import Any

from leval_leaderboard.figures.style import Looks, legend, literal, mark_level, new_figure, sign
from leval_leaderboard.results.rope_features import RopeFeatures

# Label, a value a feature, and keywords of matplotlib's `plot`.
Curve = tuple[str, Sequence[float], Mapping[str, Any]]


def shown_multiple(features: Mapping[str, RopeFeatures]) -> int | None:
    """Test range of the picture, `s` times the trained length: what was run, if all have it."""
    common = set.intersection(*(set(each.gaps) for each in features.values()))
    wanted = max((each.context_length or 0) / each.original for each in features.values())
    return next((s for s in sorted(common) if s >= wanted), max(common, default=None))


def rope_figure(
    features: Mapping[str, RopeFeatures], looks: Looks, model: str, command: str
) -> Any:
    """Two panels over the features: wavelengths, and gaps to what was seen in training.

    Args:
        features: of each method, all with the same trained length and number of features.
        looks: from `method_looks`.
        model: whose methods these are.
        command: what made one of the runs.

    Returns:
        A matplotlib `Figure`.
    """
    figure, (left, right) = new_figure(10.5, 4.2, panels=2)
    original = next(iter(features.values())).original
    multiple = shown_multiple(features)
    # methods often agree: each marks every so many features, so that all of them are seen
    styles = {
        method: {**looks[method], "markersize": 4, "linewidth": 0.8, "markevery": (at % 4, 4)}
        for at, method in enumerate(sorted(features))
    }
    wavelength_panel(left, [(m, features[m].wavelengths, styles[m]) for m in styles], original)
    if multiple is None:
        right.set_axis_off()
    else:
        gaps = [(method, features[method].gaps[multiple], styles[method]) for method in styles]
        gap_panel(right, gaps, original, original * multiple)
    legend(figure, [left], "lower center", columns=4)
    lengths = sorted({each.context_length for each in features.values() if each.context_length})
    at_length = f" · at {lengths[-1]:,} tokens" if lengths else ""
    sign(figure, f"{model}{at_length}", [command])
    return figure


def wavelength_panel(axes: Any, lengths: Sequence[Curve], original: int) -> None:
    """Wavelength in tokens over the feature, one line a method, and the trained length."""
    for label, values, style in lengths:
        axes.plot(values, label=literal(label), **style)
    axes.set_yscale("log")
    mark_level(axes, original, f"trained length {original:,}", x=0.02, color="black")
    axes.set(xlabel="Feature (pair of dimensions)", ylabel="Wavelength, tokens")
    axes.set_title("Wavelengths", loc="left")


def gap_panel(axes: Any, gaps: Sequence[Curve], original: int, longest: int) -> None:
    """Feature gap between the positions below `original` and those up to `longest`."""
    for label, values, style in gaps:
        axes.plot(values, label=literal(label), **style)
    axes.set_yscale("symlog", linthresh=1e-5)
    axes.set_ylim(-2e-6, 3)
    axes.set(xlabel="Feature (pair of dimensions)", ylabel="Feature gap (0 to 2)")
    axes.set_title(f"Gap to positions below {original:,}, up to {longest:,}", loc="left")
