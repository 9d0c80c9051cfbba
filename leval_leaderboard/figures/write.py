"""Every figure that the results have data for, as SVG and PNG."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leval_leaderboard.figures.curves import length_figure
from leval_leaderboard.figures.forest import forest_figure
from leval_leaderboard.figures.rope import rope_figure
from leval_leaderboard.figures.style import RC, method_colours, save
from leval_leaderboard.results.rope_features import RopeFeatures, read_features
from leval_leaderboard.results.scores import lower_is_better
from leval_leaderboard.tables.analysis import Analysis
from leval_leaderboard.tables.names import length_label, task_label

MOST_METHODS = 14
"""More curves than this in one figure cannot be told apart; such a block gets none."""


@dataclass(frozen=True)
class Drawn:
    """A figure on disk: `name` without extension, and what it shows."""

    name: str
    title: str


def write_figures(analysis: Analysis, folder: Path) -> list[Drawn]:
    """Write the figures into `folder`.

    File names are made here and never taken from results.

    Raises:
        OSError: the folder cannot be written.
    """
    import matplotlib as mpl

    folder.mkdir(parents=True, exist_ok=True)
    drawn: list[Drawn] = []
    with mpl.rc_context(RC):
        for kind, title, figure in _figures(analysis):
            name = f"{kind}-{len(drawn):03d}"
            for ending in ("svg", "png"):
                save(figure, folder / f"{name}.{ending}")
            drawn.append(Drawn(name, title))
    return drawn


def _figures(analysis: Analysis) -> Iterator[tuple[str, str, Any]]:
    """`(kind, title, figure)` one by one, so that only one is in memory."""
    frame = analysis.frame()
    looks = method_colours(frame["label"])
    done = frame[(frame["status"] == "done") & frame["value"].notna() & frame["primary"]].copy()
    names = [str(metric).partition("@") for metric in done["metric"]]
    done["family"] = [name for name, _, _ in names]
    done["length"] = [float(n) if n.isdigit() and len(n) < 12 else math.nan for _, _, n in names]
    done["length"] = done["length"].fillna(done["context_length"].astype(float))
    for (block, task, family), rows in done.groupby(["block", "task", "family"], sort=False):
        shown = family in {"token_perplexity", "paper_perplexity"} or not lower_is_better(family)
        if shown and rows["length"].nunique() > 1 and rows["label"].nunique() <= MOST_METHODS:
            what = family.replace("_", " ")
            title = f"{block}: {task_label(str(task))}, {what} by context length"
            yield "length", title, length_figure(rows, looks)
    compared = done[done["difference"].notna() & ~done["metric"].map(lower_is_better)]
    for (block, length), rows in compared.groupby(["block", "context_length"], sort=False):
        if rows["label"].nunique() <= MOST_METHODS:
            baseline = analysis.baselines[str(block)]
            title = f"{block}: difference to {baseline} at {length_label(float(str(length)))}"
            yield "forest", title, forest_figure(rows, baseline, looks)
    yield from _rope_figures(analysis, looks)


def _rope_figures(analysis: Analysis, looks: Any) -> Iterator[tuple[str, str, Any]]:
    """One for each model and trained length; of a method's runs, the longest context counts."""
    runs = analysis.results.runs
    of_run = {at: found for at, run in enumerate(runs) if (found := read_features(run))}
    models: dict[tuple[str, int, int], dict[str, RopeFeatures]] = {}
    first: dict[tuple[str, int, int], int] = {}
    for row in analysis.frame().drop_duplicates("run").itertuples():
        found = of_run.get(row.run)
        if found is None:
            continue
        key = (str(row.model), found.original, len(found.wavelengths))
        methods = models.setdefault(key, {})
        first.setdefault(key, row.run)
        other = methods.get(row.label)
        if other is None or (found.context_length or 0) > (other.context_length or 0):
            methods[row.label] = found
    for key, methods in models.items():
        if len(methods) <= MOST_METHODS:
            title = f"{key[0]}: wavelengths and feature gaps of the methods"
            yield "rope", title, rope_figure(methods, looks, key[0], runs[first[key]].command)
