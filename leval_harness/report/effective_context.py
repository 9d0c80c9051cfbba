"""Effective context length: rows of the compared frame, from blocks of 64 tokens.

The rule is `leval_tasks.statistics.effective_context`. Its rows have the task `effective_context`,
over the documents of all `effective_context_*` tasks together, and these metrics:

`no_degradation_up_to`, `degradation_by`, `breaks_near`   `value` is a position; missing for none
`cost`       the difference to the reference over the positions within the native context length
`difference`  the same in a bin of positions, and to another method in its bins and in all of them

A difference is the loss of the method minus that of `baseline`, nats/token: negative is better
for the method. Each token's difference to the reference is clipped to ±1 nat; that of two methods
is the difference of these. Up to the native context length the unmodified model is the reference. `start`
and `end` are the positions that it covers, `diff_low` and `diff_high` its interval, `least` and
`most` the smallest and largest mean of a text, `clusters` the number of documents. `mark` is `*` where
the interval holds no zero. Intervals hold in nominally 99.5% of samples, those of the bins of one
method together.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import pandas as pd

from leval_harness.report.compare import compare
from leval_harness.results.layout import REFERENCE
from leval_harness.results.load import Results
from leval_harness.results.token_blocks import REFERENCES
from leval_tasks.statistics.effective_context import (
    LEVEL,
    MARGIN,
    Floats,
    Interval,
    bin_edges,
    bin_intervals,
    context_bounds,
    interval,
    onset,
)

TASK, TASKS = "effective_context", "effective_context_"
HELD, BROKEN, NEAR = "no_degradation_up_to", "degradation_by", "breaks_near"
COST, DIFFERENCE = "cost", "difference"
DIFFERS = "*"
OF_METHOD = ["block", "label", "rope", "baseline", "margin"]

COLUMNS = {
    **dict.fromkeys(("start", "end"), "Int64"),
    **dict.fromkeys(("least", "most", "trained"), "float64"),
}
"""Columns that these rows add to the compared frame; `trained` is the reference's window."""

Row = dict[str, Any]


def compared_frame(
    results: Results,
    baseline: str | None = None,
    across: Literal["methods", "models"] = "methods",
    margin: float | None = None,
) -> pd.DataFrame:
    """The compared frame with the rows of effective context: what is shown everywhere.

    Arguments and errors are those of `leval_harness.report.compare.compare` and `effective_rows`.
    """
    numbers = compare(results, baseline, across)
    rows = effective_rows(numbers, results.blocks, margin)
    about = [name for name in results.runs if name in numbers and name not in rows]
    of_run = numbers.drop_duplicates("run")[["run", *about]]
    types = {name: numbers[name].dtype for name in numbers if name in {*rows, *of_run}} | COLUMNS
    found = rows.merge(of_run, on="run").astype(types)
    return pd.concat([numbers, found], ignore_index=True)


def effective_rows(
    compared: pd.DataFrame, blocks: pd.DataFrame, margin: float | None = None
) -> pd.DataFrame:
    """Rows on how far each method reads, and how methods differ on the same tokens.

    Args:
        compared: the scores of all runs, with `block`, `label` and `baseline`.
        blocks: the frame of that name, of the same runs.
        margin: nats/token; None for the sweep's, else `MARGIN`.
    """
    runs = _runs(compared)
    read = blocks.merge(runs, on="run").assign(middle=lambda f: f["start"] + f["tokens"] / 2)
    rows: list[Row] = []
    for _, of_block in read.groupby("block", sort=False):
        of_label = {label: _once(part) for label, part in of_block.groupby("label", sort=False)}
        own = of_block["margin"].dropna()
        smallest = margin or (float(own.iloc[0]) if len(own) else MARGIN)
        for part in of_label.values():
            rows += _of_method(part.dropna(subset=["difference"]), smallest)
        for label, other in _pairs(of_block):
            rows += _of_pair(of_label[label], of_label[other], other)
    return pd.DataFrame(rows, columns=None if rows else ["run", "task", *COLUMNS])


def _runs(compared: pd.DataFrame) -> pd.DataFrame:
    """A row for each run that read documents under a method, with the native context length."""
    named = compared["task"].str.startswith(TASKS).fillna(False).astype(bool)
    is_one = named & compared["status"].eq("done") & ~compared["method"].isin(REFERENCES)
    runs = compared[is_one].drop_duplicates("run")
    trained = runs["claimed_length"].astype("float64")
    if "setting window" in runs:
        trained = pd.to_numeric(runs["setting window"], errors="coerce").fillna(trained)
    replaced = runs["replaced"].notna() if "replaced" in runs else False
    types = runs["rope"].map(lambda rope: _settings(rope).get("rope_type", "default"))
    return runs[["run", *OF_METHOD]].assign(
        trained=trained, shipped=types.eq("default") & ~pd.Series(replaced, runs.index)
    )


def _once(part: pd.DataFrame) -> pd.DataFrame:
    """Blocks of a method; of a text that several of its runs read, the longest read."""
    of_read = part.groupby(["task", "document", "run"])["start"].transform("max")
    longest = of_read.groupby([part["task"], part["document"]]).transform("max")
    kept = part[of_read == longest]
    return kept.drop_duplicates(["task", "document", "start"])


