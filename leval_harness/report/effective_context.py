"""Effective context length: rows of the compared frame, from the 64-token blocks of documents.

The rule is in `leval_tasks.statistics.effective_context`. Its rows have the task
`effective_context`, pool the documents of all `effective_context_*` tasks, and have these metrics:

`no_degradation_up_to`, `degradation_by`, `breaks_near`
    `value` is a position in tokens; missing where there is none.
`cost`
    The loss increase over the reference within the native context length.
`difference`
    The loss increase over the reference in one bin of positions, or the difference from another
    method in one bin and over all positions.
`loss`
    `value` is the method's own mean loss within, or beyond, the native context length.

A difference is the loss of the method minus that of `baseline`, in nats/token: positive is worse.
The difference of each token from the reference is clipped to ±1 nat; the difference of two methods
is the difference of these. Within the native context length the unmodified model is its own
reference. `start` and `end` are the first and the last position that a row covers, `diff_low` and
`diff_high` the ends of its interval, `least` and `most` the smallest and the largest mean of a
document, `clusters` its documents and `n` its blocks. `mark` is `*` where the interval excludes
zero. Each interval has nominally 99.5% coverage; those of the bins of one method have it together.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import pandas as pd

from leval_harness.report.compare import compare
from leval_harness.results.layout import REFERENCE
from leval_harness.results.load import Results
from leval_tasks.statistics.effective_context import (
    LEVEL,
    MARGIN,
    Bin,
    Floats,
    Interval,
    bin_edges,
    bin_intervals,
    context_bounds,
    interval,
    onset,
)

TASK = "effective_context"
TASK_PREFIX = "effective_context_"
HELD = "no_degradation_up_to"
BROKEN = "degradation_by"
NEAR = "breaks_near"
COST = "cost"
DIFFERENCE = "difference"
LOSS = "loss"
SIGNIFICANT = "*"
WINDOW = 8
"""Blocks of 64 tokens that a point of a figure's line is the mean of: 512 tokens."""

COLUMNS = {
    **dict.fromkeys(("start", "end"), "Int64"),
    **dict.fromkeys(("least", "most", "native_length"), "float64"),
}
"""Columns that these rows add to the compared frame; `native_length` is the reference's window."""

ROW_COLUMNS = (
    "run", "block", "label", "task", "kind", "unit", "status", "clusters", "n", "metric", "value",
    "baseline", "margin", "difference", "diff_low", "diff_high", "mark",
)  # fmt: skip
"""Columns of the compared frame that these rows fill, whichever of them there are."""

Row = dict[str, Any]


def compared_frame(
    results: Results,
    baseline: str | None = None,
    across: Literal["methods", "models"] = "methods",
    margin: float | None = None,
) -> pd.DataFrame:
    """Return the compared frame with the rows of effective context: what is shown everywhere.

    Args:
        results: frames of one or more results folders.
        baseline: label to compare with; see `leval_harness.report.compare.compare`.
        across: compare the methods of each model, or models.
        margin: nats/token; an increase below it is treated as negligible. None: the sweep's margin.

    Returns:
        The rows and columns of `leval_harness.report.compare.compare`, and the rows of this module.

    Raises:
        SettingError: there is no such baseline.
    """
    scores = compare(results, baseline, across)
    rows = effective_rows(scores, results.blocks, margin)
    # What describes a run (model, dtype, command, …) is the same in all of its rows.
    run_columns = ["run"] + [name for name in results.runs if name in scores and name not in rows]
    described = rows.merge(scores.drop_duplicates("run")[run_columns], on="run")
    types = {name: scores[name].dtype for name in scores if name in described}
    described = described.astype({**types, **COLUMNS})
    return pd.concat([scores, described], ignore_index=True)


