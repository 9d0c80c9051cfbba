"""The answer on effective context length, from its rows of the compared frame: one per model.

Verdict, tables, figures and page all read these objects, so that they cannot say different things.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from leval_harness.report.effective_context import (
    BROKEN,
    COST,
    DIFFERENCE,
    HELD,
    LOSS,
    NEAR,
    TASK,
)
from leval_harness.report.labels import is_across_models
from leval_harness.report.number_text import NOTHING, Estimate, tokens_text
from leval_harness.results.layout import REFERENCE
from leval_tasks.statistics.effective_context import BLOCK


@dataclass(frozen=True)
class EffectiveLength:
    """Up to which position a method reads as well as the reference does, in tokens.

    Attributes:
        at_least: end of the last bin without degradation; None where there is none.
        below: end of the first bin with degradation; None where there is none.
        onset: where the loss starts to rise; None without degradation, or where it rises from the
            first position on.
        first: the first position measured.
        longest: the last position measured.
        native: the native context length; None where it is unknown.
    """

    at_least: int | None
    below: int | None
    onset: int | None
    first: int
    longest: int
    native: int | None

    @property
    def is_undecided(self) -> bool:
        """Whether neither degradation nor its absence is shown up to the last position."""
        return self.below is None and self.at_least != self.longest

    @property
    def text(self) -> str:
        """Return `9,728 (degrades from ~9,920)`, `≥ 11,264 (longest measured)` and the like."""
        if self.below is not None:
            return f"{self._degraded_length} ({self._onset_text})"
        if self.at_least is None:
            return "undecided"
        if self.is_undecided:
            return f"≥ {tokens_text(self.at_least)}, undecided beyond"
        return f"≥ {tokens_text(self.at_least)} (longest measured)"

    @property
    def native_text(self) -> str:
        """Return the native context length in tokens; a dash where it is unknown."""
        return NOTHING if self.native is None else tokens_text(self.native)

    @property
    def relative_text(self) -> str:
        """Return the length in multiples of the native context length: `1.19×`, `≥ 1.38×`."""
        if self.native is None:
            return NOTHING
        if self.at_least is None:
            return "undecided" if self.below is None else f"< {self.below / self.native:.2f}×"
        bound = "≥ " if self.below is None else ""
        return f"{bound}{self.at_least / self.native:.2f}×"

    @property
    def _degraded_length(self) -> str:
        assert self.below is not None
        if self.at_least is None:
            return f"< {tokens_text(self.below)}"
        return tokens_text(self.at_least)

    @property
    def _onset_text(self) -> str:
        if self.onset is None:
            return "degrades from the first position measured"
        return f"degrades from ~{tokens_text(self.onset)}"


@dataclass(frozen=True)
class MethodSummary:
    """One method of a model.

    Attributes:
        method: its label.
        length: its effective context length.
        cost: loss increase within the native context length; None where nothing lies within it.
        cost_range: the smallest and the largest cost of a single document; None as `cost`.
        difference: loss minus that of the baseline; None for the baseline itself, and where the two
            have no tokens in common.
        loss_within: mean loss within the native context length, nats/token; None without a number.
        loss_beyond: the same beyond it.
        documents: number of documents.
        margin: nats/token; an increase below it is treated as negligible.
        undecided_bin: where `length` is undecided, the last bin's loss increase.
    """

    method: str
    length: EffectiveLength
    cost: Estimate | None
    cost_range: tuple[float, float] | None
    difference: Estimate | None
    loss_within: float | None
    loss_beyond: float | None
    documents: int
    margin: float
    undecided_bin: Estimate | None = None


@dataclass(frozen=True)
class Recommendation:
    """The methods to use from one position to another; any of them."""

    methods: tuple[str, ...]
    start: int
    end: int


@dataclass(frozen=True)
class ModelSummary:
    """What was measured of one model.

    Attributes:
        model: title of the block.
        methods: in their order.
        baseline: what `difference` is from; empty where nothing was compared.
        compared_start: the first of the positions that `difference` covers.
        compared_end: the last of them.
        recommended: by position; empty where methods were not all compared on the same positions.
        same_length: whether all documents reach the longest position.
        is_across: whether the methods are of several models.
    """

    model: str
    methods: tuple[MethodSummary, ...]
    baseline: str
    compared_start: int
    compared_end: int
    recommended: tuple[Recommendation, ...]
    same_length: bool
    is_across: bool = False

    @property
    def longest(self) -> int:
        """Return the last position measured, tokens."""
        return max(method.length.longest for method in self.methods)

    @property
    def native(self) -> int | None:
        """Return the native context length; None where it is unknown, or models differ in it."""
        lengths = {method.length.native for method in self.methods}
        return lengths.pop() if len(lengths) == 1 else None

    @property
    def is_beyond_native(self) -> bool:
        """Whether positions beyond the native context length were measured."""
        return any(
            method.length.native is not None and method.length.longest > method.length.native
            for method in self.methods
        )


def summaries(compared: pd.DataFrame) -> list[ModelSummary]:
    """Return the answer for each block of the compared frame that has effective-context rows."""
    rows = compared[compared["task"] == TASK]
    answers = [summary(str(block), part) for block, part in rows.groupby("block", sort=False)]
    return [answer for answer in answers if answer is not None]


def summary(block: str, rows: pd.DataFrame) -> ModelSummary | None:
    """Return the answer for one model; None where no method has a reference.

    Args:
        block: title of the model.
        rows: its effective-context rows of the compared frame.
    """
    against_reference = rows[rows["baseline"] == REFERENCE]
    if against_reference.empty:
        return None
    pairs = method_pairs(rows)
    names = [str(name) for name in against_reference["label"].unique()]
    degraded = against_reference[
        against_reference["metric"].eq(BROKEN) & against_reference["value"].notna()
    ]
    is_across = is_across_models(rows)
    # Methods are compared within a model, so that several models have no common baseline.
    baseline = "" if is_across else common_baseline(pairs)
    against_baseline = pairs[pairs["baseline"] == baseline]
    start, end = _compared_positions(against_baseline, {*degraded["label"]})
    methods = []
    for name in names:
        own = against_baseline[against_baseline["label"] == name]
        own = own[own["start"].eq(start) & own["end"].eq(end)]
        methods.append(_method_summary(name, rows[rows["label"] == name], _first_estimate(own)))
    return ModelSummary(
        model=block,
        methods=tuple(methods),
        baseline=baseline,
        compared_start=start,
        compared_end=end,
        recommended=() if is_across else tuple(recommend(pairs, names)),
        same_length=_have_one_length(against_reference),
        is_across=is_across,
    )


def method_pairs(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the effective-context rows on the difference of two methods."""
    is_pair = rows["metric"].eq(DIFFERENCE) & rows["baseline"].ne(REFERENCE)
    return rows[is_pair & rows["baseline"].notna()]