def _of_method(part: pd.DataFrame, margin: float) -> Iterator[Row]:
    """Lengths, cost and bins of one method against its reference."""
    if part.empty:
        return
    ends = part["start"] + part["tokens"]
    within = ends <= part["trained"].fillna(0)
    # the first window is the same read, but for the order of sums in bfloat16
    lost = part["difference"].mask(within & part["shipped"], 0.0)
    sums, tokens = _floats(lost), _floats(part["tokens"])
    edges, trained = bin_edges(int(part["start"].min()), int(ends.max())), part["trained"].iloc[0]
    found = bin_intervals(_floats(part["middle"]), sums, tokens, edges)
    held, broken = context_bounds(found, margin)
    near = onset(_floats(ends), sums, tokens, margin)
    about = _about(part) | {"baseline": REFERENCE, "margin": margin, "trained": trained}
    lengths = {HELD: held, BROKEN: broken, NEAR: near if broken else None}
    for metric, value in lengths.items():
        yield about | {"metric": metric, "value": value, "start": edges[0], "end": edges[-1]}
    within = part["middle"] < (edges[-1] if pd.isna(trained) else trained)
    if within.any():
        end = min(edges[-1], int(ends[within].max()))
        yield about | {"metric": COST} | _spanned(part[within], lost[within], edges[0], end)
    for each in found:
        at = part["middle"].between(each.start, each.end)
        yield (
            about
            | {"metric": DIFFERENCE, "start": each.start, "end": each.end}
            | _interval(each, int(at.sum()))
        )


def _of_pair(part: pd.DataFrame, other: pd.DataFrame, baseline: str) -> Iterator[Row]:
    """The difference of two methods on the same tokens: in all of them, and in each bin."""
    keys = ["task", "document", "digest", "start", "tokens"]
    both = part.merge(other[[*keys, "difference"]], on=keys, suffixes=("", "_other"))
    both = both.dropna(subset=["difference", "difference_other"])
    if both.empty:
        return
    lost = both["difference"] - both["difference_other"]
    edges = bin_edges(int(both["start"].min()), int((both["start"] + both["tokens"]).max()))
    about = _about(both) | {"baseline": baseline, "metric": DIFFERENCE}
    yield about | _spanned(both, lost, edges[0], edges[-1])
    middles, sums, tokens = map(_floats, (both["middle"], lost, both["tokens"]))
    for each in bin_intervals(middles, sums, tokens, edges):
        at = both["middle"].between(each.start, each.end)
        yield about | {"start": each.start, "end": each.end} | _interval(each, int(at.sum()))


def _about(part: pd.DataFrame) -> Row:
    """What all rows of a method say."""
    first = part.iloc[0]
    return {name: first[name] for name in ("run", "block", "label")} | {
        "task": TASK,
        "kind": "loss",
        "unit": "nats",
        "status": "done",
        "clusters": float(part["document"].nunique()),
    }


def _spanned(part: pd.DataFrame, lost: pd.Series, start: int, end: int) -> Row:
    """One interval over all tokens of a part, and the range of the documents' own means."""
    tokens = part["tokens"].astype("float64")
    found = interval(_floats(lost), _floats(tokens), LEVEL)
    sums = pd.DataFrame({"lost": lost, "tokens": tokens}).groupby([part["task"], part["document"]])
    means = sums["lost"].sum() / sums["tokens"].sum()
    place = {"start": start, "end": end, "least": means.min(), "most": means.max()}
    return place | _interval(found, len(part))


def _floats(values: pd.Series) -> Floats:
    return np.asarray(values, np.float64)


def _interval(found: Interval, blocks: int) -> Row:
    return {
        "n": float(blocks),
        "difference": found.mean,
        "diff_low": found.low,
        "diff_high": found.high,
        "mark": "" if found.contains_zero else DIFFERS,
    }


def _pairs(of_block: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """Labels that are compared: each with the baseline, and Resonance with the same without."""
    methods = of_block.drop_duplicates("label").set_index("label")
    for label, method in methods.iterrows():
        plain = _without_resonance(method["rope"])
        same = (each for each in methods.index if each != label and plain)
        without = next((each for each in same if _settings(methods.at[each, "rope"]) == plain), "")
        others = dict.fromkeys((method["baseline"], without))
        yield from (
            (str(label), each) for each in others if each in methods.index and each != label
        )


def _settings(rope: object) -> Mapping[str, Any]:
    found = json.loads(rope) if isinstance(rope, str) and rope else None
    return found if isinstance(found, dict) else {}


def _without_resonance(rope: object) -> Mapping[str, Any]:
    """RoPE settings of the same method without Resonance; empty for a method without it."""
    settings = _settings(rope)
    kind = str(settings.get("rope_type", ""))
    plain = kind.removeprefix("resonance").removeprefix("_")
    return {} if plain == kind else {**settings, "rope_type": plain or "default"}
