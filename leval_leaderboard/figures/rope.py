"""Wavelengths and feature gaps of the methods of one model."""

from collections.abc import Mapping
from typing import Any

from leval_leaderboard.figures.style import Look, literal, new_figure, sign
from leval_leaderboard.results.rope_features import RopeFeatures


def shown_multiple(features: Mapping[str, RopeFeatures]) -> int | None:
    """Test range of the picture, `s` times the trained length: what was run, if all have it."""
    common = set.intersection(*(set(each.gaps) for each in features.values()))
    wanted = max((each.context_length or 0) / each.original for each in features.values())
    return next((s for s in sorted(common) if s >= wanted), max(common, default=None))


def rope_figure(
    features: Mapping[str, RopeFeatures], looks: Mapping[str, Look], block: str, command: str
) -> Any:
    """Two panels over the features: wavelengths, and gaps to what was seen in training.

    Args:
        features: of each method, all with the same trained length and number of features.
        looks: from `method_colours`.
        block: title of the block, to be signed with.
        command: what made one of the runs.

    Returns:
        A matplotlib `Figure`.
    """
    figure, (left, right) = new_figure(10.5, 4.2, panels=2)
    original = next(iter(features.values())).original
    multiple = shown_multiple(features)
    for at, (method, found) in enumerate(sorted(features.items())):
        look = looks[method]
        # methods often agree: each marks every so many features, so that all of them are seen
        every = (at % 4, 4)
        style = {"color": look.colour, "marker": look.marker, "markersize": 4, "linewidth": 0.8,
                 "linestyle": look.line, "markevery": every}  # fmt: skip
        left.plot(found.wavelengths, label=literal(method), **style)
        if multiple is not None:
            right.plot(found.gaps[multiple], label="_nolegend_", **style)
    left.set_yscale("log")
    left.axhline(original, color="black", linewidth=0.9, linestyle=":")
    left.annotate(
        f"trained length {original:,}", (0.02, original), xycoords=("axes fraction", "data"),
        ha="left", va="bottom", fontsize=7, color="#444444",
    )  # fmt: skip
    left.set(xlabel="Feature (pair of dimensions)", ylabel="Wavelength, tokens")
    left.set_title("Wavelengths", loc="left")
    if multiple is None:
        right.set_axis_off()
    else:
        right.set_yscale("symlog", linthresh=1e-5)
        right.set_ylim(-2e-6, 3)
        right.set(xlabel="Feature (pair of dimensions)", ylabel="Feature gap (0 to 2)")
        title = f"Gap between positions below {original:,} and up to {original * multiple:,}"
        right.set_title(title, loc="left")
    figure.legend(fontsize=8, frameon=False, loc="outside lower center", ncols=4)
    lengths = sorted({each.context_length for each in features.values() if each.context_length})
    at_length = f" · at {lengths[-1]:,} tokens" if lengths else ""
    sign(figure, f"{block}{at_length}", "", command)
    return figure