def bins_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of single bins among differences: not those over all positions."""
    differences = rows[rows["metric"] == DIFFERENCE]
    whole_ranges = []
    for (_, baseline), part in differences.groupby(["label", "baseline"], sort=False):
        if baseline == REFERENCE:
            continue  # over all positions there is a cost, but no difference
        is_whole = part["start"].eq(part["start"].min()) & part["end"].eq(part["end"].max())
        whole_ranges += part.index[is_whole][:1].tolist()  # a single bin has the same positions
    return differences.drop(index=whole_ranges)


def common_baseline(pairs: pd.DataFrame) -> str:
    """Return the method that most others are compared with; empty without pairs."""
    if pairs.empty:
        return ""
    compared = pairs.groupby("baseline", sort=False)["label"].nunique()
    return str(compared.idxmax())


def recommend(pairs: pd.DataFrame, methods: Iterable[str]) -> list[Recommendation]:
    """Return the method for each range of positions.

    That is the baseline, unless the interval of another method lies below it. Of several such
    methods all are named whose intervals do not lie above another one's.

    Args:
        pairs: rows on the difference of two methods.
        methods: all that were measured.

    Returns:
        Ranges in ascending order; empty where some method was not compared with the baseline in
        the same bins.
    """
    baseline = common_baseline(pairs)
    others = {*methods} - {baseline}
    if not baseline or not others:
        return []
    bins = bins_of(pairs)
    against_baseline = bins[bins["baseline"] == baseline]
    edges_of_method = {
        label: list(zip(part["start"], part["end"], strict=True))
        for label, part in against_baseline.groupby("label")
    }
    all_edges = list(edges_of_method.values())
    have_same_bins = all(edges == all_edges[0] for edges in all_edges)
    if {*edges_of_method} != others or not have_same_bins:
        return []

    ranges: list[Recommendation] = []
    for start, end in all_edges[0]:
        best = _best_in_bin(bins[bins["start"].eq(start) & bins["end"].eq(end)], baseline)
        if ranges and ranges[-1].methods == best:
            start = ranges.pop().start
        ranges.append(Recommendation(best, int(start), int(end)))
    return ranges


def _best_in_bin(pairs: pd.DataFrame, baseline: str) -> tuple[str, ...]:
    """Return the methods of one bin that are shown to be better than the baseline, else it."""
    against_baseline = pairs[pairs["baseline"] == baseline]
    # The interval decides, not its mean: a difference that could be chance recommends nobody.
    better = against_baseline.loc[against_baseline["diff_high"] < 0, "label"].tolist()
    among_better = pairs[pairs["baseline"].isin(better) & pairs["label"].isin(better)]
    is_worse = among_better["diff_low"] > 0
    is_better = among_better["diff_high"] < 0
    beaten = {*among_better.loc[is_worse, "label"], *among_better.loc[is_better, "baseline"]}
    best = tuple(name for name in better if name not in beaten)
    return best or (baseline,)


def _compared_positions(against_baseline: pd.DataFrame, degraded: set[str]) -> tuple[int, int]:
    """Return the positions over which methods are compared in one number.

    All of them, unless one of the methods degrades: what scaling saves beyond the native context
    length it costs within it, and a mean of both says nothing. Then it is the last bin.
    """
    if against_baseline.empty:
        return 0, 0
    first = int(against_baseline["start"].min())
    last = int(against_baseline["end"].max())
    if degraded & {*against_baseline["label"], *against_baseline["baseline"]}:
        return int(against_baseline.loc[against_baseline["end"] == last, "start"].max()), last
    return first, last


def _method_summary(name: str, rows: pd.DataFrame, difference: Estimate | None) -> MethodSummary:
    """Return what the rows of one method say about it.

    Args:
        name: of the method.
        rows: its rows of the compared frame: effective length, cost, losses and differences.
        difference: to the baseline, over the positions at which methods are compared.
    """
    against_reference = rows[rows["baseline"] == REFERENCE]
    positions = {
        metric: _first_position(against_reference[against_reference["metric"] == metric]["value"])
        for metric in (HELD, BROKEN, NEAR)
    }
    first_row = against_reference.iloc[0]
    native = _first_position(against_reference["native_length"])
    length = EffectiveLength(
        at_least=positions[HELD],
        below=positions[BROKEN],
        onset=positions[NEAR],
        first=int(first_row["start"]),
        longest=int(first_row["end"]),
        native=native,
    )
    costs = against_reference[against_reference["metric"] == COST]
    undecided_bin = None
    if length.is_undecided:
        last_bin = against_reference[against_reference["metric"] == DIFFERENCE].iloc[-1]
        undecided_bin = Estimate.of_row(last_bin)
    losses = rows[rows["metric"] == LOSS]
    is_within = pd.Series(True, losses.index)  # where no native length is known
    if native is not None:
        is_within = losses["start"] < native
    cost_range = None
    if not costs.empty:
        cost_range = (float(costs["least"].iloc[0]), float(costs["most"].iloc[0]))
    return MethodSummary(
        method=name,
        length=length,
        cost=_first_estimate(costs),
        cost_range=cost_range,
        difference=difference,
        loss_within=_first_number(losses[is_within]["value"]),
        loss_beyond=_first_number(losses[~is_within]["value"]),
        documents=int(first_row["clusters"]),
        margin=float(first_row["margin"]),
        undecided_bin=undecided_bin,
    )


def _first_estimate(rows: pd.DataFrame) -> Estimate | None:
    if rows.empty:
        return None
    return Estimate.of_row(rows.iloc[0])


def _first_position(values: pd.Series) -> int | None:
    known = values.dropna()
    if known.empty:
        return None
    return int(known.iloc[0])


def _first_number(values: pd.Series) -> float | None:
    known = values.dropna()
    if known.empty:
        return None
    return float(known.iloc[0])


def _have_one_length(against_reference: pd.DataFrame) -> bool:
    """Return whether all documents have as many blocks as the longest one."""
    for _, rows in against_reference.groupby("label"):
        first_row = rows.iloc[0]
        blocks = rows.loc[rows["metric"] == DIFFERENCE, "n"].sum()
        blocks_of_longest = (first_row["end"] - first_row["start"]) // BLOCK
        if blocks < first_row["clusters"] * blocks_of_longest:
            return False
    return True


def is_identical(pairs: pd.DataFrame, label: str, other: str) -> bool:
    """Return whether two methods have the same loss on every token measured.

    Args:
        pairs: rows on the difference of two methods.
        label: one of them.
        other: the one that it is compared with.
    """
    rows = pairs[pairs["label"].eq(label) & pairs["baseline"].eq(other)]
    estimates = [Estimate.of_row(row) for _, row in rows.iterrows()]
    return bool(estimates) and all(estimate.is_exactly_zero for estimate in estimates)
