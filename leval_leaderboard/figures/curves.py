"""Score or perplexity against context length, with 95% bands."""

from typing import Any

import numpy as np

from leval_leaderboard.figures.style import Look, literal, new_figure, sign
from leval_leaderboard.results.scores import lower_is_better
from leval_leaderboard.tables.names import length_label, task_label


def length_figure(rows: Any, looks: dict[str, Look]) -> Any:
    """Curves of one task in one block.

    Args:
        rows: analysed rows of one block, task and metric family, finished, with `length` added.
        looks: from `method_colours`.

    Returns:
        A matplotlib `Figure`.
    """
    metric = str(rows["metric"].iloc[0])
    perplexity = lower_is_better(metric)
    unit = 1.0 if perplexity else 100.0
    figure, axes = new_figure(7.2, 4.2)
    for method in sorted(set(rows["label"])):
        own = rows[rows["label"] == method].sort_values("length")
        look = looks[method]
        x = own["length"].to_numpy(float)
        axes.plot(
            x, own["value"].to_numpy(float) * unit, color=look.colour, marker=look.marker,
            linestyle=look.line, label=literal(method), markersize=5, linewidth=1.6,
        )  # fmt: skip
        low, high = (own[name].to_numpy(float) * unit for name in ("low", "high"))
        if np.isfinite(low).any():
            axes.fill_between(x, low, high, color=look.colour, alpha=0.08, linewidth=0)
    axes.set_xscale("log", base=2)
    lengths = sorted(set(rows["length"]))
    axes.set_xticks(lengths, [length_label(length) for length in lengths])
    axes.minorticks_off()
    axes.set_xlabel("Context length (tokens)")
    name = metric.partition("@")[0].replace("_", " ")
    axes.set_ylabel(f"{name}, lower is better" if perplexity else f"{name}, %")
    chance = rows["chance"].dropna()
    if len(chance):
        level = 100 * float(chance.iloc[0])
        axes.axhline(level, color="#888888", linewidth=0.9, linestyle=":")
        axes.annotate(
            "chance", (1, level), xycoords=("axes fraction", "data"), ha="right", va="bottom",
            fontsize=7, color="#666666",
        )  # fmt: skip
    axes.set_title(
        literal(f"{task_label(str(rows['task'].iloc[0]))} by context length"), loc="left"
    )
    figure.legend(fontsize=8, frameon=False, loc="outside right upper")
    sources = " ".join(sorted({s for s in rows["source"].dropna() if s}))
    bands = " · bands: 95% intervals, by document" if rows["low"].notna().any() else ""
    sign(figure, f"{rows['block'].iloc[0]}{bands}", sources, str(rows["command"].iloc[0]))
    return figure
