"""The verdict: what the results say of each model, as a table and then sentences.

How far does each method read, what does it cost, and which one is recommended at which length?
Every number is one of the compared frame. A difference is method minus baseline, in nats/token:
positive is worse.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from leval_harness.report.effective_context import TASK
from leval_harness.report.effective_summary import (
    MethodSummary,
    ModelSummary,
    Recommendation,
    is_identical,
    method_pairs,
    summary,
)
from leval_harness.report.identical import identity_reason
from leval_harness.report.labels import counted
from leval_harness.report.next_step import Undecided, command_that_decides
from leval_harness.report.number_text import (
    IDENTICAL,
    NOTHING,
    Estimate,
    digits_of,
    joined_names,
    range_of_tokens,
    tokens_text,
)
from leval_harness.report.retrieval import retrievals
from leval_harness.report.score_sentences import score_sentences
from leval_harness.report.shortened import shortening_sentences
from leval_tasks.statistics.effective_context import ERROR_RATE, ERROR_RATE_OF_ONE_DOCUMENT

MOST_NAMES = 4
"""Methods that a recommendation names; of more the first ones."""

METHOD = "method"
LENGTH = "effective context length"
RELATIVE = "relative to native"
BY_RETRIEVAL = "by retrieval"

TERMS = {
    "Reference": "The unmodified model in sliding windows of its native context length, which move "
    "by half of it. Where a document is not longer than that: the unmodified model on the whole "
    "document.",
    "Native context length": "The longest context that the checkpoint was released for.",
    "Difference": "The loss under a method minus the loss under the reference, or under another "
    "method, on the same tokens, in nats/token. Positive is worse.",
    "Interval": "In square brackets, a confidence interval with nominally 99.5% coverage. The six "
    "bins of positions have this coverage together (Bonferroni).",
    "Margin": "An increase of the loss below the margin is treated as negligible.",
    "Effective context length": "The end of the last bin of positions whose interval lies below "
    "the margin. “≥” says that the longest position measured has been reached, or that what "
    "follows is undecided.",
    "Degrades from": "Where the running sum of the increases above the margin starts to rise: a "
    "point estimate, given only where some bin's interval lies above the margin.",
    "Cost": "The loss increase over the reference at positions within the native context length.",
}
"""The terms of a verdict, each explained once."""


@dataclass(frozen=True)
class Verdict:
    """What the results say of one block: usually a model.

    Attributes:
        block: its title; empty across models.
        heading: model, native context length, and what was read.
        summary: the numbers of the table; None without effective-context results.
        recommendation: the sentence after `Recommended: `; empty where there is none.
        sentences: what follows, in order.
        retrieval: method -> its effective context length by retrieval; empty where not measured.
    """

    block: str
    heading: str
    summary: ModelSummary | None
    recommendation: str
    sentences: tuple[str, ...]
    retrieval: Mapping[str, str] = field(default_factory=dict)

    @property
    def all_sentences(self) -> list[str]:
        """Return the recommendation, where there is one, and the other sentences."""
        if not self.recommendation:
            return list(self.sentences)
        return [f"Recommended: {self.recommendation}", *self.sentences]

    def table(self) -> pd.DataFrame | None:
        """Return the table as texts, a row for each method; None without one."""
        if self.summary is None and self.retrieval:
            names = list(self.retrieval)
            return pd.DataFrame({METHOD: names, BY_RETRIEVAL: [self.retrieval[n] for n in names]})
        if self.summary is None:
            return None
        methods = self.summary.methods
        columns = {
            METHOD: [method.method for method in methods],
            LENGTH: [method.length.text for method in methods],
        }
        if self.summary.is_across:
            columns[RELATIVE] = [method.length.relative_text for method in methods]
        if self.retrieval:
            lengths = [self.retrieval.get(method.method, NOTHING) for method in methods]
            columns[BY_RETRIEVAL] = lengths
        costs = [method.cost for method in methods]
        if any(cost is not None for cost in costs):
            columns[cost_heading(self.summary)] = column_of_estimates(costs)
        if self.summary.baseline:
            differences = [method.difference for method in methods]
            columns[difference_heading(self.summary)] = column_of_estimates(differences, IDENTICAL)
        return pd.DataFrame(columns)


def verdicts(compared: pd.DataFrame) -> list[Verdict]:
    """Return the verdict on each block of the compared frame that there is something to say of.

    Args:
        compared: the compared frame, with the rows of `leval_harness.report.effective_context`.
    """
    blocks = compared.groupby("block", sort=False)
    several = compared["block"].nunique() > 1
    of_blocks = [_verdict(str(block), part, several) for block, part in blocks]
    return [v for v in of_blocks if v.summary is not None or v.sentences or v.retrieval]


def cost_heading(summary: ModelSummary) -> str:
    """Return the heading of the costs: `cost within 8,192`."""
    if summary.native is None:
        return "cost within the native context length"
    if summary.native > summary.longest:
        return f"cost up to {tokens_text(summary.longest)}"
    return f"cost within {tokens_text(summary.native)}"


def difference_heading(summary: ModelSummary) -> str:
    """Return the heading of the differences: `against rope, 9,728–11,264`."""
    positions = range_of_tokens(summary.compared_start, summary.compared_end)
    return f"against {summary.baseline}, {positions}"


def column_of_estimates(estimates: list[Estimate | None], zero: str = NOTHING) -> list[str]:
    """Return differences with their intervals, all with the same digits.

    Args:
        estimates: of each method; None where it has no difference, which is shown as a dash.
        zero: what is shown where the difference is exactly zero on every token.
    """
    digits = digits_of(estimates)
    texts = []
    for estimate in estimates:
        if estimate is None:
            texts.append(NOTHING)
        elif estimate.is_exactly_zero:
            texts.append(zero)
        else:
            texts.append(estimate.text(digits))
    return texts


def _verdict(block: str, part: pd.DataFrame, several: bool) -> Verdict:
    """Return the verdict on one block: on effective context length, where measured, and on scores.

    Args:
        block: title of the block.
        part: its rows of the compared frame.
        several: whether there are other blocks, from which the heading has to tell it.
    """
    rows = part[part["task"] == TASK]
    answer = summary(block, rows)
    sentences: list[str] = []
    recommendation = ""
    heading = ""
    if several:
        heading = block
    if answer is not None:
        heading = _heading(answer)
        recommendation = _recommendation(answer)
        sentences += _effective_sentences(answer, rows, part)
    sentences += shortening_sentences(part)
    if answer is not None:
        sentences += _method_of_measurement(answer)
    sentences += score_sentences(part)
    # Losses and scores may give the same reason why two methods are identical.
    unique = tuple(dict.fromkeys(sentences))
    return Verdict(block, heading, answer, recommendation, unique, _by_retrieval(part))


def _by_retrieval(part: pd.DataFrame) -> dict[str, str]:
    """Return method -> effective context length by retrieval, where needles or RULER decide it."""
    rows = retrievals(part)
    texts: dict[str, str] = {}
    for label, text in zip(rows["label"], rows["length"], strict=True):
        texts[str(label)] = text  # a needle grid comes after RULER, and takes its place
    return texts


def _heading(answer: ModelSummary) -> str:
    """Return `SmolLM2-135M, native context length 8,192 tokens; 3 documents of 11,264 tokens`."""
    model = answer.model
    if answer.is_across:
        model = " · ".join(["Several models", *filter(None, [answer.model])])
    if answer.native is None:
        return f"{model}; {measured_text(answer)}"
    return f"{model}, {measured_text(answer)}"


def measured_text(answer: ModelSummary) -> str:
    """Return `native context length 8,192 tokens; 3 documents of 11,264 tokens`."""
    counts = sorted({method.documents for method in answer.methods})
    documents = counted(counts[-1], "document")
    if len(counts) > 1:
        documents = f"{counts[0]} to {documents}"
    up_to = "" if answer.same_length else "up to "
    documents = f"{documents} of {up_to}{tokens_text(answer.longest)} tokens"
    if answer.native is None:
        return documents
    return f"native context length {tokens_text(answer.native)} tokens; {documents}"


def _recommendation(answer: ModelSummary) -> str:
    """Return `rope up to 9,728 tokens; yarn or resonance_yarn from 9,728 to 11,264.`."""
    parts = [_recommended_range(part, at == 0) for at, part in enumerate(answer.recommended)]
    if not parts:
        return ""
    return f"{'; '.join(parts)}."


def _recommended_range(part: Recommendation, is_first: bool) -> str:
    names = _alternatives(part.methods)
    if is_first:
        return f"{names} up to {tokens_text(part.end)} tokens"
    return f"{names} from {tokens_text(part.start)} to {tokens_text(part.end)}"


def _alternatives(methods: Sequence[str]) -> str:
    """Return methods that are equally good; of many the first few, and how many others."""
    if len(methods) <= MOST_NAMES:
        return joined_names(methods, "or")
    first = methods[: MOST_NAMES - 1]
    return joined_names([*first, f"{len(methods) - len(first)} others"], "or")


def _effective_sentences(
    answer: ModelSummary, rows: pd.DataFrame, part: pd.DataFrame
) -> Iterator[str]:
    yield from _degrading_sentences(answer)
    yield from _pair_sentences(answer, method_pairs(rows), part)
    yield from _beyond_native(answer, rows)
    yield from _undecided(answer, part)


def _degrading_sentences(answer: ModelSummary) -> Iterator[str]:
    """Say so where even the recommended methods degrade: a recommendation is relative."""
    ends = [method.length.below for method in answer.methods]
    known = [end for end in ends if end is not None]
    if len(known) == len(ends):
        yield f"Every method degrades at or before {tokens_text(max(known))} tokens."


def _pair_sentences(answer: ModelSummary, pairs: pd.DataFrame, part: pd.DataFrame) -> Iterator[str]:
    """Compare methods with each other where the table does not: Resonance with the same without.

    Methods that have the same loss on every token are named as identical: no number of documents
    could distinguish them.
    """
    for label, other in pairs[["label", "baseline"]].drop_duplicates().to_numpy():
        reason = identity_reason(part, label, other)
        if reason:
            yield f"{label} is identical to {other} at every length measured: {reason}."
            continue
        if is_identical(pairs, label, other):
            yield f"{label} is identical to {other} on all tokens measured."
            continue
        if other == answer.baseline:
            continue
        of_pair = pairs[pairs["label"].eq(label) & pairs["baseline"].eq(other)]
        difference = Estimate.of_row(of_pair.iloc[0])
        digits = digits_of([difference])
        interval = difference.range_text(digits)
        if not difference.is_significant:
            yield f"{label} cannot be distinguished from {other} (difference {interval})."
            continue
        word = "better"
        if difference.mean > 0:
            word = "worse"
        yield f"{label} is {word} than {other}: {difference.mean_text(digits)} ({interval})."


def _beyond_native(answer: ModelSummary, rows: pd.DataFrame) -> Iterator[str]:
    """Say whether a method uses more context than the reference's windows hold."""
    if answer.native is None:
        return
    native = tokens_text(answer.native)
    if not answer.is_beyond_native:
        yield (
            f"Nothing was measured beyond the native context length of {native} tokens: these "
            "results show what each method costs within it, not whether it extends it."
        )
        return
    unscaled = f"the unscaled model that sees only the last {native} tokens"
    bins = rows[rows["metric"].eq("difference") & rows["baseline"].eq("reference")]
    better = bins[(bins["end"] > answer.native) & (bins["diff_high"] < 0)]
    if better.empty:
        yield f"Beyond {native} tokens no method is better than {unscaled}."
        return
    methods_at: dict[str, list[str]] = {}
    for label, part in better.groupby("label", sort=False):
        ranges = [range_of_tokens(*pair) for pair in part[["start", "end"]].to_numpy()]
        methods_at.setdefault(joined_names(ranges, "and"), []).append(str(label))
    for positions, methods in methods_at.items():
        verb = "is" if len(methods) == 1 else "are"
        names = joined_names(methods, "and")
        yield f"At {positions} tokens {names} {verb} better than {unscaled}."


def _undecided(answer: ModelSummary, part: pd.DataFrame) -> Iterator[str]:
    """Give the command that decides what the table leaves undecided."""
    undecided = [
        Undecided(method.method, method.undecided_bin, method.margin)
        for method in answer.methods
        if method.undecided_bin is not None
    ]
    if undecided:
        yield command_that_decides(undecided, part)


def _method_of_measurement(answer: ModelSummary) -> Iterator[str]:
    """Say what the losses were compared with, and how often the answer errs."""
    first = answer.methods[0]
    yield f"Losses in nats/token, compared with {reference_text(answer)} (the reference)."
    yield f"Increases below {first.margin:g} are treated as negligible. {_error_rate(first)}"


def reference_text(answer: ModelSummary) -> str:
    """Return what the methods were compared with."""
    if not answer.is_beyond_native:
        return "the unmodified model on the whole document"
    if answer.native is None:
        return "the unscaled model in sliding windows of its native context length"
    return f"the unscaled model in sliding windows of {tokens_text(answer.native)} tokens"


def _error_rate(first: MethodSummary) -> str:
    errs = ERROR_RATE_OF_ONE_DOCUMENT if first.documents == 1 else ERROR_RATE
    return f"Each bound errs in at most {errs} of samples."
