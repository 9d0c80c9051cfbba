"""Compare losses of a full read with those of windows on the same tokens: `python windows.py FULL WINDOWS`.

FULL and WINDOWS are files `losses_*.npy` of the same document in the folders of two runs. Both end
with the losses of the last token that is scored; `--full` and `--windows` are their lengths in tokens.
"""

import argparse
from pathlib import Path

import numpy as np

BLOCK = 64
"""Tokens of one sampling unit, as for the effective context length."""
QUANTILE = 2.807
"""Of the normal distribution, for a two-sided interval of 99.5%."""


def main() -> None:
    """Print the mean difference, full minus windows, and its 99.5% interval."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("full_losses", type=Path)
    parser.add_argument("window_losses", type=Path)
    parser.add_argument("--full", type=int, default=40960, help="Tokens of the full read.")
    parser.add_argument("--windows", type=int, default=32768, help="Tokens read in windows.")
    options = parser.parse_args()
    full = np.load(options.full_losses).astype(float)
    windows = np.load(options.window_losses).astype(float)
    first = max(options.full - len(full), options.windows - len(windows))
    end = min(options.full, options.windows)
    full = full[first - (options.full - len(full)) :][: end - first]
    windows = windows[first - (options.windows - len(windows)) :][: end - first]
    blocks = (full - windows)[: (end - first) // BLOCK * BLOCK].reshape(-1, BLOCK).mean(axis=1)
    mean = blocks.mean()
    half = QUANTILE * blocks.std(ddof=1) / np.sqrt(len(blocks))
    print(
        f"positions {first:,} to {end:,}: {mean:+.4f} nats/token [{mean - half:.4f}, {mean + half:.4f}]"
    )


if __name__ == "__main__":
    main()
