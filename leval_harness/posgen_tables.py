"""PosGen's table as texts: the paper's Table 1 beside ours."""

from typing import Any

import pandas as pd

from leval_harness.posgen import (
    LEARNED,
    PUBLISHED_MODULUS,
    SUBTASKS,
    PosGen,
    modulus_of,
    places,
    printed,
    title,
)
from leval_harness.tables import BEST, NONE, QUIET, SECOND, Table


def table_1(read: PosGen) -> Table:
    """Encodings down, sub-tasks across: accuracy past the training length, and within it."""
    found = places(read)
    some = found["learned"].lt(found["seeds"]) & found["learned"].gt(0)
    of = " (" + found["learned"].astype(str) + " of " + found["seeds"].astype(str) + " learned)"
    mark = of.where(some, "").mask(found["learned"] == 0, " (not learned)")
    spread = found["deviation"].map(" ± {:.2f}".format).where(found["deviation"].notna(), "")
    found["text"] = found["past"].map("{:.2f}".format) + spread + mark
    found["css"] = found["rank"].map({1: BEST, 2: SECOND}).fillna("")
    found["ID"] = found["inside"].map("{:.2f}".format)
    found["Model"] = [f"{name}: {_model(read.settings[name])}" for name in found["experiment"]]
    found["Encoding"] = [title(*pair) for pair in found[["trained", "tested"]].to_numpy()]
    rows = ["Model", "Encoding"]
    texts = found.groupby(rows, sort=False)["seeds"].agg(_range).rename("Seeds").to_frame()
    css = pd.DataFrame("", texts.index, ["Seeds"])
    for subtask, name in SUBTASKS.items():
        own = found[found["subtask"] == subtask].set_index(rows)
        texts[name], texts[f"{name} ID"] = own["text"], own["ID"]
        css[name], css[f"{name} ID"] = own["css"], ""
    texts, css = texts.fillna(NONE), css.fillna("")
    for name, numbers in printed().items():
        cells = [
            each for mean, variance in numbers for each in (f"{mean:.2f} ± {variance:.2f}", "")
        ]
        at = (f"2 layers, width 512, modulus {PUBLISHED_MODULUS} (published)", name)
        texts.loc[at, :], css.loc[at, :] = ["5", *cells], QUIET
    notes = (
        "Accuracy on tokens past the training length, %, mean ± standard deviation over the seeds "
        f"that learned (at least {LEARNED:g}% within it); ID: on tokens within it",
        "Published: arXiv 2403.00071v2, Table 1, ± variance; not run here, not ranked",
        "Made by: " + "; ".join(sorted(read.tests["command"].dropna().unique())),
    )
    return Table("PosGen, out-of-distribution accuracy, %", texts, css, notes)


def _range(counts: pd.Series) -> str:
    return " to ".join(dict.fromkeys((f"{counts.min()}", f"{counts.max()}")))


def _model(settings: dict[str, Any]) -> str:
    """What was trained, in words."""
    shape, data = settings.get("architecture"), settings.get("data")
    if not isinstance(shape, dict) or not isinstance(data, dict):
        return "settings unknown"
    taught = f"{data.get('train', 10_000):,} sequences, {settings.get('epochs')} epochs"
    kind, layers, width = (shape.get(name) for name in ("kind", "layers", "hidden"))
    return f"{kind}, {layers} layers, width {width}, modulus {modulus_of(settings)}, {taught}"