def effective_rows(
    compared: pd.DataFrame, blocks: pd.DataFrame, margin: float | None = None
) -> pd.DataFrame:
    """Return the rows on how far each method reads, and how methods differ on the same tokens.

    Args:
        compared: the scores of all runs, with `block`, `label` and `baseline`.
        blocks: the 64-token blocks of the same runs.
        margin: nats/token; None for the sweep's, else `MARGIN`.
    """
    runs = _runs_with_documents(compared)
    measured = blocks.merge(runs, on="run")
    measured["middle"] = measured["start"] + measured["tokens"] / 2
    rows: list[Row] = []
    for _, of_model in measured.groupby("block", sort=False):
        blocks_of = {
            str(label): _longest_reads(part)
            for label, part in of_model.groupby("label", sort=False)
        }
        used_margin = _margin(of_model, margin)
        for part in blocks_of.values():
            rows += _absolute_losses(part)
            rows += _rows_of_method(part.dropna(subset=["difference"]), used_margin)
        for label, other in _pairs(of_model):
            rows += _rows_of_pair(blocks_of[label], blocks_of[other], other)
    frame = pd.DataFrame(rows)
    return frame.reindex(columns=list(dict.fromkeys([*frame, *ROW_COLUMNS, *COLUMNS])))


def position_curves(compared: pd.DataFrame, blocks: pd.DataFrame) -> pd.DataFrame:
    """Return running means of the differences by position: what figures draw as lines.

    Args:
        compared: the compared frame.
        blocks: the 64-token blocks of the same runs.

    Returns:
        A row for each `block`, `label`, `baseline` (the reference, or another method) and
        `position`, the middle of a block in tokens; `difference`, nats/token, is the mean over
        `WINDOW` blocks around it of all documents that have them, over half as many at the ends.
    """
    measured = blocks.merge(_runs_with_documents(compared), on="run")
    measured["middle"] = measured["start"] + measured["tokens"] / 2
    curves = [pd.DataFrame(columns=["block", "label", "baseline", "position", "difference"])]
    for block, of_model in measured.groupby("block", sort=False):
        blocks_of = {
            str(label): _longest_reads(part).dropna(subset=["difference"])
            for label, part in of_model.groupby("label", sort=False)
        }
        sums = {
            (label, REFERENCE): part.assign(sum=_increase(part))
            for label, part in blocks_of.items()
        }
        for label, other in _pairs(of_model):
            both = _same_tokens(blocks_of[label], blocks_of[other])
            sums[label, other] = both.assign(sum=both["difference"] - both["difference_other"])
        for (label, baseline), part in sums.items():
            curves.append(_running_mean(part).assign(block=block, label=label, baseline=baseline))
    return pd.concat([curve for curve in curves if len(curve)] or curves, ignore_index=True)


