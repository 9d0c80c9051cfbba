"""Differences of every text by position: `python figure.py` writes `differences.svg`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from rates import NATIVE, read

from leval_harness.report.drawing import (
    DASHED,
    DOTTED,
    PALETTE,
    add_source_note,
    new_figure,
    write_figure,
)
from leval_tasks.statistics.effective_context import BLOCK, MARGIN

HERE = Path(__file__).parent


def draw():
    """A panel for each model and method: thin lines are documents, the thick one is their mean."""
    names = [name for name in NATIVE if (HERE / f"blocks-{name}.csv").is_file()]
    figure, grid = new_figure(9, 3.2 * len(names), columns=2, rows=len(names), sharey="row")
    for row, name in enumerate(names):
        for axes, method in zip(grid[2 * row :], ("rope", "yarn"), strict=False):
            sums, places = read(name, method)
            width = NATIVE[name] // 16 // BLOCK
            whole = sums.shape[1] // width * width
            means = sums[:, :whole].reshape(len(sums), -1, width).mean(axis=2) / BLOCK
            middles = places[:whole:width] + BLOCK * width / 2
            axes.plot(middles, means.T, color=PALETTE[0], linewidth=0.6, alpha=0.5)
            axes.plot(middles, means.mean(axis=0), color=PALETTE[1], linewidth=2)
            axes.axhline(MARGIN, color="black", **DOTTED)
            axes.axvline(NATIVE[name], color="#555555", **DASHED)
            axes.set_title(f"{name}, {'RoPE' if method == 'rope' else 'YaRN ×2'}")
            axes.set_xlabel("Position in the text (tokens)")
        grid[2 * row].invert_yaxis()
        grid[2 * row].set_ylabel("Loss minus the reference's,\nnats/token (up is better)")
    add_source_note(
        figure,
        "thin: documents, by sixteenths of the native context length; thick: mean; dotted: margin",
    )
    return figure


if __name__ == "__main__":
    write_figure(draw, HERE / "differences.svg", HERE / "differences.png", dpi=80)