def _running_mean(part: pd.DataFrame) -> pd.DataFrame:
    """Return the running mean of `sum` per token by position."""
    of_position = part.groupby("middle")[["sum", "tokens"]].sum()
    # Sums and tokens are added up separately: a short block weighs by its tokens.
    window = of_position.rolling(WINDOW, center=True, min_periods=WINDOW // 2).sum().dropna()
    return pd.DataFrame(
        {"position": window.index, "difference": (window["sum"] / window["tokens"]).to_numpy()}
    )


def _runs_with_documents(compared: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each run that read documents under a method.

    `native_length` is the native context length, and `unmodified` whether the run uses RoPE
    exactly as the checkpoint ships it.
    """
    is_effective = compared["task"].str.startswith(TASK_PREFIX).fillna(False).astype(bool)
    is_method = compared["status"].eq("done") & ~compared["method"].eq(REFERENCE)
    runs = compared[is_effective & is_method].drop_duplicates("run")
    native_length = runs["claimed_length"].astype("float64")
    if "setting window" in runs:
        window = pd.to_numeric(runs["setting window"], errors="coerce")
        native_length = window.fillna(native_length)
    unmodified = runs["rope"].map(_is_default_rope).astype(bool)
    if "replaced" in runs:
        unmodified &= runs["replaced"].isna()
    columns = ["run", "block", "label", "model", "rope", "baseline", "margin"]
    return runs[columns].assign(native_length=native_length, unmodified=unmodified)


def _margin(of_model: pd.DataFrame, margin: float | None) -> float:
    """Return the margin that was asked for, else the sweep's, else the default."""
    if margin:
        return margin
    margins = of_model["margin"].dropna()
    if margins.empty:
        return MARGIN
    return float(margins.iloc[0])


def _longest_reads(part: pd.DataFrame) -> pd.DataFrame:
    """Return a method's blocks; of a document that several of its runs read, the longest read."""
    last_of_read = part.groupby(["task", "document", "run"])["start"].transform("max")
    last_of_document = part.groupby(["task", "document"])["start"].transform("max")
    longest = part[last_of_read == last_of_document]
    return longest.drop_duplicates(["task", "document", "start"])


def _increase(part: pd.DataFrame) -> pd.Series:
    """Return each block's summed loss increase over the reference, nats.

    An unmodified model within its native context length is its own reference: both reads compute
    the same losses, but for the order of sums in bfloat16.
    """
    is_within = part["start"] + part["tokens"] <= part["native_length"].fillna(0)
    return part["difference"].mask(is_within & part["unmodified"], 0.0)


def _absolute_losses(part: pd.DataFrame) -> Iterator[Row]:
    """Yield a method's own mean loss within and beyond the native context length."""
    is_within = part["middle"] < part["native_length"].fillna(np.inf)
    for blocks in (part[is_within], part[~is_within]):
        if blocks.empty:
            continue
        yield _described(blocks) | {
            "metric": LOSS,
            "value": blocks["full"].sum() / blocks["tokens"].sum(),
            "start": int(blocks["start"].min()),
            "end": int((blocks["start"] + blocks["tokens"]).max()),
            "native_length": blocks["native_length"].iloc[0],
            "n": float(len(blocks)),
        }


def _rows_of_method(part: pd.DataFrame, margin: float) -> Iterator[Row]:
    """Yield lengths, cost and bins of one method against its reference."""
    if part.empty:
        return
    part = part.assign(increase=_increase(part))
    ends = part["start"] + part["tokens"]
    edges = bin_edges(int(part["start"].min()), int(ends.max()))
    sums = _floats(part["increase"])
    tokens = _floats(part["tokens"])
    bins_of_method = bin_intervals(_floats(part["middle"]), sums, tokens, edges)
    held, broken = context_bounds(bins_of_method, margin)
    near = None
    if broken:  # an onset has a meaning only where degradation is shown
        near = onset(_floats(ends), sums, tokens, margin)
    native_length = part["native_length"].iloc[0]
    common = {"baseline": REFERENCE, "margin": margin, "native_length": native_length}

    for metric, value in ((HELD, held), (BROKEN, broken), (NEAR, near)):
        position = {"metric": metric, "value": value, "start": edges[0], "end": edges[-1]}
        yield _described(part) | common | position

    last_within = native_length
    if pd.isna(native_length):
        last_within = edges[-1]
    within = part[part["middle"] < last_within]
    if not within.empty:
        end = min(edges[-1], int((within["start"] + within["tokens"]).max()))
        cost = _whole_range(within, within["increase"], edges[0], end)
        yield _described(within) | common | {"metric": COST} | cost

    for one_bin in bins_of_method:
        yield _row_of_bin(part, one_bin) | common


def _rows_of_pair(part: pd.DataFrame, other: pd.DataFrame, baseline: str) -> Iterator[Row]:
    """Yield the difference of two methods on the same tokens: over all of them, then by bin."""
    both = _same_tokens(part, other)
    if both.empty:
        return
    difference = both["difference"] - both["difference_other"]
    edges = bin_edges(int(both["start"].min()), int((both["start"] + both["tokens"]).max()))
    common = {"baseline": baseline, "metric": DIFFERENCE}
    yield _described(both) | common | _whole_range(both, difference, edges[0], edges[-1])
    middles = _floats(both["middle"])
    for one_bin in bin_intervals(middles, _floats(difference), _floats(both["tokens"]), edges):
        yield _row_of_bin(both, one_bin) | common


def _same_tokens(part: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """Return the blocks that two methods both read, with the other's as `difference_other`."""
    keys = ["task", "document", "digest", "start", "tokens"]
    both = part.merge(other[[*keys, "difference"]], on=keys, suffixes=("", "_other"))
    return both.dropna(subset=["difference", "difference_other"])


def _row_of_bin(part: pd.DataFrame, one_bin: Bin) -> Row:
    """Return the row of one bin, with the blocks and documents that are in it."""
    inside = part[(part["middle"] > one_bin.start) & (part["middle"] <= one_bin.end)]
    position = {"metric": DIFFERENCE, "start": one_bin.start, "end": one_bin.end}
    return _described(inside) | position | _numbers(one_bin, len(inside))


def _described(part: pd.DataFrame) -> Row:
    """Return what names a row, and the number of documents that its blocks are of."""
    first = part.iloc[0]
    return {name: first[name] for name in ("run", "block", "label")} | {
        "task": TASK,
        "kind": "loss",
        "unit": "nats",
        "status": "done",
        "clusters": float(part["document"].nunique()),
    }


def _whole_range(part: pd.DataFrame, difference: pd.Series, start: int, end: int) -> Row:
    """Return one interval over all tokens of a part, and the range of the documents' own means."""
    tokens = part["tokens"].astype("float64")
    sums = pd.DataFrame({"difference": difference, "tokens": tokens})
    by_document = sums.groupby([part["task"], part["document"]]).sum()
    means = by_document["difference"] / by_document["tokens"]
    position = {"start": start, "end": end, "least": means.min(), "most": means.max()}
    return position | _numbers(interval(_floats(difference), _floats(tokens), LEVEL), len(part))


def _floats(values: pd.Series) -> Floats:
    return np.asarray(values, np.float64)


def _numbers(estimate: Interval, blocks: int) -> Row:
    """Return the columns of a mean difference with its interval."""
    return {
        "n": float(blocks),
        "difference": estimate.mean,
        "diff_low": estimate.low,
        "diff_high": estimate.high,
        "mark": "" if estimate.contains_zero else SIGNIFICANT,
    }


def _pairs(of_model: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """Yield the labels to compare: each with the baseline, and Resonance with the same without.

    Only methods of one model are compared: the increases of two models are over references of their
    own.
    """
    methods = of_model.drop_duplicates("label").set_index("label")
    for _, of_one_model in methods.groupby("model", sort=False):
        rope_of = {str(label): _rope_settings(rope) for label, rope in of_one_model["rope"].items()}
        for label, rope in rope_of.items():
            others = [methods.at[label, "baseline"]]
            plain = _without_resonance(rope)
            if plain:
                same = [name for name, other in rope_of.items() if name != label and other == plain]
                others += same[:1]
            for other in dict.fromkeys(others):
                if other in rope_of and other != label:
                    yield label, other


def _is_default_rope(rope: object) -> bool:
    return _rope_settings(rope).get("rope_type", "default") == "default"


def _rope_settings(rope: object) -> Mapping[str, Any]:
    """Return the RoPE settings that a run has as JSON; empty for an unmodified checkpoint."""
    if not isinstance(rope, str) or not rope:
        return {}
    settings = json.loads(rope)
    return settings if isinstance(settings, dict) else {}


def _without_resonance(rope: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of the same method without Resonance; empty where it has none."""
    rope_type = str(rope.get("rope_type", ""))
    plain_type = rope_type.removeprefix("resonance").removeprefix("_")
    if plain_type == rope_type:
        return {}
    return {**rope, "rope_type": plain_type or "default"}
